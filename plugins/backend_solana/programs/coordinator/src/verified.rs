//! Proof that the Ed25519 program verified signatures, in the instruction just before (psyche_core/wire/signing.py). That instruction
//! has to be, byte for byte, the one that `layouts.coordinator.signatures_verified` makes.
use crate::image::Key;
use psyche_common::{Account, Error, Res};

/// Ed25519SigVerify111111111111111111111111111
const ED25519: [u8; 32] = [
    3, 125, 70, 214, 124, 147, 251, 190, 18, 249, 66, 143, 131, 141, 64, 255, 5, 112, 116, 73, 39, 244, 138, 100, 252, 202, 112, 68, 128,
    0, 0, 0,
];
/// Sysvar1nstructions1111111111111111111111111
const INSTRUCTIONS: [u8; 32] = [
    6, 167, 213, 23, 24, 123, 209, 102, 53, 218, 212, 4, 85, 253, 194, 192, 193, 36, 198, 143, 33, 86, 117, 165, 219, 186, 203, 95, 8,
    0, 0, 0,
];

/// Prefix and domain of what is signed, each domain with its length; the instance with its own follows, and the body.
pub const COMMITMENT: &[u8] = b"psyche/1\x0acommitment";
pub const JOIN: &[u8] = b"psyche/1\x04join";
const BODY_BYTES: usize = 32;

/// A key as bytes.
pub fn as_bytes(key: &Key) -> &[u8; 32] { unsafe { &*(key as *const Key as *const [u8; 32]) } }

/// Takes expected bytes off the front of others.
struct Expected<'a>(&'a [u8]);

impl Expected<'_> {
    fn is(&mut self, bytes: &[u8]) -> bool {
        if self.0.len() < bytes.len() || self.0[..bytes.len()] != *bytes {
            return false;
        }
        self.0 = &self.0[bytes.len()..];
        true
    }

    fn is_u16(&mut self, number: usize) -> bool { self.is(&(number as u16).to_le_bytes()) }
}

fn u16_at(data: &[u8], at: usize) -> usize {
    if at + 2 > data.len() { usize::MAX } else { data[at] as usize | (data[at + 1] as usize) << 8 }
}

/// What was to be signed by `key`: one or two bodies, each with its signature.
pub struct Verified<'a> {
    pub key: &'a Key,
    pub instance: &'a Key,
    pub domain: &'a [u8],
    pub signed: &'a [(&'a [u8; BODY_BYTES], &'a [u8; 64])],
}

impl Verified<'_> {
    /// Whether the instruction before this one verified it. Refuses another account than the instructions' sysvar.
    #[inline(never)]
    pub fn just_before(&self, sysvar: &Account) -> Res<bool> {
        if *sysvar.key() != INSTRUCTIONS {
            return Err(Error::WRONG_ADDRESS);
        }
        let data = sysvar.data();
        let current = u16_at(data, data.len().wrapping_sub(2));
        if current == 0 || current >= u16_at(data, 0) {
            return Ok(false);
        }
        let at = u16_at(data, 2 * current); // of the one before: the offsets follow their number
        if at > data.len() {
            return Ok(false);
        }
        let (count, message) = (self.signed.len(), self.domain.len() + 1 + 32 + BODY_BYTES);
        let key = 2 + 14 * count;
        let first = key + 32;
        let mut expected = Expected(&data[at..]);
        let mut verified = expected.is_u16(0) && expected.is(&ED25519) && expected.is_u16(first + count * (64 + message));
        verified = verified && expected.is(&[count as u8, 0]);
        for number in 0..count {
            let place = first + number * (64 + message);
            for number in [place, 0xffff, key, 0xffff, place + 64, message, 0xffff] {
                verified = verified && expected.is_u16(number);
            }
        }
        verified = verified && expected.is(as_bytes(self.key));
        for (body, signature) in self.signed {
            verified = verified && expected.is(*signature) && expected.is(self.domain) && expected.is(&[32]);
            verified = verified && expected.is(as_bytes(self.instance)) && expected.is(*body);
        }
        Ok(verified)
    }
}
