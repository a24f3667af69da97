//! Syscalls, the memory functions that compiled code calls, the panic handler. Only for the chain; on a host, where only
//! unit tests run, most syscalls panic.
#![allow(clippy::missing_safety_doc)]

#[cfg(target_arch = "bpf")]
#[allow(improper_ctypes)]
extern "C" {
    pub fn sol_log_(p: *const u8, n: u64);
    pub fn sol_log_data(parts: *const &[u8], n: u64);
    pub fn sol_log_compute_units_();
    pub fn sol_panic_(file: *const u8, len: u64, line: u64, col: u64) -> !;
    pub fn sol_memcpy_(d: *mut u8, s: *const u8, n: u64);
    pub fn sol_memmove_(d: *mut u8, s: *const u8, n: u64);
    pub fn sol_memset_(d: *mut u8, c: u8, n: u64);
    pub fn sol_memcmp_(a: *const u8, b: *const u8, n: u64, out: *mut i32);
    pub fn sol_sha256(vals: *const &[u8], n: u64, out: *mut u8) -> u64;
    pub fn sol_get_clock_sysvar(out: *mut u8) -> u64;
    pub fn sol_get_rent_sysvar(out: *mut u8) -> u64;
    pub fn sol_get_sysvar(id: *const u8, out: *mut u8, offset: u64, len: u64) -> u64;
    pub fn sol_create_program_address(seeds: *const &[u8], n: u64, id: *const u8, out: *mut u8) -> u64;
    pub fn sol_try_find_program_address(seeds: *const &[u8], n: u64, id: *const u8, out: *mut u8, bump: *mut u8) -> u64;
    pub fn sol_invoke_signed_c(ins: *const u8, infos: *const u8, n: u64, seeds: *const u8, nseeds: u64) -> u64;
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    match info.location() {
        Some(l) => unsafe { sol_panic_(l.file().as_ptr(), l.file().len() as u64, l.line() as u64, l.column() as u64) },
        None => unsafe { sol_panic_(b"?".as_ptr(), 1, 0, 0) },
    }
}

// platform-tools (target_os = "solana") brings its own memory functions
#[cfg(all(target_arch = "bpf", not(target_os = "solana")))]
mod memory {
    use super::*;

    #[no_mangle]
    unsafe extern "C" fn memcpy(d: *mut u8, s: *const u8, n: usize) -> *mut u8 {
        sol_memcpy_(d, s, n as u64);
        d
    }

    #[no_mangle]
    unsafe extern "C" fn memmove(d: *mut u8, s: *const u8, n: usize) -> *mut u8 {
        sol_memmove_(d, s, n as u64);
        d
    }

    #[no_mangle]
    unsafe extern "C" fn memset(d: *mut u8, c: i32, n: usize) -> *mut u8 {
        sol_memset_(d, c as u8, n as u64);
        d
    }

    #[no_mangle]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
        let mut difference = 0;
        sol_memcmp_(a, b, n as u64, &mut difference);
        difference
    }

    #[no_mangle]
    unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
        memcmp(a, b, n)
    }
}

/// The memory functions of the chain, for unit tests on a host.
#[cfg(not(target_arch = "bpf"))]
mod host_memory {
    pub unsafe fn sol_memcpy_(d: *mut u8, s: *const u8, n: u64) { core::ptr::copy_nonoverlapping(s, d, n as usize) }
    pub unsafe fn sol_memmove_(d: *mut u8, s: *const u8, n: u64) { core::ptr::copy(s, d, n as usize) }
    pub unsafe fn sol_memset_(d: *mut u8, c: u8, n: u64) { core::ptr::write_bytes(d, c, n as usize) }
    pub unsafe fn sol_memcmp_(a: *const u8, b: *const u8, n: u64, out: *mut i32) {
        let (a, b) = (core::slice::from_raw_parts(a, n as usize), core::slice::from_raw_parts(b, n as usize));
        *out = a.iter().zip(b).map(|(x, y)| *x as i32 - *y as i32).find(|difference| *difference != 0).unwrap_or(0);
    }
}
#[cfg(not(target_arch = "bpf"))]
pub use host_memory::*;

#[cfg(not(target_arch = "bpf"))]
macro_rules! absent {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => { $(pub unsafe fn $name($(_: $argument),*) $(-> $result)? { panic!("no chain here") })* };
}

#[cfg(not(target_arch = "bpf"))]
absent! {
    sol_log_(*const u8, u64);
    sol_log_data(*const &[u8], u64);
    sol_log_compute_units_();
    sol_sha256(*const &[u8], u64, *mut u8) -> u64;
    sol_get_clock_sysvar(*mut u8) -> u64;
    sol_get_rent_sysvar(*mut u8) -> u64;
    sol_get_sysvar(*const u8, *mut u8, u64, u64) -> u64;
    sol_create_program_address(*const &[u8], u64, *const u8, *mut u8) -> u64;
    sol_try_find_program_address(*const &[u8], u64, *const u8, *mut u8, *mut u8) -> u64;
    sol_invoke_signed_c(*const u8, *const u8, u64, *const u8, u64) -> u64;
}
