//! The clock, rent, hashes, logs and derived addresses, over the syscalls.
use crate::ids::SLOT_HASHES;
use crate::runtime as rt;
use crate::Pubkey;

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Clock {
    pub slot: u64,
    pub epoch_start: i64,
    pub epoch: u64,
    pub leader_epoch: u64,
    pub unix: i64,
}

pub fn clock() -> Clock {
    let mut c = Clock::default();
    unsafe { rt::sol_get_clock_sysvar(&mut c as *mut Clock as *mut u8) };
    c
}

/// The slots that the chain remembers with their hashes, newest first; skipped ones are not there. Read word by word: all of it has 20 kB.
pub struct SlotHashes {
    pub count: u64,
}

impl SlotHashes {
    pub fn open() -> SlotHashes {
        let mut count = 0u64;
        read(0, &mut count as *mut u64 as *mut u8, 8);
        SlotHashes { count }
    }

    /// The number of the slot in this place, 0 where there is none.
    pub fn slot(&self, place: u64) -> u64 {
        let mut slot = 0u64;
        read(8 + 40 * place, &mut slot as *mut u64 as *mut u8, 8);
        slot
    }

    /// Its hash, zero where there is none. (The chain does not write sysvars into accounts, so it goes over the stack.)
    pub fn hash(&self, place: u64) -> [u64; 4] {
        let mut hash = [0; 4];
        read(16 + 40 * place, hash.as_mut_ptr() as *mut u8, 32);
        hash
    }
}

fn read(offset: u64, out: *mut u8, len: u64) {
    unsafe { rt::sol_get_sysvar(SLOT_HASHES.as_ptr(), out, offset, len) };
}

/// Lamports that keep an account of `len` bytes for ever, as the rent sysvar says. Its threshold is an f64 (2.0 before SIMD-0194, 1.0
/// after); taken apart here, for programs have no floating point.
pub fn rent_exempt(len: u64) -> u64 {
    let mut raw = [0u64; 3];
    unsafe { rt::sol_get_rent_sysvar(raw.as_mut_ptr() as *mut u8) };
    let yearly = (len + 128).saturating_mul(raw[0]);
    times_f64(yearly, raw[1])
}

/// floor(a * f) for the bits of a positive f64 below 2^63.
pub fn times_f64(a: u64, bits: u64) -> u64 {
    let exponent = (bits >> 52 & 0x7ff) as i64 - 1075;
    let product = a as u128 * ((bits & ((1 << 52) - 1)) | 1 << 52) as u128;
    let shifted = if exponent < -127 { 0 } else if exponent < 0 { product >> (-exponent) as u32 } else { product << (exponent as u32 & 127) };
    if shifted >> 64 != 0 { u64::MAX } else { shifted as u64 }
}

pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut out = [0u8; 32];
    unsafe { rt::sol_sha256(parts.as_ptr(), parts.len() as u64, out.as_mut_ptr()) };
    out
}

pub fn log(s: &str) {
    unsafe { rt::sol_log_(s.as_ptr(), s.len() as u64) }
}

/// A line `Program data: BASE64 …` for whoever reads the logs.
pub fn log_data(parts: &[&[u8]]) {
    unsafe { rt::sol_log_data(parts.as_ptr(), parts.len() as u64) }
}

pub fn log_compute_units() {
    unsafe { rt::sol_log_compute_units_() }
}

/// The derived address and its bump. About 1,500 compute units a try: store the bump.
pub fn find_address(seeds: &[&[u8]], program: &Pubkey, key: &mut Pubkey) -> u8 {
    let mut bump = 0u8;
    unsafe { rt::sol_try_find_program_address(seeds.as_ptr(), seeds.len() as u64, program.as_ptr(), key.as_mut_ptr(), &mut bump) };
    bump
}

/// Whether `key` is the address of these seeds, bump included.
pub fn is_address(key: &Pubkey, seeds: &[&[u8]], program: &Pubkey) -> bool {
    let mut made = [0u8; 32];
    let failed = unsafe { rt::sol_create_program_address(seeds.as_ptr(), seeds.len() as u64, program.as_ptr(), made.as_mut_ptr()) };
    failed == 0 && same(key, &made)
}

/// Equality of keys. By syscall: BPF knows no unaligned loads, so the compiler would compare byte by byte.
#[inline(never)]
pub fn same(a: &Pubkey, b: &Pubkey) -> bool {
    #[cfg(target_arch = "bpf")]
    {
        let mut difference = 0;
        unsafe { rt::sol_memcmp_(a.as_ptr(), b.as_ptr(), 32, &mut difference) };
        difference == 0
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        a == b
    }
}
