//! The commitments that a proof of two results is about (psyche_core/wire/messages.py).
use crate::image::{Interval, Key};
use crate::run::{heap, Run};
use crate::verified::as_bytes;
use psyche_common::runtime::sol_sha256;

const TAG: &[u8] = b"psyche/commitment/2";

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

/// The commitments to two payloads for one share: SHA-256 over canonical CBOR of tag, instance, epoch, step, seed, share, trainer,
/// payload.
#[inline(never)]
pub fn commitments(run: &Run, judged: usize, share: &[Interval], trainer: &Key, results: &[SignedResult; 2], out: &mut [[u8; 32]; 2]) {
    let mut writer = Writer { to: heap::encoded(), len: 0 };
    let round = run.image.round(judged);
    writer.head(LIST, 8);
    writer.head(TEXT, TAG.len() as u64);
    writer.put(TAG);
    writer.head(BYTES, 32);
    writer.put(as_bytes(&run.image.instance));
    writer.head(UNSIGNED, u64::from(run.image.progress.epoch));
    writer.head(UNSIGNED, round.step);
    writer.head(UNSIGNED, round.seed);
    writer.head(LIST, share.len() as u64);
    for interval in share {
        writer.head(LIST, 2);
        writer.head(UNSIGNED, interval.first);
        writer.head(UNSIGNED, interval.last);
    }
    writer.head(BYTES, 32);
    writer.put(as_bytes(trainer));
    writer.head(BYTES, 32);
    let len = writer.len;
    for (result, commitment) in results.iter().zip(out) {
        writer.len = len;
        writer.put(result.payload_hash);
        let parts: [&[u8]; 1] = [unsafe { core::slice::from_raw_parts(writer.to, writer.len) }];
        unsafe { sol_sha256(parts.as_ptr(), 1, commitment.as_mut_ptr()) };
    }
}
