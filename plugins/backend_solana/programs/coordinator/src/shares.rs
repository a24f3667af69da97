//! Which samples each trainer of a round gets, and which of them were accepted (psyche_core/coordinator/round/assignment.py, witness.py).
use crate::elections::{elected_count, needed, quorum, trainer_count, trainers, trains};
use crate::image::{Interval, Set, Statement, MAX_CHALLENGED_INTERVALS, MAX_CLIENTS, NONE};
use crate::run::Run;
use crate::set;
use crate::shuffle::{shuffled, Order};

fn total_samples(batches: &[Interval]) -> u64 {
    // one more for each batch, whose last sample is in it
    batches.iter().fold(batches.len() as u64, |sum, batch| sum.wrapping_add(batch.last).wrapping_sub(batch.first))
}

/// A round's samples, or `enough` if there are as many.
fn samples_up_to(run: &Run, place: usize, enough: u64) -> u64 {
    let mut samples = 0u64;
    for batch in run.image.round(place).batches.used() {
        samples = samples.wrapping_add(batch.samples());
        if samples >= enough {
            return enough;
        }
    }
    samples
}

/// The slots that have samples in a round.
#[inline(never)]
pub fn assigned(run: &mut Run, place: usize, out: &mut Set) {
    trainers(run, place, out);
    let count = set::count(out);
    let samples = samples_up_to(run, place, count as u64) as usize;
    if samples == count {
        return; // something for everybody
    }
    let mut order = Order::uninit();
    let order = shuffled(out, run.image.round(place).seed, &mut order);
    *out = [0; 4];
    for slot in &order[..samples.min(order.len())] {
        set::insert(out, *slot as usize);
    }
}

/// Whether a slot has samples in a round.
#[inline(never)]
pub fn has_samples(run: &mut Run, place: usize, slot: usize) -> bool {
    let count = trainer_count(run, place) as u64;
    if samples_up_to(run, place, count) == count {
        return trains(run, place, slot);
    }
    let mut with_samples = [0; 4];
    assigned(run, place, &mut with_samples);
    set::has(&with_samples, slot)
}

/// The slots whose result of a round a quorum of the next round's elected witnesses saw; none before any statement.
pub fn accepted(run: &mut Run, place: usize, out: &mut Set) {
    let mut both = [[0; 4]; 2];
    judged(run, place, &mut both);
    *out = both[0];
}

/// The slots whose result of a round was accepted, and those that divided the witnesses: at least half of the elected saw the result,
/// but no quorum. Nobody did before a quorum stated.
#[inline(never)]
pub fn judged(run: &mut Run, place: usize, out: &mut [Set; 2]) {
    *out = [[0; 4]; 2];
    let next = place + 1;
    if next >= run.image.epoch.rounds.len() || run.image.round(next).statements.count == 0 {
        return;
    }
    let mut given = [0; 4];
    assigned(run, place, &mut given);
    set::subtract(&mut given, &run.image.round(place).voided);
    let elected = elected_count(run, next);
    let needed = [quorum(elected) as u64, elected.div_ceil(2) as u64];
    seen_by(run, next, &needed, out);
    let [accepted, divided] = out;
    set::subtract(divided, accepted);
    set::intersect(accepted, &given);
    set::intersect(divided, &given);
    if (run.image.round(next).statements.len() as u64) < needed[0] {
        *divided = [0; 4];
    }
}

/// The bits set in at least so many of a round's statements, for two numbers, the larger first: 6 bits of a counter for each slot, counted side by side.
fn seen_by(run: &Run, place: usize, needed: &[u64; 2], out: &mut [Set; 2]) {
    let statements = run.image.round(place).statements.used();
    for word in 0..4 {
        let mut planes = [0u64; 6];
        for statement in statements {
            let participants = &statement.participants;
            let mut carry = u64::from(participants[2 * word]) | u64::from(participants[2 * word + 1]) << 32;
            let (low, high) = planes.split_at_mut(3);
            for plane in low {
                let sum = *plane ^ carry;
                carry &= *plane;
                *plane = sum;
            }
            if carry == 0 {
                continue; // most often nothing reaches the upper half
            }
            for plane in high {
                let sum = *plane ^ carry;
                carry &= *plane;
                *plane = sum;
            }
        }
        out[0][word] = at_least(&planes, needed[0]);
        // usually all or none of the witnesses saw a result, and the smaller number changes nothing
        let any = planes.iter().fold(0, |any, plane| any | plane);
        out[1][word] = if any == out[0][word] { any } else { at_least(&planes, needed[1]) };
    }
}

