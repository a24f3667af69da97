//! What members say: that they are ready, and what a round's witnesses saw (psyche_core/coordinator/statements.py).
use crate::elections::{needed, witnesses};
use crate::epochs::start_if_ready;
use crate::image::{health, state, Key, Statement, MAX_WITNESSES, NONE};
use crate::members::come_back;
use crate::refusal::{Outcome, DUPLICATE_WITNESS, HALTED, INVALID_RUN_STATE, INVALID_WITNESS, NO_ACTIVE_ROUND, WITNESSES_FULL};
use crate::rounds::{everybody_stated, finish_round};
use crate::run::Run;
use crate::set;
use crate::shares::{assigned, before};
use crate::text::copy;

/// Counts a client as ready; or brings a slot that was dropped or withdrew, and whose client joined again, back to health.
pub fn warmup_witness(run: &mut Run, sender: &Key, epoch: u32, index: u16) -> Outcome {
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
    if run.image.epoch.clients.items[slot].state != health::HEALTHY {
        come_back(run, slot)?;
    } else if warming_up {
        if set::has(&run.image.epoch.ready, slot) {
            return Err(DUPLICATE_WITNESS);
        }
        set::insert(&mut run.image.epoch.ready, slot);
    }
    if warming_up {
        start_if_ready(run);
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
    let statements = &run.image.round(current).statements;
    if statements.used().iter().any(|stored| stored.index == statement.index) {
        return Err(DUPLICATE_WITNESS);
    }
    if statements.len() >= MAX_WITNESSES {
        return Err(WITNESSES_FULL);
    }
    let statements = &mut run.image.epoch.rounds.items[current].statements;
    copy(&mut statements.items[statements.count as usize], statement);
    statements.count += 1;
    let stated = statements.len();
    if run.image.run_state == state::TRAIN && stated >= needed(run, current) {
        run.image.enter(state::WITNESS, run.now);
    }
    if run.image.run_state == state::WITNESS && everybody_stated(run, current) {
        finish_round(run, current);
    }
    Ok(())
}

/// Refuses a statement that is not a healthy, elected witness's own about this round.
fn check_statement(run: &mut Run, current: usize, sender: &Key, statement: &Statement) -> Outcome {
    let slot = run.image.slot_of(sender);
    let own = statement.epoch == run.image.progress.epoch && slot == statement.index as usize;
    if !own || run.image.epoch.clients.items[slot].state != health::HEALTHY || statement.height != run.image.round(current).height {
        return Err(INVALID_WITNESS);
    }
    let (mut elected, mut had_samples, mut seen) = ([0; 4], [0; 4], [0; 4]);
    witnesses(run, current, &mut elected);
    if !set::has(&elected, slot) {
        return Err(INVALID_WITNESS);
    }
    set::from_words(&statement.participants, &mut seen);
    if set::is_empty(&seen) {
        return Ok(());
    }
    let previous = before(run, current, 1);
    if previous != NONE {
        assigned(run, previous, &mut had_samples);
    }
    if set::is_subset(&seen, &had_samples) { Ok(()) } else { Err(INVALID_WITNESS) }
}
