//! Rounds: started, finished, settled; and how an epoch's rounds end (psyche_core/coordinator/lifecycle/rounds.py).
use crate::challenges::{challenges_advanced, draw_challenges, recomputing};
use crate::elections::{needed, witnesses};
use crate::image::{
    due, ending, health, state, Config, Interval, Model, Round, Set, MAX_MISSED, NONE, STORED_ROUNDS, UNWAITED_MISS, WAITED_MISS,
    WAITED_MISSES,
};
use crate::history::note_decision;
use crate::members::exit;
use crate::refusal::{Outcome, NOTHING_DUE};
use crate::requeue;
use crate::run::{heap, Run};
use crate::set;
use crate::shares::{before, judged, samples, samples_of};
use psyche_common::arithmetic::mul_div;

/// Samples of a round before which `first` samples were assigned: a linear ramp over tokens, halves rounded up.
fn batch_size(config: &Config, model: &Model, first: u64) -> u64 {
    let (start, end, ramp) = (u64::from(config.batch_start), u64::from(config.batch_end), config.batch_warmup_tokens);
    let tokens = first as u128 * model.max_seq_len as u128;
    if tokens >= ramp as u128 {
        return end;
    }
    let (rise, tokens) = (end.wrapping_sub(start), tokens as u64);
    // tokens < ramp, so the quotient is at most `rise`; the rest follows modulo 2^64
    let fits = (rise as u128 * tokens as u128) >> 64 == 0;
    let whole = if fits { rise.wrapping_mul(tokens) / ramp } else { mul_div(rise, tokens, ramp).unwrap_or(0) };
    let rest = rise.wrapping_mul(tokens).wrapping_sub(whole.wrapping_mul(ramp));
    start + whole + u64::from(rest >= ramp - rest)
}

/// Begins a round over the slots healthy now, which the caller knows, with samples unless it is the drain round.
#[inline(never)]
pub fn start_round(run: &mut Run, healthy: &Set, drain: bool) {
    let current = run.image.current();
    if current != NONE && !drain {
        draw_challenges(run, current);
    }
    let mut busy = [0; 4];
    recomputing(run, &mut busy);
    set::intersect(&mut busy, healthy);
    let rounds = &mut run.image.epoch.rounds;
    let mut height = 0;
    if current == NONE {
        rounds.truncate(0);
    } else {
        height = rounds.items[current].height + 1;
        if rounds.len() == STORED_ROUNDS {
            unsafe { core::ptr::copy(rounds.items.as_ptr().add(1), rounds.items.as_mut_ptr(), STORED_ROUNDS - 1) };
            rounds.truncate(STORED_ROUNDS - 1);
        }
    }
    let place = rounds.len();
    rounds.count += 1;
    let (step, history, seed) = (run.image.progress.step, run.image.history, run.seed_drawn());
    let round: &mut Round = &mut run.image.epoch.rounds.items[place];
    round.height = height;
    round.step = step;
    round.seed = seed;
    round.slots = *healthy;
    round.recomputing = busy;
    round.drain = u8::from(drain);
    round.history = history;
    if !drain {
        take_samples(run, place);
    }
    run.image.epoch.unplayed = 0;
    run.image.epoch.repeats = 0;
    run.image.enter(state::TRAIN, run.now);
}

/// Takes a round's samples: from the queue first, then fresh ones.
fn take_samples(run: &mut Run, place: usize) {
    let first = run.image.progress.data_index;
    let wanted = batch_size(&run.image.config, &run.image.model, first);
    let fresh = requeue::take(run, place, wanted);
    if fresh > 0 {
        let batches = &mut run.image.epoch.rounds.items[place].batches;
        let (count, last) = (batches.len(), first.wrapping_add(fresh).wrapping_sub(1));
        if count > 0 && batches.items[count - 1].last.wrapping_add(1) == first {
            batches.items[count - 1].last = last;
        } else {
            batches.items[count] = Interval { first, last };
            batches.count += 1;
        }
        run.image.progress.data_index = first.wrapping_add(fresh);
    }
}

/// Whether every elected witness of the current round that is healthy and waited for has stated. Who came back in it is not waited for.
pub fn everybody_stated(run: &mut Run, current: usize) -> bool {
    let mut silent = [0; 4];
    without_statement(run, current, &mut silent);
    let height = run.image.round(current).height;
    while !set::is_empty(&silent) {
        let client = &run.image.epoch.clients.items[set::take_first(&mut silent)];
        if client.state == health::HEALTHY && client.missed < WAITED_MISSES && !client.absent_since(height) {
            return false;
        }
    }
    true
}

/// The elected witnesses of a round that have not stated in it.
#[inline(never)]
fn without_statement(run: &mut Run, place: usize, out: &mut Set) {
    witnesses(run, place, out);
    for statement in run.image.round(place).statements.used() {
        set::remove(out, statement.index as usize & 255);
    }
}

/// Healthy witnesses that did not state in the current round, where a quorum did. Who came back in this very round is excused.
#[inline(never)]
fn silent_witnesses(run: &mut Run, current: usize, out: &mut Set) {
    *out = [0; 4];
    if run.image.round(current).statements.len() < needed(run, current) {
        return;
    }
    let height = run.image.round(current).height;
    let mut left = [0; 4];
    without_statement(run, current, &mut left);
    while !set::is_empty(&left) {
        let slot = set::take_first(&mut left);
        let client = &run.image.epoch.clients.items[slot];
        if client.state == health::HEALTHY && !client.absent_since(height) {
            set::insert(out, slot);
        }
    }
}

