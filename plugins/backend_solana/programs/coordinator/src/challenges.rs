//! Challenges of shares: drawn and advanced when a round begins, and what their verdicts change (psyche_core/coordinator/lifecycle/
//! challenges.py). The state machine of one challenge is in `verdicts`, who is drawn in `drawing`.
use crate::drawing::{challenges as draw, seed_of, Candidates};
use crate::elections::{elected_count, needed, quorum};
use crate::equivocation::eject;
use crate::image::{health, stage, Challenge, Key, Root, Set, MAX_CHALLENGED_INTERVALS, MAX_CHALLENGES, MAX_CLIENTS, NO_DIGEST, NONE};
use crate::refusal::{Outcome, HALTED, INVALID_COMMIT, INVALID_RUN_STATE, NO_ACTIVE_ROUND};
use crate::requeue::add_returned;
use crate::rounds::add_missed_duties;
use crate::run::{heap, Run};
use crate::set;
use crate::shares::{accepted, before, few_intervals, has_samples, share_order, write_shares};
use crate::shuffle::Order;
use crate::verdicts::{advance, judged_count, standings, without, Began, Verdict};

/// Highest word a witness can say.
const LAST_WORD: u8 = 6;
pub const STRIKES_EJECT: u8 = 2;

/// A stored challenge, while the rest of the run is read and written: no two have the same place, and none is both at once.
#[inline(always)]
fn stored<'a>(run: &mut Run, place: usize) -> &'a mut Challenge {
    unsafe { &mut *run.image.epoch.challenges.items.as_mut_ptr().add(place & (MAX_CHALLENGES - 1)) }
}

/// How many words a statement of the round of this height has.
fn words_due(run: &Run, height: u32) -> usize {
    run.image.epoch.challenges.used().iter().map(|one| if one.awaits_words(height) { judged_count(one) } else { 0 }).sum()
}

/// Whether a statement of the current round can have these words.
#[inline(never)]
pub fn words_fit(run: &Run, height: u32, words: &[u8]) -> bool {
    let count = words_due(run, height);
    let odd_rest = count & 1 == 1 && words.last().is_some_and(|last| last >> 4 != 0);
    let known = words.iter().all(|two| two & 15 <= LAST_WORD && two >> 4 <= LAST_WORD);
    words.len() == count.div_ceil(2) && known && !odd_rest
}

/// What a member commits to about a challenged share; no root is the verifier's complaint.
pub struct Commit<'a> {
    pub epoch: u32,
    pub seed: u64,
    pub height: u32,
    pub trainer: u16,
    pub root: Option<&'a [u8; 32]>,
}

/// Stores a commitment or a complaint.
pub fn verifier_commit(run: &mut Run, sender: &Key, commit: &Commit) -> Outcome {
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
    let slot = run.image.slot_of(sender);
    if slot == NONE || run.image.epoch.clients.items[slot].state != health::HEALTHY {
        return Err(INVALID_COMMIT);
    }
    if commit.epoch != run.image.progress.epoch || commit.seed != run.image.round(current).seed {
        return Err(INVALID_COMMIT);
    }
    let place = |one: &Challenge| one.height == commit.height && one.trainer == commit.trainer;
    let Some(place) = run.image.epoch.challenges.used().iter().position(place) else { return Err(INVALID_COMMIT) };
    let one = stored(run, place);
    match commit.root {
        Some(root) if one.by_command() && one.expects(slot) && !one.committed(slot) => {
            let mut commitment = NO_DIGEST;
            crate::text::copy(&mut commitment, root);
            add_root(one, Root::of(slot as u16, commitment));
        }
        None if one.stage == stage::COMMIT && slot == one.verifier as usize && one.complained == 0 && !one.committed(slot) => {
            one.complained = 1;
        }
        _ => return Err(INVALID_COMMIT),
    }
    Ok(())
}

/// Puts a root in its place by slot.
fn add_root(one: &mut Challenge, root: Root) {
    let mut place = one.roots.len();
    while place > 0 && one.roots.items[place - 1].slot > root.slot {
        one.roots.items.swap(place - 1, place);
        place -= 1;
    }
    one.roots.items[place] = root;
    one.roots.count += 1;
}

/// The slots whose strikes eject them.
fn ejected_by_strikes(run: &Run, out: &mut Set) {
    *out = [0; 4];
    for (slot, client) in run.image.epoch.clients.used().iter().enumerate() {
        if client.standing.strikes >= STRIKES_EJECT {
            set::insert(out, slot);
        }
    }
}

/// The healthy slots that took part in a stored round.
fn present_since(run: &Run, place: usize, out: &mut Set) {
    run.image.healthy(out);
    set::intersect(out, &run.image.round(place).slots);
}

