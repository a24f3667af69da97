//! Syscalls, the memory functions that compiled code calls, the panic handler. Only for the chain, and empty on a host.
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
        let mut i = 0;
        while i < n {
            let (x, y) = (*a.add(i), *b.add(i));
            if x != y {
                return x as i32 - y as i32;
            }
            i += 1;
        }
        0
    }

    #[no_mangle]
    unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
        memcmp(a, b, n)
    }
}
