//! Seeded permutations (psyche_core/coordinator/round/shuffle.py). A draw is asked for a whole set of positions at once: each of the 90
//! rounds of the swap-or-not shuffle mirrors positions around its pivot, and mirroring 256 bits costs no more than a few positions.
use crate::image::{Set, MAX_CLIENTS};
use crate::set;
use core::mem::MaybeUninit;
use psyche_common::runtime::sol_sha256;

const ROUNDS: u8 = 90;

/// The hashes of one draw. They are made from one place in memory, where only the number of the round changes.
struct Source {
    /// The seed, the round's number, the number of the block (always 0: there are 256 positions in one).
    bytes: [u8; 40],
    swaps: Set,
}

impl Source {
    #[inline(always)]
    fn new(seed: u64) -> Source {
        let mut source = Source { bytes: [0; 40], swaps: [0; 4] };
        let (number, mut words) = (seed.to_le_bytes(), [0; 4]);
        hash(&[&number], &mut words);
        let inner = *bytes(&words);
        hash(&[&inner, b"witness"], &mut words);
        source.bytes[..32].copy_from_slice(bytes(&words));
        source
    }

    /// What the pivot and what the swaps are hashed from, to be written once for all rounds.
    #[inline(always)]
    fn slices(&self) -> [RawSlice; 2] { [[self.bytes.as_ptr() as usize, 33], [self.bytes.as_ptr() as usize, 37]] }

    /// The pivot of a round below `count`; which positions swap is in `swaps` then.
    #[inline(always)]
    fn round(&mut self, slices: &[RawSlice; 2], number: u8, count: usize) -> usize {
        self.bytes[32] = number;
        let out = self.swaps.as_mut_ptr();
        unsafe { sol_sha256(&slices[0] as *const RawSlice as *const &[u8], 1, out as *mut u8) };
        let pivot = unsafe { *out }.checked_rem(count as u64).unwrap_or(0) as usize;
        unsafe { sol_sha256(&slices[1] as *const RawSlice as *const &[u8], 1, out as *mut u8) };
        pivot
    }
}

/// Address and length, as the hash's syscall takes them.
type RawSlice = [usize; 2];

fn hash(parts: &[&[u8]], out: &mut Set) {
    unsafe { sol_sha256(parts.as_ptr(), parts.len() as u64, out.as_mut_ptr() as *mut u8) };
}

fn bytes(words: &Set) -> &[u8; 32] { unsafe { &*(words as *const Set as *const [u8; 32]) } }

/// Moves a set of indices below `count` (1 to 256) to their positions in the draw, or with `back` of positions to their indices.
#[inline(never)]
pub fn draw(set: &mut Set, count: usize, seed: u64, back: bool) {
    let mut source = Source::new(seed);
    let slices = source.slices();
    let mut valid = [0; 4];
    set::fill(&mut valid, count);
    // the mirror image of the set is kept beside it: both change at the same places, so one round after the other it is only turned
    let mut pivot = count.wrapping_sub(1);
    let (mut mirrored, mut swapped) = (Shifted::new(), Shifted::new());
    swapped.put_reversed(set);
    let image = swapped.mirror(pivot, count);
    for word in 0..4 {
        mirrored.words[4 + word] = image[word] & valid[word];
    }
    let mut number = 0;
    while number < ROUNDS {
        let next = source.round(&slices, if back { ROUNDS - 1 - number } else { number }, count);
        // around another pivot: by how far the two are apart
        let by = if pivot >= next { pivot.wrapping_sub(next) } else { pivot.wrapping_add(count).wrapping_sub(next) };
        let low = by.wrapping_add(256);
        let image = mirrored.read(low, low.wrapping_sub(count), count.wrapping_sub(by).wrapping_sub(1) >> 6);
        pivot = next;
        let higher = higher(pivot, count, &valid);
        let mut changes = [0; 4];
        for word in 0..4 {
            changes[word] = (set[word] ^ image[word]) & source.swaps[word] & higher[word];
        }
        swapped.put_reversed(&changes);
        let lower = swapped.mirror(pivot, count);
        for word in 0..4 {
            // both of a pair change, so the mirror image changes where the set does
            changes[word] |= lower[word];
            set[word] ^= changes[word];
            mirrored.words[4 + word] = (image[word] ^ changes[word]) & valid[word];
        }
        number += 1;
    }
    set::intersect(set, &valid);
}

/// The position of an index below `count` in the draw.
#[inline(never)]
pub fn position(index: usize, count: usize, seed: u64) -> usize {
    let mut source = Source::new(seed);
    let slices = source.slices();
    let (mut at, mut number) = (index, 0);
    while number < ROUNDS {
        let pivot = source.round(&slices, number, count);
        let flip = if pivot >= at { pivot.wrapping_sub(at) } else { pivot.wrapping_add(count).wrapping_sub(at) };
        if set::has(&source.swaps, at.max(flip)) {
            at = flip;
        }
        number += 1;
    }
    at
}