/// Counts a missed duty for each of these slots.
pub fn add_missed_duties(run: &mut Run, slots: &Set) {
    let mut left = *slots;
    while !set::is_empty(&left) {
        let client = &mut run.image.epoch.clients.items[set::take_first(&mut left)];
        client.missed = client.missed.saturating_add(if client.missed < WAITED_MISSES { WAITED_MISS } else { UNWAITED_MISS });
    }
}

/// Counts a missed duty for the healthy slots whose result of a round divided the witnesses. Who was absent is excused.
#[inline(never)]
fn note_divided(run: &mut Run, place: usize, divided: &Set) {
    let height = run.image.round(place).height;
    let (mut left, mut unseen) = (*divided, [0; 4]);
    while !set::is_empty(&left) {
        let slot = set::take_first(&mut left);
        let client = &run.image.epoch.clients.items[slot];
        if client.state == health::HEALTHY && !client.absent_since(height) {
            set::insert(&mut unseen, slot);
        }
    }
    add_missed_duties(run, &unseen);
}

/// Drops who missed too many duties.
#[inline(never)]
fn drop_for_missing(run: &mut Run) {
    let mut leaving = [0; 4];
    for (slot, client) in run.image.epoch.clients.used().iter().enumerate() {
        if client.missed >= MAX_MISSED {
            set::insert(&mut leaving, slot);
        }
    }
    if !set::is_empty(&leaving) {
        exit(run, &leaving, health::DROPPED);
    }
}

/// Lets time pass in RoundTrain or RoundWitness.
pub fn tick_round(run: &mut Run) -> Outcome {
    let mut entered = false;
    if run.image.run_state == state::TRAIN {
        if !due(run.image.since, run.now, run.image.config.max_round_train_time) {
            return Err(NOTHING_DUE);
        }
        run.image.enter(state::WITNESS, run.now);
        entered = true;
    }
    let current = run.image.current();
    // Times are whole seconds: without one second more, a phase of one second could be over at once.
    let witness_time = run.image.config.round_witness_time.saturating_add(1);
    if due(run.image.since, run.now, witness_time) || everybody_stated(run, current) {
        finish_round(run, current);
    } else if !entered {
        return Err(NOTHING_DUE);
    }
    Ok(())
}

/// Ends a round's witness phase: settles the round before, then the next round, the drain round or the cooldown.
#[inline(never)]
pub fn finish_round(run: &mut Run, current: usize) {
    let mut silent = [0; 4];
    silent_witnesses(run, current, &mut silent);
    add_missed_duties(run, &silent);
    let previous = before(run, current, 1);
    if previous != NONE {
        let mut divided = [0; 4];
        settle(run, previous, &silent, &mut divided);
        if !set::is_empty(&divided) {
            note_divided(run, previous, &divided);
        }
    }
    challenges_advanced(run, current);
    drop_for_missing(run);
    let drain = run.image.round(current).drain != 0;
    let mut healthy = [0; 4];
    run.image.healthy(&mut healthy);
    if set::is_empty(&healthy) || run.image.round(current).statements.count == 0 {
        if !drain {
            settle(run, current, &[0; 4], &mut [0; 4]);
        }
        if previous == NONE {
            run.image.history = run.image.round(current).history; // its statements are about no round: nothing was decided
        }
        start_cooldown(run);
        return;
    }
    if drain {
        start_cooldown(run);
        return;
    }
    run.image.progress.step += 1;
    let reason = end_reason(run, current, set::count(&healthy));
    if reason != 0 {
        run.image.epoch.ending = reason;
    }
    start_round(run, &healthy, reason != 0);
}

/// Enters the cooldown. Challenges that are open end without a verdict.
fn start_cooldown(run: &mut Run) {
    run.image.epoch.challenges.truncate(0);
    run.image.enter(state::COOLDOWN, run.now);
}

/// Counts the accepted rounds of a round, not for the `unpaid`, and puts the samples nobody is accepted for back in the queue.
/// `divided` gets the slots whose result divided the witnesses.
#[inline(never)]
fn settle(run: &mut Run, place: usize, unpaid: &Set, divided: &mut Set) {
    let mut both = [[0; 4]; 2];
    judged(run, place, &mut both);
    let mut seen = both[0];
    *divided = both[1];
    if place + 1 < run.image.epoch.rounds.len() {
        note_decision(run.image, place, &seen);
    }
    let returned = if set::is_empty(&seen) {
        samples(run, place, heap::returned())
    } else {
        let others = [!seen[0], !seen[1], !seen[2], !seen[3]];
        samples_of(run, place, &others, heap::returned())
    };
    requeue::add_returned(run, returned);
    set::subtract(&mut seen, unpaid);
    for (clients, word) in run.image.epoch.clients.used_mut().chunks_mut(64).zip(seen) {
        let mut bits = word;
        for client in clients {
            client.accepted_rounds = client.accepted_rounds.wrapping_add(bits as u32 & 1);
            bits >>= 1;
        }
    }
}

/// Why the epoch must end after this trained round, 0 to go on.
fn end_reason(run: &Run, finished: usize, healthy: usize) -> u8 {
    let (image, config) = (&run.image, &run.image.config);
    let round = image.round(finished);
    if image.pending_pause != 0 {
        return ending::PAUSE;
    }
    if image.finished() {
        return ending::TOTAL_STEPS;
    }
    if due(image.epoch.start_time, run.now, config.epoch_time) {
        return ending::EPOCH_TIME;
    }
    if config.rounds_per_epoch > 0 && config.rounds_per_epoch <= round.height + 1 {
        return ending::ROUNDS;
    }
    if healthy < config.min_clients as usize {
        return ending::TOO_FEW_CLIENTS;
    }
    if round.statements.len() < needed(run, finished) {
        return ending::MISSED_QUORUM;
    }
    0
}
