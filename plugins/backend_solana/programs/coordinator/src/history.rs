//! What members signed, and going back to it where nobody holds what came after (psyche_core/coordinator/history.py).
use crate::elections::quorum;
use crate::waiting::wait_for_members;
use crate::image::{
    health, same, state, EpochEnd, Image, Interval, Key, List, Set, Statement, MAX_ENDS, MAX_END_INTERVALS, MAX_WITNESSES,
    NONE, NO_DIGEST, STORED_ROUNDS,
};
use crate::refusal::{Outcome, DUPLICATE_WITNESS, INVALID_RUN_STATE, INVALID_WITNESS};
use crate::requeue::add_returned;
use crate::run::{heap, Run};
use crate::set;
use crate::shares::{accepted, samples_of, total};
use crate::verified::as_bytes;
use psyche_common::runtime::sol_sha256;

const HELD: &[u8] = b"psyche/held";
const STATED: &[u8] = b"psyche/stated";
const DECIDED: &[u8] = b"psyche/decided";
const MOVED: &[u8] = b"psyche/moved";

/// A place in the run's history. `first` points to `count` intervals of the image.
struct Place {
    step: u64,
    data_index: u64,
    digest: Key,
    history: Key,
    lost: u64,
    first: *const Interval,
    count: usize,
}

impl Place {
    /// Where the run stands between two epochs, with the digest that a quorum signed for it, if any.
    #[inline(always)]
    fn present(image: &Image) -> Place {
        let step = image.progress.step.wrapping_sub(1);
        let queue = &image.requeue;
        let left_out = queue.len().saturating_sub(MAX_END_INTERVALS);
        let intervals = queue.items.as_ptr();
        Place {
            step,
            data_index: image.progress.data_index,
            digest: match image.end_of(step) { Some(end) => end.digest, None => NO_DIGEST },
            history: image.history,
            lost: image.lost_samples.wrapping_add(total(intervals, left_out)),
            first: unsafe { intervals.add(left_out) },
            count: queue.len() - left_out,
        }
    }

    #[inline(always)]
    fn of(end: &EpochEnd) -> Place {
        Place { step: end.step, data_index: end.data_index, digest: end.digest, history: end.history, lost: end.lost, first: end.queue.items.as_ptr(), count: end.queue.len() }
    }

    fn write(&self, to: &mut EpochEnd) {
        to.step = self.step;
        to.data_index = self.data_index;
        to.digest = self.digest;
        to.history = self.history;
        to.lost = self.lost;
        refill(&mut to.queue, self.first, self.count);
    }
}

/// Puts `count` intervals that lie elsewhere into a queue in place of what it holds.
#[inline(always)]
fn refill<const N: usize>(queue: &mut List<Interval, N>, first: *const Interval, count: usize) {
    queue.truncate(0);
    unsafe { core::ptr::copy_nonoverlapping(first, queue.items.as_mut_ptr(), count) };
    queue.count = count as u32;
}

/// The stored checkpoint holds what the run has trained so far.
pub fn note_stored(image: &mut Image) { Place::present(image).write(&mut image.stored) }

/// Notes a member's digest of the epoch's end; a quorum of equal ones, among those who took part in it, signs it, once.
pub fn epoch_digest(run: &mut Run, sender: &Key, epoch: u32, index: u16, digest: &Key) -> Outcome {
    let image = &mut *run.image;
    let last = image.current();
    let afterwards = matches!(image.run_state, state::WAITING | state::PAUSED | state::FINISHED);
    if last == NONE || (image.run_state != state::COOLDOWN && !afterwards) {
        return Err(INVALID_RUN_STATE);
    }
    let ended = image.progress.epoch.wrapping_sub(u32::from(afterwards));
    let slot = image.slot_of(sender);
    if epoch != ended || slot != index as usize || image.epoch.clients.items[slot].state != health::HEALTHY || same(digest, &NO_DIGEST) {
        return Err(INVALID_WITNESS);
    }
    let client = &mut image.epoch.clients.items[slot];
    if same(&client.end_digest, digest) {
        return Err(DUPLICATE_WITNESS);
    }
    client.end_digest = *digest;
    let began = began(image);
    let (mut voters, mut equal) = (0, 0);
    for (slot, client) in image.epoch.clients.used().iter().enumerate() {
        if client.state != health::EJECTED && (client.accepted_rounds > 0 || set::has(&began, slot)) {
            voters += 1;
            equal += usize::from(same(&client.end_digest, digest));
        }
    }
    let otherwise = image.end_of(image.progress.step.wrapping_sub(1)).is_some_and(|end| !same(&end.digest, digest));
    if equal >= quorum(voters) && !otherwise {
        sign_end(image, digest);
    }
    Ok(())
}

