//! Exact arithmetic on u64 whose intermediate values need 128 bits.

/// floor(a * b / c), None when c is 0 or the quotient needs more than 64 bits. Long division bit by bit.
pub fn mul_div(a: u64, b: u64, c: u64) -> Option<u64> {
    let product = a as u128 * b as u128;
    let (high, low) = ((product >> 64) as u64, product as u64);
    if c == 0 || high >= c {
        return None;
    }
    if high == 0 {
        return Some(low / c);
    }
    let (mut rest, mut quotient) = (high, 0u64);
    let mut bit = 64;
    while bit > 0 {
        bit -= 1;
        let carry = rest >> 63;
        rest = rest << 1 | (low >> bit & 1);
        quotient <<= 1;
        if carry == 1 || rest >= c {
            rest = rest.wrapping_sub(c);
            quotient |= 1;
        }
    }
    Some(quotient)
}

#[cfg(test)]
mod tests {
    use super::mul_div;

    #[test]
    fn agrees_with_128_bits() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> (state >> 58)
        };
        for _ in 0..200_000 {
            let (a, b, c) = (next(), next(), next());
            let want = if c == 0 { None } else { u64::try_from(a as u128 * b as u128 / c as u128).ok() };
            assert_eq!(mul_div(a, b, c), want, "{a} {b} {c}");
        }
    }
}