/// Advances the challenges once the current round is over, and does what their verdicts say.
#[inline(never)]
pub fn challenges_advanced(run: &mut Run, current: usize) {
    if run.image.epoch.challenges.count == 0 {
        return;
    }
    let mut missed = [0u8; MAX_CLIENTS];
    let ended = run.image.round(current).height;
    let (mut members, mut out) = ([0; 4], [0; 4]);
    present_since(run, 0, &mut members);
    ejected_by_strikes(run, &mut out);
    set::subtract(&mut members, &out);
    let elected = elected_count(run, current);
    let statements = run.image.round(current).statements.len();
    let began = Began {
        height: ended + 1,
        seed: seed_of(run.seed),
        members,
        elected,
        quorum: quorum(elected),
        quorate: statements >= needed(run, current).max(1),
        current,
    };
    let (mut word, mut kept) = (0, 0);
    let mut again = Again { height: 0, count: 0 };
    for place in 0..run.image.epoch.challenges.len() {
        let one = stored(run, place);
        let count = if one.awaits_words(ended) { judged_count(one) } else { 0 };
        let first = word;
        word += count;
        if one.share.count == 0 {
            continue; // a proof has decided about the share
        }
        match advance(run, one, &began, if count > 0 { first } else { NONE }) {
            Some(verdict) => {
                judge(run, one, &verdict, began.height, &mut missed);
                if verdict.requeue {
                    again.add(run, one);
                }
            }
            None => kept = keep(run, place, kept),
        }
    }
    again.put(run);
    run.image.epoch.challenges.truncate(kept);
    ejected_by_strikes(run, &mut out);
    if !set::is_empty(&out) {
        leave_out(run, &out, began.height, &mut missed);
    }
    count_missed(run, &missed);
    eject_for_strikes(run, &out, current);
}

/// Moves a challenge that stays open to the next free place; the place after it.
fn keep(run: &mut Run, place: usize, kept: usize) -> usize {
    if kept != place {
        unsafe { core::ptr::copy_nonoverlapping(stored(run, place) as *const Challenge, stored(run, kept), 1) };
    }
    kept + 1
}

/// Takes ejected slots out of the challenges that are still open.
#[inline(never)]
fn leave_out(run: &mut Run, out: &Set, height: u32, missed: &mut [u8; MAX_CLIENTS]) {
    let mut kept = 0;
    for place in 0..run.image.epoch.challenges.len() {
        let one = stored(run, place);
        match without(one, out) {
            Some(verdict) => judge(run, one, &verdict, height, missed),
            None => kept = keep(run, place, kept),
        }
    }
    run.image.epoch.challenges.truncate(kept);
}

/// The convicted shares of one round, whose samples go back to the queue together: ascending at `heap::returned`.
struct Again {
    height: u32,
    count: usize,
}

