//! Which samples each trainer of a round gets, and which of them were accepted (psyche_core/coordinator/assignment.py, witness.py).
use crate::elections::{needed, trainers};
use crate::image::{Interval, Set, MAX_CLIENTS, NONE};
use crate::run::Run;
use crate::set;
use crate::shuffle::shuffled;

fn total_samples(batches: &[Interval]) -> u64 { batches.iter().fold(0, |sum, batch| sum.wrapping_add(batch.samples())) }

/// The slots that have samples in a round.
#[inline(never)]
pub fn assigned(run: &mut Run, place: usize, out: &mut Set) {
    trainers(run, place, out);
    let count = set::count(out);
    let round = run.image.round(place);
    let mut samples = 0u64;
    for batch in round.batches.used() {
        samples = samples.wrapping_add(batch.samples());
        if samples >= count as u64 {
            return; // something for everybody
        }
    }
    let mut order = [0; MAX_CLIENTS];
    shuffled(out, round.seed, &mut order);
    *out = [0; 4];
    for slot in &order[..(samples as usize).min(count)] {
        set::insert(out, *slot as usize);
    }
}

/// The slots whose result of a round a quorum of the next round's elected witnesses saw; none before any statement.
#[inline(never)]
pub fn accepted(run: &mut Run, place: usize, out: &mut Set) {
    let next = place + 1;
    if next >= run.image.epoch.rounds.len() || run.image.round(next).statements.count == 0 {
        *out = [0; 4];
        return;
    }
    assigned(run, place, out);
    let quorum = needed(run, next);
    let mut seen = [0; 4];
    seen_by(run, next, quorum as u64, &mut seen);
    set::intersect(out, &seen);
    set::subtract(out, &run.image.round(place).voided);
}

/// The bits set in at least `quorum` of a round's statements: 6 bits of a counter for each slot, counted side by side.
fn seen_by(run: &Run, place: usize, quorum: u64, out: &mut Set) {
    let mut planes = [[0u64; 4]; 6];
    for statement in run.image.round(place).statements.used() {
        let mut carry = [0; 4];
        set::from_words(&statement.participants, &mut carry);
        for plane in &mut planes {
            for word in 0..4 {
                let sum = plane[word] ^ carry[word];
                carry[word] &= plane[word];
                plane[word] = sum;
            }
        }
    }
    // counter >= quorum exactly when counter - quorum borrows nothing
    let mut borrow = [0u64; 4];
    for (bit, plane) in planes.iter().enumerate() {
        let subtracted = 0u64.wrapping_sub(quorum >> bit & 1);
        for word in 0..4 {
            borrow[word] = (!plane[word] & (subtracted | borrow[word])) | (subtracted & borrow[word]);
        }
    }
    for word in 0..4 {
        out[word] = !borrow[word];
    }
}

/// Writes all samples of a round to `out`; how many intervals they are.
pub fn samples(run: &Run, place: usize, out: *mut Interval) -> usize {
    let batches = run.image.round(place).batches.used();
    unsafe { core::ptr::copy_nonoverlapping(batches.as_ptr(), out, batches.len()) };
    batches.len()
}

/// Writes the samples of the shares of the slots in `of` to `out`, ascending, neighbours joined; how many intervals they are. With
/// nobody to train there are no shares, and a round's samples are all given.
#[inline(never)]
pub fn samples_of(run: &mut Run, place: usize, of: &Set, out: *mut Interval) -> usize {
    let mut slots = [0; 4];
    trainers(run, place, &mut slots);
    if set::is_empty(&slots) {
        return samples(run, place, out);
    }
    let mut wanted = slots;
    set::intersect(&mut wanted, of);
    if set::is_empty(&wanted) {
        return 0;
    }
    let round = run.image.round(place);
    let batches = round.batches.used();
    let mut order = [0; MAX_CLIENTS];
    let parts = shuffled(&slots, round.seed, &mut order);
    let total = total_samples(batches);
    let (size, larger) = (total / parts as u64, (total % parts as u64) as usize);
    let mut written = 0;
    let mut batch = batches.as_ptr();
    let end = unsafe { batch.add(batches.len()) };
    let mut offset = 0u64; // samples of `batch` that are given already
    for (part, slot) in order[..parts & 511].iter().enumerate() {
        let mut left = size + u64::from(part < larger);
        let wanted = set::has(of, *slot as usize);
        while left > 0 && batch < end {
            let interval = unsafe { &*batch };
            let here = interval.samples().wrapping_sub(offset);
            let first = interval.first.wrapping_add(offset);
            let taken = if here <= left {
                batch = unsafe { batch.add(1) };
                offset = 0;
                here
            } else {
                offset = offset.wrapping_add(left);
                left
            };
            left = left.wrapping_sub(taken);
            if wanted {
                written = append(out, written, first, first.wrapping_add(taken).wrapping_sub(1));
            }
        }
    }
    written
}

/// Adds an interval behind all others, joined with the last one if they are neighbours; the number of intervals now.
#[inline(always)]
fn append(out: *mut Interval, written: usize, first: u64, last: u64) -> usize {
    unsafe {
        if written > 0 {
            let before = &mut *out.add(written - 1);
            if before.last.wrapping_add(1) == first {
                before.last = last;
                return written;
            }
        }
        *out.add(written) = Interval { first, last };
    }
    written + 1
}

/// The shares of one slot as intervals *not* joined where batches meet, as a commitment lists them.
pub fn share_of(run: &mut Run, place: usize, slot: usize, out: *mut Interval) -> usize {
    // batches are canonical: two of them never are neighbours, so nothing is joined within a share
    let mut of = [0; 4];
    set::insert(&mut of, slot);
    samples_of(run, place, &of, out)
}

/// A share's samples in all.
pub fn total(intervals: *const Interval, count: usize) -> u64 { total_samples(unsafe { core::slice::from_raw_parts(intervals, count) }) }

/// Place of the round before another, by height; NONE when it is not stored or there is none.
pub fn before(run: &Run, place: usize, rounds: u32) -> usize {
    let height = run.image.round(place).height;
    if height < rounds { NONE } else { run.image.round_at(u64::from(height - rounds)) }
}