/// The bits whose counter is at least `needed`, which is so exactly when counter - needed borrows nothing.
#[inline(always)]
fn at_least(planes: &[u64; 6], needed: u64) -> u64 {
    let mut borrow = 0u64;
    for (bit, plane) in planes.iter().enumerate() {
        let subtracted = 0u64.wrapping_sub(needed >> bit & 1);
        borrow = (!plane & (subtracted | borrow)) | (subtracted & borrow);
    }
    !borrow
}

/// Writes all samples of a round to `out`; how many intervals they are.
pub fn samples(run: &Run, place: usize, out: *mut Interval) -> usize {
    let batches = run.image.round(place).batches.used();
    unsafe { core::ptr::copy_nonoverlapping(batches.as_ptr(), out, batches.len()) };
    batches.len()
}

/// Writes the samples of the shares of the slots in `of` to `out`, ascending; how many intervals they are. Shares side by side are
/// not cut apart, batches are. With nobody to train there are no shares, and a round's samples are all given.
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
    if batches.is_empty() {
        return 0;
    }
    let mut order = Order::uninit();
    let order = shuffled(&slots, round.seed, &mut order);
    let total = total_samples(batches);
    let (size, larger) = (total / order.len() as u64, (total % order.len() as u64) as usize);
    let mut walk = Walk::new(batches, out);
    let mut part = 0;
    let mut wanted = set::has(of, order[0] as usize);
    while part < order.len() {
        // shares side by side that are both wanted, or both not, are one stretch
        let (mut samples, mut more) = (0u64, wanted);
        while part < order.len() && more == wanted {
            samples = samples.wrapping_add(size).wrapping_add(u64::from(part < larger));
            part += 1;
            more = part < order.len() && set::has(of, order[part] as usize);
        }
        if wanted {
            walk.take(samples);
        } else {
            walk.skip(samples);
        }
        wanted = more;
    }
    unsafe { walk.to.offset_from(out) as usize }
}

/// Goes through a round's samples, batch by batch.
struct Walk {
    batch: *const Interval,
    end: *const Interval,
    /// What is left of the batch.
    rest: Interval,
    /// Where the next interval is written.
    to: *mut Interval,
}

impl Walk {
    /// At the first of the batches, of which there is one at least.
    #[inline(always)]
    fn new(batches: &[Interval], to: *mut Interval) -> Walk {
        let range = batches.as_ptr_range();
        Walk { batch: range.start, end: range.end, rest: batches[0], to }
    }

    #[inline(never)]
    fn take(&mut self, samples: u64) { self.go(samples, true) }

    #[inline(never)]
    fn skip(&mut self, samples: u64) { self.go(samples, false) }

    /// Passes the next samples, and writes them or leaves them out. Works on copies, which may stay in registers.
    #[inline(always)]
    fn go(&mut self, mut samples: u64, write: bool) {
        let (mut batch, mut rest, mut to) = (self.batch, self.rest, self.to);
        while batch < self.end {
            let here = rest.samples();
            if here > samples {
                let next = rest.first.wrapping_add(samples);
                if write && samples > 0 {
                    unsafe {
                        *to = Interval { first: rest.first, last: next.wrapping_sub(1) };
                        to = to.add(1);
                    }
                }
                rest.first = next;
                break;
            }
            samples = samples.wrapping_sub(here);
            unsafe {
                if write {
                    *to = rest;
                    to = to.add(1);
                }
                batch = batch.add(1);
                if batch < self.end {
                    rest = *batch;
                }
            }
        }
        (self.batch, self.rest, self.to) = (batch, rest, to);
    }
}

/// The shares of one slot as intervals *not* joined where batches meet, as a commitment lists them; how many, 0 without a share.
pub fn share_of(run: &mut Run, place: usize, slot: usize, out: *mut Interval) -> usize {
    let (mut slots, mut of) = ([0; 4], [0; 4]);
    trainers(run, place, &mut slots);
    if !set::has(&slots, slot) {
        return 0;
    }
    set::insert(&mut of, slot);
    samples_of(run, place, &of, out)
}