impl Again {
    /// Adds a share. Shares of a round lie side by side, so each has one place among the others.
    fn add(&mut self, run: &mut Run, one: &Challenge) {
        if one.height != self.height {
            self.put(run);
            self.height = one.height;
        }
        let share = one.share.used();
        let items = heap::returned();
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            if unsafe { (*items.add(middle)).first } < share[0].first {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        unsafe {
            core::ptr::copy(items.add(low), items.add(low + share.len()), self.count - low);
            core::ptr::copy_nonoverlapping(share.as_ptr(), items.add(low), share.len());
        }
        self.count += share.len();
    }

    /// Puts them into the queue.
    fn put(&mut self, run: &mut Run) {
        add_returned(run, self.count);
        self.count = 0;
    }
}

/// What a verdict changes: standings and payments.
#[inline(never)]
fn judge(run: &mut Run, one: &Challenge, verdict: &Verdict, height: u32, missed: &mut [u8; MAX_CLIENTS]) {
    standings(run.image, one, verdict, height);
    let mut silent = verdict.missed;
    while !set::is_empty(&silent) {
        let slot = set::take_first(&mut silent);
        missed[slot] = missed[slot].saturating_add(1);
    }
    let mut paid = verdict.paid;
    while !set::is_empty(&paid) {
        let client = &mut run.image.epoch.clients.items[set::take_first(&mut paid)];
        client.accepted_rounds = client.accepted_rounds.wrapping_add(1);
    }
    if verdict.requeue {
        let client = &mut run.image.epoch.clients.items[one.trainer as usize & (MAX_CLIENTS - 1)];
        client.accepted_rounds = client.accepted_rounds.saturating_sub(1);
    }
}

/// Each duty counts by itself: what a missed one costs depends on those before.
fn count_missed(run: &mut Run, missed: &[u8; MAX_CLIENTS]) {
    for (slot, times) in missed.iter().enumerate().filter(|(_, times)| **times > 0) {
        if run.image.epoch.clients.items[slot].state == health::HEALTHY {
            let mut only = [0; 4];
            set::insert(&mut only, slot);
            for _ in 0..*times {
                add_missed_duties(run, &only);
            }
        }
    }
}

/// Ejects who has too many strikes; its share of the ended round, about which nothing is decided, is void.
#[inline(never)]
fn eject_for_strikes(run: &mut Run, out: &Set, ended: usize) {
    let mut left = *out;
    while !set::is_empty(&left) {
        let slot = set::take_first(&mut left);
        if run.image.epoch.clients.items[slot].state == health::EJECTED {
            continue;
        }
        if has_samples(run, ended, slot) {
            set::insert(&mut run.image.epoch.rounds.items[ended].voided, slot);
        }
        let signer = run.image.epoch.clients.items[slot].id.signer;
        eject(run, slot, &signer);
    }
}

/// Draws challenges about the shares of the round three before the one that begins after `current`: its seed was not known before these
/// were decided.
#[inline(never)]
pub fn draw_challenges(run: &mut Run, current: usize) {
    let percent = run.image.config.verification_percent as usize;
    let judged = before(run, current, 2);
    if percent == 0 || judged == NONE {
        return;
    }
    let mut order = Order::uninit();
    let order = share_order(run, judged, &mut order);
    let (mut shares, mut few) = ([0; 4], [0; 4]);
    accepted(run, judged, &mut shares);
    few_intervals(run, judged, order, MAX_CHALLENGED_INTERVALS, &mut few);
    set::intersect(&mut shares, &few);
    let (mut out, mut members, mut busy) = ([0; 4], [0; 4], [0; 4]);
    ejected_by_strikes(run, &mut out);
    set::subtract(&mut shares, &out);
    if set::is_empty(&shares) {
        return;
    }
    present_since(run, judged, &mut members);
    recomputing(run, &mut busy);
    set::subtract(&mut members, &out);
    set::subtract(&mut members, &busy);
    let height = run.image.round(judged).height;
    let mut watched = [0; 4];
    for (slot, client) in run.image.epoch.clients.used().iter().enumerate() {
        if height < client.standing.watched_before && client.standing.strikes < STRIKES_EJECT {
            set::insert(&mut watched, slot);
        }
    }
    let most = MAX_CHALLENGES - run.image.epoch.challenges.len();
    let from = Candidates { height: u64::from(height), shares, members, watched, percent, most };
    let (mut trainers, mut verifiers) = ([0; 4], [0u8; MAX_CLIENTS]);
    draw(&seed_of(run.seed), &from, &mut trainers, &mut verifiers);
    let first = run.image.epoch.challenges.len();
    let mut left = trainers;
    while !set::is_empty(&left) {
        let slot = set::take_first(&mut left);
        let place = run.image.epoch.challenges.len();
        let one = stored(run, place);
        one.height = height;
        one.since = run.image.round(current).height + 1;
        one.trainer = slot as u16;
        one.verifier = u16::from(verifiers[slot]);
        run.image.epoch.challenges.count += 1;
    }
    write_shares(run, judged, order, first);
}

/// The slots that recompute a share in the round that begins, healthy or not.
pub fn recomputing(run: &Run, out: &mut Set) {
    *out = [0; 4];
    for one in run.image.epoch.challenges.used().iter().filter(|one| one.by_command()) {
        if one.stage == stage::TIE_COMMIT {
            for slot in one.judges.used().iter().filter(|slot| !one.committed(**slot as usize)) {
                set::insert(out, *slot as usize);
            }
        } else if !one.committed(one.verifier as usize) {
            set::insert(out, one.verifier as usize);
        }
    }
}

impl Challenge {
    /// Whether the statements of the round of this height have words about it.
    pub fn awaits_words(&self, height: u32) -> bool { !self.by_command() && height == self.since.wrapping_add(1) }

    /// Whether roots and complaints are waited for, which are commands; words otherwise.
    pub fn by_command(&self) -> bool { matches!(self.stage, stage::COMMIT | stage::RECOMMIT | stage::TIE_COMMIT) }

    pub fn committed(&self, slot: usize) -> bool { self.roots.used().iter().any(|root| root.slot as usize == slot) }

    /// Whether a slot is to commit to a root in this stage.
    fn expects(&self, slot: usize) -> bool {
        match self.stage {
            stage::TIE_COMMIT => self.judges.used().iter().any(|judge| *judge as usize == slot),
            _ => self.verifier as usize == slot,
        }
    }
}