/// Puts the present end with this digest into the list; ends of this step and of later ones go, and the oldest when it is full.
#[inline(never)]
fn sign_end(image: &mut Image, digest: &Key) {
    let step = image.progress.step.wrapping_sub(1);
    truncate_ends(&mut image.ends, step);
    let ends = &mut image.ends;
    if ends.len() == MAX_ENDS {
        unsafe { core::ptr::copy(ends.items.as_ptr().add(1), ends.items.as_mut_ptr(), MAX_ENDS - 1) };
        ends.truncate(MAX_ENDS - 1);
    }
    let number = ends.len();
    let mut place = Place::present(image);
    place.digest = *digest;
    place.write(&mut image.ends.items[number]);
    image.ends.count += 1;
    if image.stored.step == step && same(&image.stored.digest, &NO_DIGEST) {
        image.stored.digest = *digest;
    }
}

/// Forgets the ends from this step on.
fn truncate_ends(ends: &mut List<EpochEnd, MAX_ENDS>, step: u64) {
    let kept = ends.used().iter().position(|end| end.step >= step).unwrap_or(ends.len());
    ends.truncate(kept);
}

/// Statements that must name the same digest to sign a step: a quorum of all members of the stored rounds, or of the largest
/// committee where those are more.
fn needed_to_sign(image: &Image) -> usize {
    quorum(set::count(&began(image)).min(MAX_WITNESSES))
}

/// The slots that were healthy when a stored round began.
fn began(image: &Image) -> Set {
    let mut members = [0; 4];
    for round in image.epoch.rounds.used() {
        set::unite(&mut members, &round.slots);
    }
    members
}

/// The digest that a stored round's statements sign: that of everybody's masters during the round, which are those of two steps
/// before it. The round between must be stored too, for its samples would be assigned again.
#[inline(never)]
fn attested(image: &Image, place: usize, needed: usize) -> Option<Key> {
    let round = image.round(place);
    let said = round.statements.used();
    if place == 0 || round.step <= 2 || said.len() < needed {
        return None;
    }
    // a digest that most name is the one left when each other cancels one of them
    let (mut digest, mut lead) = (&NO_DIGEST, 0);
    for statement in said {
        let alike = same(&statement.model_digest, digest);
        if lead == 0 {
            digest = &statement.model_digest;
        }
        lead = if lead == 0 || alike { lead + 1 } else { lead - 1 };
    }
    let count = said.iter().filter(|statement| same(&statement.model_digest, digest)).count();
    if count < needed || same(digest, &NO_DIGEST) { None } else { Some(*digest) }
}

/// The newest signed step before the epoch's start that a member says to hold.
#[inline(never)]
pub fn held_step(image: &Image, said: &Key) -> Option<u64> {
    let start = image.epoch.start_step.wrapping_sub(1);
    let mut newest = None;
    let mut look = |step: u64, digest: &Key| {
        if step < start && newest.is_none_or(|known| known < step) && same(&held_digest(digest), said) {
            newest = Some(step);
        }
    };
    for end in image.ends.used() {
        look(end.step, &end.digest);
    }
    let needed = needed_to_sign(image);
    for place in 0..image.epoch.rounds.len() {
        if let Some(digest) = attested(image, place, needed) {
            let step = image.round(place).step - 2;
            if image.end_of(step).is_none() {
                look(step, &digest);
            }
        }
    }
    newest
}

/// What a member that cannot get the model sends instead of a model's digest, of the step it holds.
fn held_digest(digest: &Key) -> Key {
    let parts: [&[u8]; 2] = [HELD, as_bytes(digest)];
    digest_of(&parts)
}

fn digest_of(parts: &[&[u8]]) -> Key {
    let mut digest = [0; 8];
    unsafe { sol_sha256(parts.as_ptr(), parts.len() as u64, digest.as_mut_ptr() as *mut u8) };
    digest
}

/// A stored statement enters the run's history.
#[inline(never)]
pub fn note_statement(image: &mut Image, said: &Statement) {
    let words = said.words.get(..said.words_len as usize).unwrap_or(&[]);
    let said = unsafe { core::slice::from_raw_parts(said as *const Statement as *const u8, core::mem::offset_of!(Statement, words_len)) };
    let parts: [&[u8]; 4] = [STATED, as_bytes(&image.history), said, words];
    image.history = digest_of(&parts);
}

/// A round is decided by the statements of the next one: the decision enters the run's history.
#[inline(never)]
pub fn note_decision(image: &mut Image, place: usize, accepted: &Set) {
    let round = image.round(place);
    let numbers = [round.step, u64::from(round.height) << 32 | u64::from(image.progress.epoch)];
    let numbers = unsafe { core::slice::from_raw_parts(numbers.as_ptr() as *const u8, 16) };
    let accepted = unsafe { core::slice::from_raw_parts(accepted.as_ptr() as *const u8, 32) };
    let parts: [&[u8]; 4] = [DECIDED, as_bytes(&image.history), numbers, accepted];
    image.history = digest_of(&parts);
}

/// Whether a quorum of those who spoke in warmup, init_min_clients at least, cannot get the model the epoch starts with.
pub fn must_go_back(image: &Image) -> bool {
    let (mut lacking, mut spoken): (Set, Set) = ([0; 4], [0; 4]);
    image.healthy(&mut lacking);
    for word in 0..4 {
        spoken[word] = lacking[word] & (image.epoch.ready[word] | image.epoch.lacking[word]);
        lacking[word] &= image.epoch.lacking[word] & !image.epoch.ready[word];
    }
    let count = set::count(&spoken);
    image.from_checkpoint == 0 && count >= image.config.init_min_clients as usize && set::count(&lacking) >= quorum(count)
}

