//! Proof that the Ed25519 program verified two signatures of commitments, in the instruction just before
//! (psyche_core/wire/messages.py, signing.py). That instruction has to be, byte for byte, the one that `layouts.coordinator.signatures_verified` makes.
use crate::image::{Interval, Key};
use crate::refusal::{Outcome, INVALID_EVIDENCE};
use crate::run::{heap, Run};
use psyche_common::runtime::sol_sha256;
use psyche_common::{Account, Error};

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
const DOMAIN: &[u8] = b"psyche/1\x0acommitment";
const TAG: &[u8] = b"psyche/commitment/1";

pub struct SignedResult<'a> {
    pub payload_hash: &'a [u8; 32],
    pub signature: &'a [u8; 64],
}

/// Writes one after the other, and remembers how far it came.
struct Writer {
    to: *mut u8,
    len: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.to.add(self.len), bytes.len()) };
        self.len += bytes.len();
    }

    /// The head of a CBOR item: its kind in the upper three bits, and a number in the shortest form.
    fn head(&mut self, kind: u8, number: u64) {
        let bytes = number.to_be_bytes();
        match number {
            0..=23 => self.put(&[kind | number as u8]),
            24..=0xff => self.put(&[kind | 24, number as u8]),
            0x100..=0xffff => {
                self.put(&[kind | 25]);
                self.put(&bytes[6..]);
            }
            0x1_0000..=0xffff_ffff => {
                self.put(&[kind | 26]);
                self.put(&bytes[4..]);
            }
            _ => {
                self.put(&[kind | 27]);
                self.put(&bytes);
            }
        }
    }
}

const UNSIGNED: u8 = 0;
const BYTES: u8 = 2 << 5;
const TEXT: u8 = 3 << 5;
const LIST: u8 = 4 << 5;

pub fn run_id(run: &Run) -> &[u8] {
    let id = &run.image.run_id;
    &id[..id.iter().position(|byte| *byte == 0).unwrap_or(id.len())]
}

/// The commitments to two payloads for one share: SHA-256 over canonical CBOR of tag, run, epoch, step, share, trainer, payload.
#[inline(never)]
pub fn commitments(run: &Run, step: u64, share: &[Interval], trainer: &Key, results: &[SignedResult; 2], out: &mut [[u8; 32]; 2]) {
    let mut writer = Writer { to: heap::encoded(), len: 0 };
    writer.head(LIST, 7);
    writer.head(TEXT, TAG.len() as u64);
    writer.put(TAG);
    let id = run_id(run);
    writer.head(TEXT, id.len() as u64);
    writer.put(id);
    writer.head(UNSIGNED, u64::from(run.image.progress.epoch));
    writer.head(UNSIGNED, step);
    writer.head(LIST, share.len() as u64);
    for interval in share {
        writer.head(LIST, 2);
        writer.head(UNSIGNED, interval.first);
        writer.head(UNSIGNED, interval.last);
    }
    writer.head(BYTES, 32);
    writer.put(unsafe { &*(trainer as *const Key as *const [u8; 32]) });
    writer.head(BYTES, 32);
    let len = writer.len;
    for (result, commitment) in results.iter().zip(out) {
        writer.len = len;
        writer.put(result.payload_hash);
        let parts: [&[u8]; 1] = [unsafe { core::slice::from_raw_parts(writer.to, writer.len) }];
        unsafe { sol_sha256(parts.as_ptr(), 1, commitment.as_mut_ptr()) };
    }
}

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

/// Refuses unless both commitments were verified as signed by `key`.
#[inline(never)]
pub fn must_be_verified(run: &Run, sysvar: &Account, key: &Key, commitments: &[[u8; 32]; 2], results: &[SignedResult; 2]) -> Outcome {
    if *sysvar.key() != INSTRUCTIONS {
        return Err(Error::WRONG_ADDRESS.into());
    }
    let data = sysvar.data();
    let current = u16_at(data, data.len().wrapping_sub(2));
    if current == 0 || current >= u16_at(data, 0) {
        return Err(INVALID_EVIDENCE);
    }
    let at = u16_at(data, 2 * current); // of the one before: the offsets follow their number
    if at > data.len() {
        return Err(INVALID_EVIDENCE);
    }
    let id = run_id(run);
    let message = DOMAIN.len() + 1 + id.len() + 32;
    let len = 62 + 2 * (64 + message);
    let mut expected = Expected(&data[at..]);
    let mut verified = expected.is_u16(0) && expected.is(&ED25519) && expected.is_u16(len) && expected.is(&[2, 0]);
    for place in [62, 62 + 64 + message] {
        for number in [place, 0xffff, 30, 0xffff, place + 64, message, 0xffff] {
            verified = verified && expected.is_u16(number);
        }
    }
    verified = verified && expected.is(unsafe { &*(key as *const Key as *const [u8; 32]) });
    for (commitment, result) in commitments.iter().zip(results) {
        verified = verified && expected.is(result.signature) && expected.is(DOMAIN) && expected.is(&[id.len() as u8]);
        verified = verified && expected.is(id) && expected.is(commitment);
    }
    if verified { Ok(()) } else { Err(INVALID_EVIDENCE) }
}