/// The slots that train in a round, in the order of their shares.
pub fn share_order<'a>(run: &Run, place: usize, order: &'a mut Order) -> &'a [u8] {
    let mut slots = [0; 4];
    trainers(run, place, &mut slots);
    shuffled(&slots, run.image.round(place).seed, order)
}

/// Calls `each` for every interval of the wanted slots' shares of a round, with the slot: share by share, not joined where batches meet.
#[inline(always)]
fn each_interval(batches: &[Interval], order: &[u8], wanted: impl Fn(usize) -> bool, mut each: impl FnMut(usize, Interval)) {
    if batches.is_empty() || order.is_empty() {
        return;
    }
    let total = total_samples(batches);
    let (size, larger) = (total / order.len() as u64, (total % order.len() as u64) as usize);
    let (mut batch, mut rest, mut passed) = (0, batches[0], 0u64);
    for (part, slot) in order.iter().enumerate() {
        let samples = size.wrapping_add(u64::from(part < larger));
        if !wanted(*slot as usize) {
            passed = passed.wrapping_add(samples);
            continue;
        }
        let mut left = passed.wrapping_add(samples);
        while left > 0 && batch < batches.len() {
            let here = rest.samples();
            let now = here.min(left);
            let skipped = passed.min(now);
            if now > skipped {
                let first = rest.first.wrapping_add(skipped);
                each(*slot as usize, Interval { first, last: rest.first.wrapping_add(now).wrapping_sub(1) });
            }
            passed -= skipped;
            left -= now;
            if now < here {
                rest.first = rest.first.wrapping_add(now);
            } else {
                batch += 1;
                if batch < batches.len() {
                    rest = batches[batch];
                }
            }
        }
    }
}

/// The slots whose share of a round is of at most so many intervals.
#[inline(never)]
pub fn few_intervals(run: &Run, place: usize, order: &[u8], most: usize, out: &mut Set) {
    *out = [u64::MAX; 4];
    let batches = run.image.round(place).batches.used();
    // a share of so few samples cannot have more intervals
    let largest = total_samples(batches).div_ceil(order.len().max(1) as u64);
    if batches.len() <= most || largest <= most as u64 {
        return;
    }
    let (mut of, mut count) = (NONE, 0);
    each_interval(batches, order, |_| true, |slot, _| {
        count = if slot == of { count + 1 } else { 1 };
        of = slot;
        if count > most {
            set::remove(out, slot);
        }
    });
}

/// Writes the share of its trainer into each challenge from `first` on.
#[inline(never)]
pub fn write_shares(run: &mut Run, place: usize, order: &[u8], first: usize) {
    let mut places = [0u8; MAX_CLIENTS];
    let challenges = run.image.epoch.challenges.len();
    for number in first..challenges {
        places[run.image.epoch.challenges.items[number].trainer as usize & (MAX_CLIENTS - 1)] = number as u8 + 1;
    }
    let items = run.image.epoch.challenges.items.as_mut_ptr();
    each_interval(run.image.round(place).batches.used(), order, |slot| places[slot] != 0, |slot, interval| {
        let share = unsafe { &mut (*items.add(places[slot] as usize - 1)).share };
        if share.len() < MAX_CHALLENGED_INTERVALS {
            share.items[share.len()] = interval;
            share.count += 1;
        }
    });
}

/// Whether a quorum of the next round's elected witnesses saw the result of a slot that has a share; nobody before any statement.
pub fn was_seen(run: &Run, place: usize, slot: usize) -> bool {
    let next = place + 1;
    if next >= run.image.epoch.rounds.len() || run.image.round(next).statements.count == 0 {
        return false;
    }
    let saw = |statement: &Statement| statement.participants[slot >> 5 & 7] >> (slot & 31) & 1 == 1;
    run.image.round(next).statements.used().iter().filter(|statement| saw(statement)).count() >= needed(run, next)
}

/// A share's samples in all.
pub fn total(intervals: *const Interval, count: usize) -> u64 { total_samples(unsafe { core::slice::from_raw_parts(intervals, count) }) }

/// Place of the round before another, by height; NONE when it is not stored or there is none.
pub fn before(run: &Run, place: usize, rounds: u32) -> usize {
    let height = run.image.round(place).height;
    if height < rounds { NONE } else { run.image.round_at(u64::from(height - rounds)) }
}
