//! Warmup: members load the epoch's model, and the first round starts (psyche_core/coordinator/lifecycle/warmup.py).
use crate::waiting::wait_for_members;
use crate::history::{held_step, must_go_back, without_model};
use crate::image::{due, health, same, Image, Key, Set, Unready, MAX_CLIENTS, MAX_UNREADY, NONE, NO_DIGEST, UNREADY_LIMIT};
use crate::members::exit;
use crate::refusal::{Outcome, DUPLICATE_WITNESS, INVALID_WITNESS, NOTHING_DUE};
use crate::rounds::start_round;
use crate::run::{Run, Signers};
use crate::set;

/// Added to a signer's score for a warmup in which it was not ready; of one in which it was ready, 1 is taken off.
const NOT_READY: u32 = 2;
const MOST_UNREADY: u32 = 6;
const MAX_REPEATED_WARMUPS: u8 = 2;

/// Starts the first round, goes back, or gives the epoch up, if it is time.
pub fn tick_warmup(run: &mut Run) -> Outcome {
    if advance(run) {
        return Ok(());
    }
    let timed_out = due(run.image.since, run.now, run.image.config.warmup_time);
    let (mut healthy, mut ready): (Set, Set) = ([0; 4], [0; 4]);
    run.image.healthy(&mut healthy);
    run.image.ready(&mut ready);
    if !timed_out && set::count(&healthy) >= run.image.config.min_clients as usize {
        return Err(NOTHING_DUE);
    }
    if timed_out {
        let lacking = run.image.epoch.lacking;
        drop_unready(run, &healthy, &ready, &lacking);
    }
    run.backing.keep(0);
    wait_for_members(run);
    Ok(())
}

/// Counts a healthy slot as ready, or as one that lacks the model; goes on if that was the last one waited for.
/// The newest report counts: that a slot is ready may be what it said in an earlier warmup of this epoch, late.
pub fn speak(run: &mut Run, slot: usize, digest: &Key) -> Outcome {
    let image = &mut *run.image;
    let start = image.epoch.start_step.wrapping_sub(1);
    let expected = image.end_of(start).map(|end| end.digest);
    let held = held_step(image, digest);
    let right = expected.is_some_and(|expected| same(&expected, digest));
    let ready = set::has(&image.epoch.ready, slot);
    if same(digest, &NO_DIGEST) || held.is_some() {
        let held_step = image.epoch.held_step.max(held.unwrap_or(0));
        if set::has(&image.epoch.lacking, slot) && !ready && held_step == image.epoch.held_step {
            return Err(DUPLICATE_WITNESS);
        }
        set::remove(&mut image.epoch.ready, slot);
        set::insert(&mut image.epoch.lacking, slot);
        image.epoch.held_step = held_step;
    } else if ready {
        return Err(DUPLICATE_WITNESS);
    } else if expected.is_some() && !right {
        return Err(INVALID_WITNESS);
    } else {
        set::insert(&mut image.epoch.ready, slot);
        set::remove(&mut image.epoch.lacking, slot);
    }
    go_on(run);
    Ok(())
}

/// Refuses a slot that would come back in warmup without the model that the epoch starts with.
pub fn check_who_comes_back(image: &Image, digest: &Key) -> Outcome {
    let expected = image.end_of(image.epoch.start_step.wrapping_sub(1));
    let wrong = expected.is_some_and(|end| !same(&end.digest, digest));
    if wrong || same(digest, &NO_DIGEST) || held_step(image, digest).is_some() { Err(INVALID_WITNESS) } else { Ok(()) }
}

/// Goes on after a slot has spoken, or came back ready.
pub fn go_on(run: &mut Run) {
    let mut ready = [0; 4];
    run.image.ready(&mut ready);
    let epoch = &mut run.image.epoch;
    if epoch.ready_present == 0 && set::count(&ready) >= run.image.config.init_min_clients as usize {
        epoch.ready_present = 1;
        epoch.ready_since = run.now;
    }
    advance(run);
}

