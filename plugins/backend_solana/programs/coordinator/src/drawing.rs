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

/// What is hashed for a number: domain, seed, length of the label, label, counter. It lies in one place, where only the last two
/// numbers change.
struct Source {
    bytes: [u8; LABEL + LABEL_BYTES + 8],
    /// Bytes of the label.
    len: usize,
}

const LABEL: usize = DOMAIN.len() + 32 + 4;

impl Source {
    #[inline(always)]
    fn new(seed: &Seed, name: &[u8], height: u64) -> Source {
        let mut source = Source { bytes: [0; LABEL + LABEL_BYTES + 8], len: 0 };
        source.bytes[..DOMAIN.len()].copy_from_slice(DOMAIN);
        source.bytes[DOMAIN.len()..DOMAIN.len() + 32].copy_from_slice(seed);
        source.put(name);
        source.put(&height.to_le_bytes());
        source
    }

    #[inline(always)]
    fn put(&mut self, more: &[u8]) {
        let start = LABEL + self.len;
        self.bytes[start..start + more.len()].copy_from_slice(more);
        self.len += more.len();
    }

    /// The first of the numbers below `below` that are drawn for the label.
    #[inline(never)]
    fn number(&mut self, below: u64) -> u64 {
        self.bytes[LABEL - 4] = self.len as u8;
        self.first_below(self.len, below)
    }

    /// The same for the label with a place behind it.
    #[inline(always)]
    fn number_at(&mut self, place: u32, below: u64) -> u64 {
        let start = LABEL + self.len;
        unsafe { (self.bytes.as_mut_ptr().add(start) as *mut u32).write_unaligned(place) };
        self.bytes[LABEL - 4] = self.len as u8 + 4;
        self.first_below(self.len + 4, below)
    }

    #[inline(never)]
    fn first_below(&mut self, len: usize, below: u64) -> u64 {
        let rest = (u64::MAX % below).wrapping_add(1) % below;
        let mut counter = 0u64;
        loop {
            let mut drawn = [0u64; 4];
            unsafe {
                let end = LABEL + len;
                (self.bytes.as_mut_ptr().add(end) as *mut u64).write_unaligned(counter);
                let part: RawSlice = [self.bytes.as_ptr() as usize, end + 8];
                sol_sha256(&part as *const RawSlice as *const &[u8], 1, drawn.as_mut_ptr() as *mut u8);
            }
            for number in drawn {
                if number <= u64::MAX.wrapping_sub(rest) {
                    return number % below;
                }
            }
            counter = counter.wrapping_add(1);
        }
    }
}

/// Address and length, as the hash's syscall takes them.
type RawSlice = [usize; 2];

/// `count` different numbers below `below`, all if there are fewer (Floyd's algorithm).
fn distinct(mut source: Source, count: usize, below: usize, out: &mut Set) {
    *out = [0; 4];
    let count = count.min(below);
    for position in 0..count {
        let last = below - count + position;
        let drawn = source.number_at(position as u32, last as u64 + 1) as usize;
        set::insert(out, if set::has(out, drawn) { last } else { drawn });
    }
}

/// `count` different ones of the slots.
#[inline(never)]
fn some(source: Source, count: usize, slots: &Set, out: &mut Set) {
    let mut places = [0; 4];
    distinct(source, count, set::count(slots), &mut places);
    of_ranks(slots, &places, out);
}

/// The slots of a set in a drawn order.
struct Shuffled {
    source: Source,
    left: Set,
    count: usize,
    position: u32,
}

impl Shuffled {
    fn of(slots: &Set, source: Source) -> Shuffled { Shuffled { source, left: *slots, count: set::count(slots), position: 0 } }

    /// The next one, NONE after the last.
    fn next(&mut self) -> usize {
        if self.count == 0 {
            return NONE;
        }
        let place = self.source.number_at(self.position, self.count as u64) as usize;
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
    let count = set::count(&of.shares);
    if count == 0 || of.percent == 0 {
        return;
    }
    let source = |name: &[u8]| Source::new(seed, name, of.height);
    let (whole, rest) = (count * of.percent / 100, count * of.percent % 100);
    let one_more = source(b"count").number(100) < rest as u64;
    let mut drawn = [0; 4];
    some(source(b"shares"), whole + usize::from(one_more), &of.shares, &mut drawn);
    let mut extra = of.watched;
    set::intersect(&mut extra, &of.shares);
    set::subtract(&mut extra, &drawn);
    if !set::is_empty(&extra) {
        let mut more = [0; 4];
        some(source(b"watched"), MOST_WATCHED, &extra, &mut more);
        set::unite(&mut drawn, &more);
    }
    let mut free = Shuffled::of(&of.members, source(b"verifiers"));
    let mut order = Shuffled::of(&drawn, source(b"order"));
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
    let mut source = Source::new(seed, b"tie-breakers", u64::from(height));
    source.put(&(trainer as u32).to_le_bytes());
    source.put(&(verifier as u32).to_le_bytes());
    some(source, TIE_BREAKERS, &others, out);
}
