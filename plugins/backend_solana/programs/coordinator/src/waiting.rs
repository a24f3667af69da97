//! How a run comes to wait for members, from any phase; what happens then is in `epochs`.
use crate::image::state;
use crate::run::Run;

/// Enters WaitingForMembers; with enough members already there, the extra time starts now.
pub fn wait_for_members(run: &mut Run) {
    let enough = run.image.pending.len() >= run.image.config.init_min_clients as usize;
    run.image.minimum_present = u8::from(enough);
    run.image.minimum_since = if enough { run.now } else { 0 };
    run.image.enter(state::WAITING, run.now);
}
