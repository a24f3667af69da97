//! Epochs: waiting for members, cooldown; pause and resume (psyche_core/coordinator/lifecycle/epochs.py, transitions.py).
use crate::checkpoints::{loaded_from_hub, loaded_from_peers};
use crate::image::{due, health, state, MAX_CLIENTS, WAITED_MISSES};
use crate::history::go_back_to_stored;
use crate::refusal::{Outcome, CANNOT_RESUME, HALTED, NOTHING_DUE};
use crate::rewards::share_rewards;
use crate::rounds::tick_round;
use crate::run::{Run, Signers};
use crate::waiting::wait_for_members;
use crate::warmup::tick_warmup;

/// Lets time pass. Refuses where that changes nothing: whoever ticks need not pay for it then.
pub fn tick(run: &mut Run) -> Outcome {
    match run.image.run_state {
        state::WAITING => tick_waiting(run),
        state::WARMUP => tick_warmup(run),
        state::TRAIN | state::WITNESS => tick_round(run),
        state::COOLDOWN => tick_cooldown(run),
        _ => Err(HALTED),
    }
}

/// Starts an epoch when enough members have been pending for the extra time.
fn tick_waiting(run: &mut Run) -> Outcome {
    let extra = u64::from(run.image.config.extra_time);
    if run.image.minimum_present == 0 || !due(run.image.minimum_since, run.now, extra) {
        return Err(NOTHING_DUE);
    }
    let mut missed = [0; MAX_CLIENTS];
    let stayed = stayed(run, &mut missed);
    if run.image.from_checkpoint != 0 || !stayed {
        loaded_from_hub(run.image);
    }
    let seed = run.seed_drawn();
    let image = &mut *run.image;
    let (epoch, pending) = (&mut image.epoch, &image.pending);
    epoch.clients.truncate(0);
    for ((client, member), missed) in epoch.clients.items.iter_mut().zip(pending.used()).zip(missed) {
        client.id = *member;
        client.missed = missed;
    }
    epoch.clients.count = pending.count.min(MAX_CLIENTS as u32);
    epoch.start_time = run.now;
    epoch.start_step = image.progress.step;
    epoch.seed = seed;
    epoch.rates = image.future_rates;
    epoch.rates.earning = run.backing.promise(epoch.rates.earning);
    epoch.ending = 0;
    epoch.unplayed = 1;
    epoch.ready = [0; 4];
    epoch.ceded = [0; 4];
    epoch.lacking = [0; 4];
    epoch.held_step = 0;
    epoch.ready_present = 0;
    epoch.ready_since = 0;
    image.enter(state::WARMUP, run.now);
    Ok(())
}

/// Whether a client that is healthy in the last epoch is among the members. `missed` gets the score with which each of them begins.
#[inline(never)]
fn stayed(run: &Run, missed: &mut [u8; MAX_CLIENTS]) -> bool {
    let members = Signers::over(run.image.pending.used(), run.salt);
    for number in 0..run.image.pending.len() {
        members.insert(number);
    }
    let mut healthy = false;
    for client in run.image.epoch.clients.used() {
        let number = members.find(&client.id.signer);
        if number < MAX_CLIENTS {
            missed[number] = client.missed.min(WAITED_MISSES);
            healthy |= client.state == health::HEALTHY;
        }
    }
    healthy
}

/// Ends the epoch when the cooldown is over: pays it, then finishes, pauses or waits for the next one's members.
fn tick_cooldown(run: &mut Run) -> Outcome {
    if !due(run.image.since, run.now, run.image.config.cooldown_time) {
        return Err(NOTHING_DUE);
    }
    share_rewards(run);
    let image = &mut *run.image;
    let pausing = image.pending_pause;
    loaded_from_peers(image);
    image.progress.epoch = image.progress.epoch.wrapping_add(1);
    image.epoch.cold_start = pausing;
    image.pending_pause = 0;
    image.from_checkpoint &= u8::from(image.progress.step == image.epoch.start_step);
    if image.finished() {
        image.enter(state::FINISHED, run.now);
    } else if pausing != 0 {
        image.enter(state::PAUSED, run.now);
    } else {
        wait_for_members(run);
    }
    Ok(())
}

/// At once before an epoch's first round, else after its drain and cooldown.
pub fn pause(run: &mut Run) -> Outcome {
    if run.image.halted() {
        return Err(HALTED);
    }
    if run.image.active() {
        run.image.pending_pause = 1;
        return Ok(());
    }
    run.backing.keep(0);
    run.image.epoch.cold_start = 1;
    run.image.enter(state::PAUSED, run.now);
    Ok(())
}

/// Waits for members again, or for the first time; finishes a run that has no step left to train.
/// With `from_checkpoint` one whose model is lost goes back to the stored checkpoint.
pub fn resume(run: &mut Run, from_checkpoint: bool) -> Outcome {
    if !matches!(run.image.run_state, state::PAUSED | state::UNINITIALIZED) || (from_checkpoint && run.image.model_lost == 0) {
        return Err(CANNOT_RESUME);
    }
    if run.image.finished() {
        run.image.enter(state::FINISHED, run.now);
        return Ok(());
    }
    if from_checkpoint {
        go_back_to_stored(run.image);
    }
    run.image.model_lost = 0;
    wait_for_members(run);
    Ok(())
}
