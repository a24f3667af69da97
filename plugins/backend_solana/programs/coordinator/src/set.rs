//! Sets of slots: 256 bits in four words.
use crate::image::{Key, Set};

#[inline(always)]
pub fn has(set: &Set, slot: usize) -> bool { set[slot >> 6 & 3] >> (slot & 63) & 1 == 1 }

#[inline(always)]
pub fn insert(set: &mut Set, slot: usize) { set[slot >> 6 & 3] |= 1 << (slot & 63) }

#[inline(always)]
pub fn remove(set: &mut Set, slot: usize) { set[slot >> 6 & 3] &= !(1 << (slot & 63)) }

#[inline(always)]
pub fn is_empty(set: &Set) -> bool { set[0] | set[1] | set[2] | set[3] == 0 }

#[inline(always)]
pub fn intersect(set: &mut Set, other: &Set) {
    for word in 0..4 {
        set[word] &= other[word];
    }
}

#[inline(always)]
pub fn unite(set: &mut Set, other: &Set) {
    for word in 0..4 {
        set[word] |= other[word];
    }
}

#[inline(always)]
pub fn subtract(set: &mut Set, other: &Set) {
    for word in 0..4 {
        set[word] &= !other[word];
    }
}

#[inline(always)]
pub fn is_subset(set: &Set, of: &Set) -> bool { (0..4).all(|word| set[word] & !of[word] == 0) }

pub fn count(set: &Set) -> usize { set.iter().map(|word| word.count_ones() as usize).sum() }

/// The first `n` numbers.
pub fn fill(set: &mut Set, n: usize) {
    for (word, bits) in set.iter_mut().enumerate() {
        let left = n.saturating_sub(64 * word);
        *bits = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
    }
}

/// 64 bits of a set from bit `at` on, at most 255.
pub fn window(set: &Set, at: usize) -> u64 {
    let (word, shift) = (at >> 6 & 3, (at & 63) as u32);
    let next = if word < 3 { set[word + 1] } else { 0 };
    set[word] >> shift | next << 1 << (63 - shift)
}

/// The lowest number in a set that is not empty.
pub fn lowest(set: &Set) -> usize {
    let mut slot = 0;
    while slot < 255 && !has(set, slot) {
        slot += 1;
    }
    slot
}

/// Takes the lowest number out of a set that is not empty.
pub fn take_first(set: &mut Set) -> usize {
    let mut word = 0;
    while word < 3 && set[word] == 0 {
        word += 1;
    }
    let bits = set[word];
    set[word] = bits & bits.wrapping_sub(1);
    64 * word + (bits & bits.wrapping_neg()).wrapping_sub(1).count_ones() as usize
}

/// A bitmap of the image at an alignment of 4.
pub fn from_words(words: &Key, out: &mut Set) {
    for (word, bits) in out.iter_mut().enumerate() {
        *bits = u64::from(words[2 * word]) | u64::from(words[2 * word + 1]) << 32;
    }
}

/// The number at this place among those in the set, ascending; one must be there.
pub fn nth(set: &Set, mut place: usize) -> usize {
    let mut word = 0;
    while word < 3 && place >= set[word].count_ones() as usize {
        place -= set[word].count_ones() as usize;
        word += 1;
    }
    let (mut bits, mut start, mut width) = (set[word], 0usize, 32u32);
    while width > 0 {
        let low = (bits & ((1 << width) - 1)).count_ones() as usize;
        if place >= low {
            place -= low;
            bits >>= width;
            start += width as usize;
        }
        width >>= 1;
    }
    64 * word + start
}
