//! What members say: that they are ready, and what a round's witnesses saw (psyche_core/coordinator/lifecycle/statements.py).
use crate::challenges::words_fit;
use crate::elections::{needed, witnesses};
use crate::history::note_statement as enter_history;
use crate::image::{
    health, state, Key, Statement, LATE_PART, LATE_STATEMENT, LEFT_BEHIND, MAX_WITNESSES, NONE, STATED, VERY_LATE_PART, VERY_LATE_STATEMENT,
    WAITED_MISSES,
};
use crate::members::come_back;
use crate::refusal::{Outcome, DUPLICATE_WITNESS, HALTED, INVALID_RUN_STATE, INVALID_WITNESS, NO_ACTIVE_ROUND, WITNESSES_FULL};
use crate::rounds::{everybody_stated, finish_round};
use crate::run::Run;
use crate::set;
use crate::shares::{assigned, before};
use crate::text::copy;
use crate::warmup::{check_who_comes_back, go_on, speak};

/// Counts a client as ready, or as one that cannot get the model; or brings a slot that was dropped or withdrew, and whose client joined again, back to health.
pub fn warmup_witness(run: &mut Run, sender: &Key, epoch: u32, index: u16, digest: &Key) -> Outcome {
    if run.image.halted() {
        return Err(HALTED);
    }
    let warming_up = run.image.run_state == state::WARMUP;
    if !warming_up && !run.image.playing() {
        return Err(INVALID_RUN_STATE);
    }
    let slot = run.image.slot_of(sender);
    if epoch != run.image.progress.epoch || slot != index as usize {
        return Err(INVALID_WITNESS);
    }
    if run.image.epoch.clients.items[slot].state == health::HEALTHY {
        return if warming_up { speak(run, slot, digest) } else { Ok(()) };
    }
    if warming_up {
        check_who_comes_back(run.image, digest)?;
    }
    come_back(run, slot)?;
    if warming_up {
        go_on(run);
    }
    Ok(())
}

/// Stores an elected witness's statement; a quorum ends RoundTrain, all of them end RoundWitness.
pub fn witness(run: &mut Run, sender: &Key, statement: &Statement) -> Outcome {
    if run.image.halted() {
        return Err(HALTED);
    }
    if !run.image.playing() {
        return Err(INVALID_RUN_STATE);
    }
    let current = run.image.current();
    if current == NONE {
        return Err(NO_ACTIVE_ROUND);
    }
    check_statement(run, current, sender, statement)?;
    if run.image.round(current).statements.used().iter().any(|stored| stored.index == statement.index) {
        return Err(DUPLICATE_WITNESS);
    }
    if names_strangers(run, current, statement) {
        void(run, current, statement.index as usize);
        return Ok(());
    }
    if run.image.round(current).statements.len() >= MAX_WITNESSES {
        return Err(WITNESSES_FULL);
    }
    let statements = &mut run.image.epoch.rounds.items[current].statements;
    copy(&mut statements.items[statements.count as usize], statement);
    statements.count += 1;
    let stated = statements.len();
    enter_history(run.image, statement);
    note_statement(run, current, statement.index as usize);
    if run.image.run_state == state::TRAIN && stated >= needed(run, current) {
        run.image.enter(state::WITNESS, run.now);
    }
    if run.image.run_state == state::WITNESS && everybody_stated(run, current) {
        finish_round(run, current);
    }
    Ok(())
}

/// Changes a slot's score for its statement: one that is in time lowers it, a late one raises it while rounds wait for the slot.
#[inline(never)]
fn note_statement(run: &mut Run, current: usize, slot: usize) {
    let height = run.image.round(current).height;
    let late = lateness(run, height);
    let client = &mut run.image.epoch.clients.items[slot];
    if late == 0 || client.absent_since(height) {
        client.missed = client.missed.saturating_sub(STATED);
    } else if client.missed < WAITED_MISSES {
        let missed = client.missed + late;
        client.missed = if missed >= WAITED_MISSES { LEFT_BEHIND } else { missed };
    }
}

/// What is added for a statement that comes now, 0 where it is in time. The epoch's mean round includes the warmup.
fn lateness(run: &Run, height: u32) -> u8 {
    let seconds = if run.image.run_state == state::WITNESS { run.now.saturating_sub(run.image.since) } else { 0 };
    let mean = run.now.saturating_sub(run.image.epoch.start_time) / (u64::from(height) + 1);
    if seconds <= mean / LATE_PART {
        0
    } else if seconds <= (mean / VERY_LATE_PART).max(1) {
        LATE_STATEMENT
    } else {
        VERY_LATE_STATEMENT
    }
}

/// Refuses a statement that is not a healthy, elected witness's own about this round.
fn check_statement(run: &mut Run, current: usize, sender: &Key, statement: &Statement) -> Outcome {
    let slot = run.image.slot_of(sender);
    let own = statement.epoch == run.image.progress.epoch && slot == statement.index as usize;
    if !own || run.image.epoch.clients.items[slot].state != health::HEALTHY || statement.height != run.image.round(current).height {
        return Err(INVALID_WITNESS);
    }
    let mut elected = [0; 4];
    witnesses(run, current, &mut elected);
    let words = statement.words.get(..statement.words_len as usize).unwrap_or(&[]);
    if set::has(&elected, slot) && words_fit(run, statement.height, words) { Ok(()) } else { Err(INVALID_WITNESS) }
}

/// Whether a statement claims results of slots that had no share in the round it is about.
#[inline(never)]
fn names_strangers(run: &mut Run, current: usize, statement: &Statement) -> bool {
    let (mut had_samples, mut seen) = ([0; 4], [0; 4]);
    set::from_words(&statement.participants, &mut seen);
    if set::is_empty(&seen) {
        return false;
    }
    let previous = before(run, current, 1);
    if previous != NONE {
        assigned(run, previous, &mut had_samples);
    }
    !set::is_subset(&seen, &had_samples)
}

/// Counts a void statement: refusing it without a trace would let its sender make every round wait in vain.
fn void(run: &mut Run, current: usize, slot: usize) {
    let client = &mut run.image.epoch.clients.items[slot];
    client.missed = client.missed.saturating_add(WAITED_MISSES);
    if run.image.run_state == state::WITNESS && everybody_stated(run, current) {
        finish_round(run, current);
    }
}