/// Goes back or starts the first round, if it is time; whether it was.
#[inline(never)]
fn advance(run: &mut Run) -> bool {
    let timed_out = due(run.image.since, run.now, run.image.config.warmup_time);
    let (mut healthy, mut ready, mut spoken): (Set, Set, Set) = ([0; 4], [0; 4], [0; 4]);
    run.image.healthy(&mut healthy);
    run.image.ready(&mut ready);
    for word in 0..4 {
        spoken[word] = ready[word] | run.image.epoch.lacking[word];
    }
    let least = run.image.config.min_clients as usize;
    if must_go_back(run.image) && (timed_out || (set::is_empty(&ready) && nobody_awaited(run, &healthy, &spoken))) {
        let silent = run.image.epoch.repeats == 0 && !nobody_awaited(run, &healthy, &spoken);
        if silent || others_may_hold_it(run.image) {
            run.image.epoch.repeats += 1;
            run.backing.keep(0);
            wait_for_members(run);
        } else {
            without_model(run);
        }
        return true;
    }
    if set::count(&ready) >= least && (timed_out || grace_is_over(run) || nobody_awaited(run, &healthy, &ready)) {
        drop_unready(run, &healthy, &ready, &[0; 4]);
        start_round(run, &ready, false);
        return true;
    }
    false
}

/// Whether members are pending that take no part in this warmup, and it may begin again for them. Each healthy one is pending, too.
/// (Once it begins again as well for who is waited for and has said nothing: what it says may come just after a warmup is over.)
fn others_may_hold_it(image: &Image) -> bool {
    let mut healthy = [0; 4];
    image.healthy(&mut healthy);
    image.pending.len() > set::count(&healthy) && image.epoch.repeats < MAX_REPEATED_WARMUPS
}

/// Whether who is not ready has had its time since enough others were.
fn grace_is_over(run: &Run) -> bool {
    let (image, epoch) = (&run.image, &run.image.epoch);
    let grace = epoch.ready_since.wrapping_sub(image.since).max(image.config.warmup_time / 4);
    epoch.ready_present != 0 && due(epoch.ready_since, run.now, grace)
}

/// Whether all healthy slots are among `slots`, but those whose signer was not ready too often.
#[inline(never)]
fn nobody_awaited(run: &Run, healthy: &Set, slots: &Set) -> bool {
    let mut others = *healthy;
    set::subtract(&mut others, slots);
    if set::is_empty(&others) {
        return true;
    }
    let unready = run.image.unready.used();
    let left_alone = Signers::over(unready, run.salt);
    for (number, entry) in unready.iter().enumerate() {
        if entry.score >= UNREADY_LIMIT {
            left_alone.insert(number);
        }
    }
    let clients = run.image.epoch.clients.used();
    clients.iter().enumerate().all(|(slot, client)| !set::has(&others, slot) || left_alone.contains(&client.id.signer))
}

/// Drops the healthy slots that are not ready, and remembers who was late for the next warmups, but `excused` slots.
#[inline(never)]
fn drop_unready(run: &mut Run, healthy: &Set, ready: &Set, excused: &Set) {
    let mut late = *healthy;
    set::subtract(&mut late, ready);
    let mut noted = late;
    set::subtract(&mut noted, excused);
    note_late(run, &noted, ready);
    exit(run, &late, health::DROPPED);
}

/// Lowers the scores of those who were ready, and appends those who were late with higher ones; the oldest make room.
#[inline(never)]
fn note_late(run: &mut Run, late: &Set, ready: &Set) {
    let image = &mut *run.image;
    let (mut gone, mut scores): (Set, [u8; MAX_CLIENTS]) = ([0; 4], [0; MAX_CLIENTS]);
    if image.unready.len() > 0 {
        let known = Signers::over(image.unready.used(), run.salt);
        for number in 0..image.unready.len() {
            known.insert(number);
        }
        for (slot, client) in image.epoch.clients.used().iter().enumerate() {
            if set::has(late, slot) || set::has(ready, slot) {
                let number = known.find(&client.id.signer);
                if number == NONE {
                    continue;
                }
                let score = &mut image.unready.items[number].score;
                if set::has(late, slot) {
                    scores[slot] = *score as u8;
                } else {
                    *score -= 1;
                }
                if set::has(late, slot) || *score == 0 {
                    set::insert(&mut gone, number);
                }
            }
        }
    }
    let list = &mut image.unready;
    let mut surplus = (list.len() - set::count(&gone) + set::count(late)).saturating_sub(MAX_UNREADY);
    let mut kept = 0;
    for number in 0..list.len() {
        if set::has(&gone, number) {
            continue;
        }
        if surplus > 0 {
            surplus -= 1;
            continue;
        }
        if kept != number {
            list.items[kept] = list.items[number];
        }
        kept += 1;
    }
    list.truncate(kept);
    for (slot, client) in image.epoch.clients.used().iter().enumerate() {
        if set::has(late, slot) {
            list.items[kept] = Unready { signer: client.id.signer, score: (u32::from(scores[slot]) + NOT_READY).min(MOST_UNREADY) };
            kept += 1;
        }
    }
    list.count = kept as u32;
}
