//! Arithmetic over operands from an account, for comparison with Python: what the linker rewrites, and what programs rely on.
//!
//! The account holds n pairs (a: u128, b: u128), then for each pair OPERATIONS results of 16 bytes.
#![no_std]
use psyche_common::arithmetic::mul_div;
use psyche_common::platform::times_f64;
use psyche_common::Input;

const OPERATIONS: usize = 21;
const NONE: u128 = 1 << 100;

/// # Safety
/// Called by the loader only.
#[no_mangle]
pub unsafe extern "C" fn entrypoint(buffer: *mut u8) -> u64 {
    let Ok(input) = Input::parse(buffer) else { return 1 };
    let data = input.table[0].data_mut();
    let pairs = data.len() / (32 + 16 * OPERATIONS);
    for pair in 0..pairs {
        let operands = core::ptr::read_unaligned(data.as_ptr().add(32 * pair) as *const [u128; 2]);
        let place = data.as_mut_ptr().add(32 * pairs + 16 * OPERATIONS * pair);
        compute(&operands, &mut *(place as *mut [[u64; 2]; OPERATIONS]));
    }
    0
}

#[inline(never)]
fn compute(operands: &[u128; 2], results: &mut [[u64; 2]; OPERATIONS]) {
    let mut next = 0;
    let mut put = |value: u128| {
        results[next] = [value as u64, (value >> 64) as u64];
        next += 1;
    };
    let [a, b] = *operands;
    let shift = b as u32 & 127;
    let (x, y, z) = (a as u64, b as u64, (a >> 64) as u64);
    let (p, q) = (x as i64, y as i64);
    put(a.wrapping_mul(b));
    put(a.wrapping_add(b));
    put(a.wrapping_sub(b));
    put(a << shift);
    put(a >> shift);
    put(((a as i128) >> shift) as u128);
    put(a.checked_mul(b).unwrap_or(NONE));
    put(a.checked_add(b).unwrap_or(NONE));
    put(x.checked_mul(y).map_or(NONE, u128::from));
    put(x.checked_add(y).map_or(NONE, u128::from));
    put(p.checked_mul(q).map_or(NONE, |value| value as u64 as u128));
    put(if q == 0 { NONE } else { p.wrapping_div(q) as u64 as u128 });
    put(if q == 0 { NONE } else { p.wrapping_rem(q) as u64 as u128 });
    let (i, j) = (p as i32, q as i32);
    put(if j == 0 { NONE } else { (i.wrapping_div(j) as u32 as u128) << 64 | i.wrapping_rem(j) as u32 as u128 });
    let (k, l) = (p as i8, q as i8);
    put(if l == 0 { NONE } else { (k.wrapping_div(l) as u8 as u128) << 64 | k.wrapping_rem(l) as u8 as u128 });
    put(if y == 0 { NONE } else { (x / y) as u128 | ((x % y) as u128) << 64 });
    put((x.isqrt() as u128) << 64 | x.leading_zeros() as u128);
    put((x.rotate_left(shift) as u128) << 64 | (x as u32).wrapping_mul(y as u32).wrapping_sub(7) as u128);
    put(((x as u32).rotate_right(shift & 31) as u128) << 64 | (x.count_ones() as u128) << 32 | (x as i8 as i32 >> 2) as u32 as u128);
    put(mul_div(x, y, z).map_or(NONE, u128::from));
    put(times_f64(x, (y & ((1 << 52) - 1)) | (1023 - 70 + (z % 140)) << 52) as u128);
}