/// The higher positions of all pairs. Position i and pivot - i mirror each other, and above the pivot i and pivot + count - i.
#[inline(always)]
fn higher(pivot: usize, count: usize, valid: &Set) -> Set {
    let mut edges = [0; 6];
    toggle(&mut edges, (pivot >> 1).wrapping_add(1));
    toggle(&mut edges, pivot.wrapping_add(1));
    toggle(&mut edges, (pivot.wrapping_add(count) >> 1).wrapping_add(1));
    let (second, third) = (edges[0] ^ edges[1], edges[2] ^ edges[3]);
    [edges[0] & valid[0], second & valid[1], (second ^ edges[2]) & valid[2], (second ^ third) & valid[3]]
}

/// 256 bits in words 4 to 7 between zeros, to be read from any bit on.
struct Shifted {
    words: [u64; 12],
}

impl Shifted {
    #[inline(always)]
    fn new() -> Shifted { Shifted { words: [0; 12] } }

    #[inline(always)]
    fn put_reversed(&mut self, from: &Set) {
        for word in 0..4 {
            self.words[7 - word] = from[word].reverse_bits();
        }
    }

    /// Where the mirror image of each bit is, of what was put reversed; from `count` on what is there means nothing.
    #[inline(always)]
    fn mirror(&self, pivot: usize, count: usize) -> Set {
        let low = 511usize.wrapping_sub(pivot);
        self.read(low, low.wrapping_sub(count), pivot >> 6)
    }

    /// 256 bits: those from bit `low` on up to word `last` of them, and those from bit `high` on from there.
    #[inline(always)]
    fn read(&self, low: usize, high: usize, last: usize) -> Set {
        let mut out = MaybeUninit::<Set>::uninit();
        let place = out.as_mut_ptr();
        match last & 3 {
            0 => self.join::<0>(low, high, place),
            1 => self.join::<1>(low, high, place),
            2 => self.join::<2>(low, high, place),
            _ => self.join::<3>(low, high, place),
        }
        unsafe { out.assume_init() }
    }

    #[inline(never)]
    fn join<const LAST: usize>(&self, low: usize, high: usize, out: *mut Set) {
        let words = self.words.as_ptr();
        unsafe {
            let out = out as *mut u64;
            let from = words.add((low & 511) >> 6);
            let (shift, factor) = ((low & 63) as u32, 2u64.wrapping_shl(!low as u32));
            let mut this = *from;
            for word in 0..=LAST {
                let next = *from.add(word + 1);
                *out.add(word) = this.wrapping_shr(shift) | next.wrapping_mul(factor);
                this = next;
            }
            let from = words.add((high & 511) >> 6);
            let (shift, factor) = ((high & 63) as u32, 2u64.wrapping_shl(!high as u32));
            let mut this = *from.add(LAST);
            for word in LAST..4 {
                let next = *from.add(word + 1);
                let joined = this.wrapping_shr(shift) | next.wrapping_mul(factor);
                *out.add(word) = if word == LAST { *out.add(word) | joined } else { joined };
                this = next;
            }
        }
    }
}

/// Turns over all bits from one on, in words each of which is to be combined with all before it.
#[inline(always)]
fn toggle(words: &mut [u64; 6], bit: usize) {
    let mask = u64::MAX << (bit & 63);
    unsafe {
        let word = words.as_mut_ptr().add((bit & 511) >> 6);
        *word ^= mask;
        *word.add(1) ^= !mask;
    }
}

/// Room for the slots of a set in some order.
pub type Order = MaybeUninit<[u8; MAX_CLIENTS]>;

/// The slots of a set in Fisher-Yates order drawn from the generator with this seed.
#[inline(always)]
pub fn shuffled<'a>(slots: &Set, seed: u64, order: &'a mut Order) -> &'a [u8] {
    let first = order.as_mut_ptr() as *mut u8;
    let len = shuffle(slots, seed, first);
    unsafe { core::slice::from_raw_parts(first, len) }
}

/// Writes the slots in their order from `first` on; how many they are.
#[inline(never)]
fn shuffle(slots: &Set, seed: u64, first: *mut u8) -> usize {
    let (mut end, mut from) = (first, 0u64);
    for word in slots {
        let (mut bits, mut slot) = (*word, from);
        while bits != 0 {
            if bits & 1 != 0 {
                unsafe {
                    *end = slot as u8;
                    end = end.add(1);
                }
            }
            bits >>= 1;
            slot = slot.wrapping_add(1);
        }
        from = from.wrapping_add(64);
    }
    let len = end as usize - first as usize;
    let (mut state, mut left) = (seed, len);
    while left > 1 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        unsafe {
            let other = first.add((state % left as u64) as usize);
            left -= 1;
            let last = first.add(left);
            (*last, *other) = (*other, *last);
        }
    }
    len
}
