//! Draws of challenges from a seed of 32 bytes (psyche_core/verification/drawing.py). Sets of at most 256 slots; what is shuffled
//! there at once is drawn here one by one, as far as it is needed.
use crate::elections::of_ranks;
use crate::image::{Set, MAX_CLIENTS, NONE};
use crate::set;
use psyche_common::runtime::sol_sha256;

const DOMAIN: &[u8] = b"psyche/verification-draw/1";
const SEED: &[u8] = b"psyche/verification-seed/1";
const MOST_WATCHED: usize = 8;
const LABEL_BYTES: usize = 32;
pub const TIE_BREAKERS: usize = 3;

pub type Seed = [u8; 32];

/// The seed from which a round draws challenges. `seed`: of the round.
pub fn seed_of(seed: u64) -> Seed {
    let mut out = [0; 32];
    let parts: [&[u8]; 2] = [SEED, &seed.to_le_bytes()];
    unsafe { sol_sha256(parts.as_ptr(), 2, out.as_mut_ptr()) };
    out
}

/// What a number is drawn for.
#[derive(Clone, Copy)]
struct Label {
    bytes: [u8; LABEL_BYTES],
    len: usize,
}

impl Label {
    fn new(name: &[u8]) -> Label { Label { bytes: [0; LABEL_BYTES], len: 0 }.with(name) }

    #[inline(always)]
    fn with(mut self, more: &[u8]) -> Label {
        let end = self.len + more.len();
        if end <= LABEL_BYTES {
            self.bytes[self.len..end].copy_from_slice(more);
            self.len = end;
        }
        self
    }
}

/// The first of the numbers below `below` that are drawn for a label.
#[inline(never)]
fn number(seed: &Seed, label: &Label, below: u64) -> u64 {
    let rest = (u64::MAX % below).wrapping_add(1) % below;
    let mut counter = 0u64;
    loop {
        let mut drawn = [0u64; 4];
        let len = (label.len as u32).to_le_bytes();
        let parts: [&[u8]; 5] = [DOMAIN, seed, &len, &label.bytes[..label.len], &counter.to_le_bytes()];
        unsafe { sol_sha256(parts.as_ptr(), 5, drawn.as_mut_ptr() as *mut u8) };
        for number in drawn {
            if number <= u64::MAX - rest {
                return number % below;
            }
        }
        counter += 1;
    }
}

/// `count` different numbers below `below`, all if there are fewer (Floyd's algorithm).
fn distinct(seed: &Seed, label: Label, count: usize, below: usize, out: &mut Set) {
    *out = [0; 4];
    let count = count.min(below);
    for position in 0..count {
        let last = below - count + position;
        let drawn = number(seed, &label.with(&(position as u32).to_le_bytes()), last as u64 + 1) as usize;
        set::insert(out, if set::has(out, drawn) { last } else { drawn });
    }
}

/// `count` different ones of the slots.
fn some(seed: &Seed, label: Label, count: usize, slots: &Set, out: &mut Set) {
    let mut places = [0; 4];
    distinct(seed, label, count, set::count(slots), &mut places);
    of_ranks(slots, &places, out);
}

/// The slots of a set in a drawn order.
struct Shuffled<'a> {
    seed: &'a Seed,
    label: Label,
    left: Set,
    count: usize,
    position: u32,
}

impl<'a> Shuffled<'a> {
    fn of(slots: &Set, seed: &'a Seed, label: Label) -> Shuffled<'a> {
        Shuffled { seed, label, left: *slots, count: set::count(slots), position: 0 }
    }

    /// The next one, NONE after the last.
    fn next(&mut self) -> usize {
        if self.count == 0 {
            return NONE;
        }
        let place = number(self.seed, &self.label.with(&self.position.to_le_bytes()), self.count as u64) as usize;
        let slot = set::nth(&self.left, place);
        set::remove(&mut self.left, slot);
        self.count -= 1;
        self.position += 1;
        slot
    }
}

/// From what the challenges about a round are drawn.
pub struct Candidates {
    pub height: u64,
    /// Slots with an accepted share that may be challenged.
    pub shares: Set,
    /// Slots that can recompute.
    pub members: Set,
    /// Slots that are challenged anyway.
    pub watched: Set,
    pub percent: usize,
    /// So many challenges at most.
    pub most: usize,
}

/// Puts the challenged slots into `trainers`, and who recomputes the share of each at its place in `verifiers`.
#[inline(never)]
pub fn challenges(seed: &Seed, of: &Candidates, trainers: &mut Set, verifiers: &mut [u8; MAX_CLIENTS]) {
    *trainers = [0; 4];
    let (count, height) = (set::count(&of.shares), of.height.to_le_bytes());
    if count == 0 || of.percent == 0 {
        return;
    }
    let label = |name: &[u8]| Label::new(name).with(&height);
    let (whole, rest) = (count * of.percent / 100, count * of.percent % 100);
    let one_more = number(seed, &label(b"count"), 100) < rest as u64;
    let mut drawn = [0; 4];
    some(seed, label(b"shares"), whole + usize::from(one_more), &of.shares, &mut drawn);
    let mut extra = of.watched;
    set::intersect(&mut extra, &of.shares);
    set::subtract(&mut extra, &drawn);
    if !set::is_empty(&extra) {
        let mut more = [0; 4];
        some(seed, label(b"watched"), MOST_WATCHED, &extra, &mut more);
        set::unite(&mut drawn, &more);
    }
    let mut free = Shuffled::of(&of.members, seed, label(b"verifiers"));
    let mut order = Shuffled::of(&drawn, seed, label(b"order"));
    let (mut first, mut found) = (NONE, 0);
    while found < of.most {
        let trainer = order.next();
        if trainer == NONE {
            return;
        }
        if first == NONE {
            first = free.next();
        }
        let verifier = if first == trainer { free.next() } else { core::mem::replace(&mut first, NONE) };
        if verifier != NONE {
            set::insert(trainers, trainer);
            verifiers[trainer] = verifier as u8;
            found += 1;
        }
    }
}

/// Up to three members that are neither trainer nor verifier.
#[inline(never)]
pub fn tie_breakers(seed: &Seed, height: u32, trainer: usize, verifier: usize, members: &Set, out: &mut Set) {
    let mut others = *members;
    set::remove(&mut others, trainer);
    set::remove(&mut others, verifier);
    let label = Label::new(b"tie-breakers").with(&u64::from(height).to_le_bytes());
    let label = label.with(&(trainer as u32).to_le_bytes()).with(&(verifier as u32).to_le_bytes());
    some(seed, label, TIE_BREAKERS, &others, out);
}