/// Gives the warmup up and goes back to the newest step that a member holds, else to the stored checkpoint, if that is allowed.
#[inline(never)]
pub fn without_model(run: &mut Run) {
    run.backing.keep(0);
    run.image.epoch.repeats = 0;
    if run.image.epoch.held_step != 0 {
        add_attested(run);
    }
    let image = &mut *run.image;
    let held_step = image.epoch.held_step;
    let held = image.ends.used().iter().position(|end| held_step != 0 && end.step == held_step);
    match held {
        Some(number) => go_back(image, &Place::of(&image.ends.items[number]), false),
        None if image.config.restart_from_checkpoint != 0 => go_back(image, &Place::of(&image.stored), true),
        None => {
            image.model_lost = 1;
            image.enter(state::PAUSED, run.now);
            return;
        }
    }
    wait_for_members(run);
}

/// Forgets the ends after the newest step that a member holds, and puts the steps up to it that stored statements sign among them,
/// as they would be without those rounds: what was accepted of later ones waits to be assigned again, behind what waited already.
#[inline(never)]
fn add_attested(run: &mut Run) {
    let (needed, newest, rounds) = (needed_to_sign(run.image), run.image.epoch.held_step, run.image.epoch.rounds.len());
    truncate_ends(&mut run.image.ends, newest.wrapping_add(1));
    let after = run.image.ends.used().last().map_or(0, |end| end.step);
    if after == newest {
        return; // a signed end: nothing between it and itself
    }
    let mut signed = [None; STORED_ROUNDS];
    let mut count = 0;
    for place in 1..rounds {
        let step = run.image.round(place).step.wrapping_sub(2);
        if step <= newest && step > after {
            signed[place] = attested(run.image, place, needed);
            count += usize::from(signed[place].is_some());
        }
    }
    let ends = &mut run.image.ends;
    let surplus = (ends.len() + count).saturating_sub(MAX_ENDS);
    unsafe { core::ptr::copy(ends.items.as_ptr().add(surplus), ends.items.as_mut_ptr(), ends.len() - surplus) };
    ends.count = (ends.len() - surplus + count) as u32;
    let mut number = ends.len();
    for place in (0..rounds).rev() {
        if run.image.round(place).drain != 0 {
            continue;
        }
        let mut seen = [0; 4];
        accepted(run, place, &mut seen);
        if !set::is_empty(&seen) {
            let returned = samples_of(run, place, &seen, heap::returned());
            add_returned(run, returned);
        }
        if let Some(digest) = signed.get(place + 1).copied().flatten() {
            number -= 1;
            let image = &mut *run.image;
            let mut end = Place::present(image);
            end.step = image.round(place).step - 1;
            end.digest = digest;
            let next = image.round(place + 1);
            end.history = if next.height == 1 { image.round(place).history } else { next.history };
            end.write(&mut image.ends.items[number]);
        }
    }
}

/// Goes back to the stored checkpoint.
pub fn go_back_to_stored(image: &mut Image) { go_back(image, &Place::of(&image.stored), true) }

/// Puts the run after an earlier step, in a new generation.
#[inline(never)]
fn go_back(image: &mut Image, target: &Place, from_checkpoint: bool) {
    image.progress.step = target.step.wrapping_add(1);
    image.progress.data_index = target.data_index;
    image.lost_samples = target.lost;
    refill(&mut image.requeue, target.first, target.count);
    truncate_ends(&mut image.ends, target.step.wrapping_add(1));
    image.from_checkpoint = u8::from(from_checkpoint);
    image.history = target.history;
    leave_history(image);
}

/// The run goes on where its owner has put its progress: with the members' model if they signed that end, else with the stored one.
pub fn move_here(image: &mut Image) {
    let step = image.progress.step.wrapping_sub(1);
    truncate_ends(&mut image.ends, step.wrapping_add(1));
    let signed = match image.end_of(step) {
        Some(end) => {
            image.history = end.history;
            true
        }
        None => {
            let parts: [&[u8]; 3] = [MOVED, as_bytes(&image.history), &step.to_le_bytes()];
            image.history = digest_of(&parts);
            false
        }
    };
    if !signed || image.stored.step > step {
        let stored = &mut image.stored;
        stored.step = step;
        stored.data_index = image.progress.data_index;
        stored.digest = NO_DIGEST;
        stored.lost = image.lost_samples;
        stored.history = image.history;
        stored.queue.truncate(0);
    }
    image.requeue.truncate(0);
    image.from_checkpoint = u8::from(!signed);
    image.model_lost = 0;
    leave_history(image);
}

/// A new generation, without the rounds that led to what is left behind.
fn leave_history(image: &mut Image) {
    image.generation = image.generation.wrapping_add(1);
    image.epoch.rounds.truncate(0);
    image.epoch.unplayed = 1;
    image.epoch.repeats = 0;
}
