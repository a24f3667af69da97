//! Where the next members load the model from, and who may say so (psyche_core/coordinator/checkpoints.py).
use crate::history::note_stored;
use crate::image::{health, kind, same, state, Checkpoint, Image, Key, Set, NONE};
use crate::refusal::{Outcome, INVALID_CHECKPOINT, INVALID_RUN_STATE, NO_ACTIVE_ROUND};
use crate::run::Run;
use crate::set;
use crate::shuffle::{draw, position};
use crate::text::{copy, is_text};

/// After an epoch, members of it share what they trained.
pub fn loaded_from_peers(image: &mut Image) {
    let kind = &mut image.model.checkpoint.kind;
    *kind = match *kind {
        kind::HUB | kind::DUMMY => kind::P2P,
        kind::GCS => kind::P2P_GCS,
        other => other,
    };
}

/// When nobody is left who could share it.
pub fn loaded_from_hub(image: &mut Image) {
    let kind = &mut image.model.checkpoint.kind;
    *kind = match *kind {
        kind::P2P => kind::HUB,
        kind::P2P_GCS => kind::GCS,
        other => other,
    };
}

/// The kind that a location makes of the present one, NONE when it cannot follow.
fn following(present: u8, location: u8) -> usize {
    match (present, location) {
        (kind::P2P | kind::P2P_GCS, kind::HUB) => kind::P2P as usize,
        (kind::P2P | kind::P2P_GCS, kind::GCS) => kind::P2P_GCS as usize,
        (kind::HUB | kind::GCS, kind::HUB | kind::GCS) => location as usize,
        _ => NONE,
    }
}

/// A location as it stands in an instruction: 0 passes the duty on.
pub struct Location<'a> {
    pub kind: u8,
    pub first: &'a [u8; 64],
    pub present: bool,
    pub second: &'a [u8; 64],
}

impl Location<'_> {
    /// Whether the image can hold it.
    pub fn is_sound(&self) -> bool {
        is_text(self.first) && if self.present { is_text(self.second) } else { self.second.iter().all(|byte| *byte == 0) }
    }

    pub fn write(&self, checkpoint: &mut Checkpoint, kind: u8) {
        checkpoint.kind = kind;
        copy(&mut checkpoint.first, self.first);
        checkpoint.present = u8::from(self.present);
        copy(&mut checkpoint.second, self.second);
    }
}

/// The healthy slots that have not said that they cannot.
fn able(run: &Run, out: &mut Set) {
    run.image.healthy(out);
    set::subtract(out, &run.image.epoch.ceded);
}

fn is_listed(run: &Run, signer: &Key) -> bool { run.image.config.checkpointers.used().iter().any(|key| same(key, signer)) }

/// Whether this slot is the first that is to store the epoch's model, of those listed or of those drawn.
fn is_first(run: &Run, slot: usize) -> bool {
    let mut able_slots = [0; 4];
    able(run, &mut able_slots);
    if slot == NONE || !set::has(&able_slots, slot) {
        return false;
    }
    let clients = run.image.epoch.clients.used();
    if run.image.config.checkpointers.count > 0 {
        for key in run.image.config.checkpointers.used() {
            for (other, client) in clients.iter().enumerate() {
                if client.state == health::HEALTHY && set::has(&able_slots, other) && same(&client.id.signer, key) {
                    return other == slot;
                }
            }
        }
        return false;
    }
    if run.image.current() == NONE {
        return false;
    }
    let (count, seed) = (clients.len(), run.image.epoch.seed);
    draw(&mut able_slots, count, seed, false);
    position(slot, count, seed) == set::lowest(&able_slots)
}

/// Follows a checkpointer to another location; no location passes the duty on.
pub fn checkpoint(run: &mut Run, sender: &Key, location: &Location) -> Outcome {
    if !matches!(run.image.run_state, state::COOLDOWN | state::WAITING | state::PAUSED | state::FINISHED) {
        return Err(INVALID_RUN_STATE);
    }
    let listed = run.image.config.checkpointers.count > 0;
    if !listed && run.image.current() == NONE {
        return Err(NO_ACTIVE_ROUND);
    }
    let slot = run.image.slot_of(sender);
    if if listed { !is_listed(run, sender) } else { !is_first(run, slot) } {
        return Err(INVALID_CHECKPOINT);
    }
    if location.kind == 0 {
        if listed && !is_first(run, slot) {
            return Err(INVALID_CHECKPOINT);
        }
        set::insert(&mut run.image.epoch.ceded, slot);
        return Ok(());
    }
    let ended = run.image.progress.step.wrapping_sub(1);
    if !listed && run.image.run_state != state::FINISHED && run.image.end_of(ended).is_none() {
        return Err(INVALID_CHECKPOINT); // nobody knows yet whether it is the run's model
    }
    let followed = following(run.image.model.checkpoint.kind, location.kind);
    if followed == NONE || !location.is_sound() || location.first[0] == 0 {
        return Err(INVALID_CHECKPOINT);
    }
    location.write(&mut run.image.model.checkpoint, followed as u8);
    note_stored(run.image);
    Ok(())
}
