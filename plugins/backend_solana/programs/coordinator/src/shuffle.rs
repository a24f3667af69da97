//! Seeded permutations (psyche_core/coordinator/shuffle.py). A draw is asked for a whole set of positions at once: each of the 90
//! rounds of the swap-or-not shuffle mirrors positions around its pivot, and mirroring 256 bits costs no more than a few positions.
use crate::image::{Set, MAX_CLIENTS};
use crate::set;
use psyche_common::runtime::sol_sha256;

/// What a draw is for.
#[derive(Clone, Copy)]
pub enum Draw {
    Witnesses,
    Committee,
}

const ROUNDS: u8 = 90;

/// What moves through a shuffle together: a set, and one number.
pub struct Moved {
    pub set: Set,
    pub one: usize,
}

fn hash(parts: &[&[u8]], out: &mut Set) {
    unsafe { sol_sha256(parts.as_ptr(), parts.len() as u64, out.as_mut_ptr() as *mut u8) };
}

fn bytes(words: &Set) -> &[u8; 32] { unsafe { &*(words as *const Set as *const [u8; 32]) } }

/// Moves indices below `count` (1 to 256) to their positions in the draw, or with `back` positions to their indices.
#[inline(never)]
pub fn draw(moved: &mut Moved, count: usize, seed: u64, which: Draw, back: bool) {
    let mut words = [0u64; 4];
    hash(&[&seed.to_le_bytes()], &mut words);
    let inner = *bytes(&words);
    let salt: &[u8] = match which { Draw::Witnesses => b"witness", Draw::Committee => b"committee" };
    hash(&[&inner, salt], &mut words);
    // the seed, the round's number, the number of the block (always 0: there are 256 positions in one)
    let mut source = [0u8; 40];
    source[..32].copy_from_slice(bytes(&words));
    let mut mirror = Mirror { words: [0; 13], valid: [0; 4], pivot: 0, count };
    set::fill(&mut mirror.valid, count);
    let mut number = 0;
    while number < ROUNDS {
        source[32] = if back { ROUNDS - 1 - number } else { number };
        hash(&[&source[..33]], &mut words);
        let pivot = (words[0] % count as u64) as usize;
        hash(&[&source[..37]], &mut words);
        let one = moved.one;
        let flip = if pivot >= one { pivot - one } else { (pivot + count).wrapping_sub(one) };
        if set::has(&words, one.max(flip)) {
            moved.one = flip;
        }
        mirror.pivot = pivot;
        mirror.swap(&mut moved.set, &words);
        number += 1;
    }
}

/// Position i and pivot - i mirror each other, and above the pivot i and pivot + count - i.
struct Mirror {
    /// The mirror image of 256 bits is put into words 4 to 7; the others stay zero.
    words: [u64; 13],
    /// The bits below `count`.
    valid: Set,
    pivot: usize,
    count: usize,
}

impl Mirror {
    /// One round: `swaps` says at the higher position of each pair whether the two change places.
    #[inline(always)]
    fn swap(&mut self, positions: &mut Set, swaps: &Set) {
        let higher = self.higher();
        let mut mirrored = [0; 4];
        self.image(positions, &mut mirrored);
        let mut changes = [0; 4];
        for word in 0..4 {
            changes[word] = (positions[word] ^ mirrored[word]) & swaps[word] & higher[word];
        }
        self.image(&changes, &mut mirrored);
        for word in 0..4 {
            positions[word] ^= changes[word] ^ (mirrored[word] & self.valid[word]);
        }
    }

    /// The higher positions of all pairs.
    #[inline(always)]
    fn higher(&self) -> Set {
        let mut edges = [0; 6];
        toggle(&mut edges, self.pivot / 2 + 1);
        toggle(&mut edges, self.pivot + 1);
        toggle(&mut edges, (self.pivot + self.count) / 2 + 1);
        toggle(&mut edges, self.count);
        [edges[0], edges[0] ^ edges[1], edges[0] ^ edges[1] ^ edges[2], edges[0] ^ edges[1] ^ edges[2] ^ edges[3]]
    }

    /// Where each bit's mirror image is; from `count` on what is there means nothing.
    #[inline(always)]
    fn image(&mut self, from: &Set, out: &mut Set) {
        for word in 0..4 {
            self.words[7 - word] = from[word].reverse_bits();
        }
        let low = 256 + 255 - self.pivot;
        let high = low - self.count;
        let (low_shift, high_shift) = ((low & 63) as u32, (high & 63) as u32);
        let words = self.words.as_ptr();
        unsafe {
            let (low, high) = (words.add(low >> 6), words.add(high >> 6));
            let (mut low_word, mut high_word) = (*low, *high);
            for word in 0..4 {
                let (low_next, high_next) = (*low.add(word + 1), *high.add(word + 1));
                out[word] = low_word >> low_shift | low_next << 1 << (63 - low_shift);
                out[word] |= high_word >> high_shift | high_next << 1 << (63 - high_shift);
                (low_word, high_word) = (low_next, high_next);
            }
        }
    }
}

/// Turns over all bits from one on, in words each of which is to be combined with all before it.
#[inline(always)]
fn toggle(words: &mut [u64; 6], bit: usize) {
    let mask = u64::MAX << (bit & 63);
    unsafe {
        *words.get_unchecked_mut(bit >> 6) ^= mask;
        *words.get_unchecked_mut((bit >> 6) + 1) ^= !mask;
    }
}
/// The slots of a set in Fisher-Yates order drawn from the generator with this seed; how many they are.
#[inline(never)]
pub fn shuffled(slots: &Set, seed: u64, order: &mut [u8; MAX_CLIENTS]) -> usize {
    let first = order.as_mut_ptr();
    let (mut len, mut slot) = (0usize, 0u8);
    for word in slots {
        let mut bits = *word;
        for _ in 0..64 {
            if bits & 1 == 1 {
                unsafe { *first.add(len & 255) = slot };
                len += 1;
            }
            bits >>= 1;
            slot = slot.wrapping_add(1);
        }
    }
    let (mut state, mut left) = (seed, len as u64);
    while left > 1 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let other = state % left;
        left -= 1;
        unsafe { core::ptr::swap(first.add(left as usize & 255), first.add(other as usize & 255)) };
    }
    len
}
