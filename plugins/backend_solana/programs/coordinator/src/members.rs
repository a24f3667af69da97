//! Members: joining, leaving, and being reported as unhealthy (psyche_core/coordinator/membership/members.py).
use crate::accounts::key_of;
use crate::elections::{needed, witnesses};
use crate::image::{health, same, state, Identity, Key, Set, MAX_CLIENTS, MAX_REJOINS, NONE, WAITED_MISSES};
use crate::refusal::{
    Outcome, ACCOUNTS_FULL, CLIENTS_FULL, HALTED, INVALID_HEALTH_CHECK, INVALID_PROOF, INVALID_RUN_STATE, INVALID_WITHDRAW, INVALID_WITNESS,
    NO_ACTIVE_ROUND, REJOINS_EXHAUSTED, TRANSPORT_KEY_TAKEN,
};
use crate::rewards::has_account_for;
use crate::run::{Run, Signers};
use crate::set;
use crate::shares::{assigned, before, judged as verdicts};
use crate::verified::{as_bytes, Verified, JOIN};
use psyche_common::authorization::Authorization;
use psyche_common::platform::same as same_key;
use psyche_common::{Account, Pubkey};

/// Place of a signer among the pending members, NONE when it is not pending.
fn pending_place(run: &Run, signer: &Key) -> usize {
    run.image.pending.used().iter().position(|member| same(&member.signer, signer)).unwrap_or(NONE)
}

/// Since when the pending members have been enough.
fn note_minimum(run: &mut Run) {
    let image = &mut *run.image;
    if image.pending.len() < image.config.init_min_clients as usize {
        image.minimum_present = 0;
        image.minimum_since = 0;
    } else if image.minimum_present == 0 {
        image.minimum_present = 1;
        image.minimum_since = run.now;
    }
}

/// Whether another signer, pending or of the epoch, has this transport key.
fn is_taken(run: &Run, sender: &Identity) -> bool {
    let another = |member: &Identity| same(&member.p2p, &sender.p2p) && !same(&member.signer, &sender.signer);
    run.image.pending.used().iter().any(another) || run.image.epoch.clients.used().iter().any(|client| another(&client.id))
}

/// `proof`: signature by the transport key over the run's instance and the signer.
pub fn join(run: &mut Run, sender: &Identity, proof: &[u8; 64], sysvar: &Account) -> Outcome {
    if run.image.run_state == state::FINISHED {
        return Err(HALTED);
    }
    let signed = [(as_bytes(&sender.signer), proof)];
    let verified = Verified { key: &sender.p2p, instance: &run.image.instance, domain: JOIN, signed: &signed };
    if !verified.just_before(sysvar)? {
        return Err(INVALID_PROOF);
    }
    if is_taken(run, sender) {
        return Err(TRANSPORT_KEY_TAKEN);
    }
    let place = pending_place(run, &sender.signer);
    if place != NONE {
        run.image.pending.items[place] = *sender;
        return Ok(());
    }
    if run.image.pending.len() >= MAX_CLIENTS {
        return Err(CLIENTS_FULL);
    }
    if !has_account_for(run, &sender.signer) {
        return Err(ACCOUNTS_FULL);
    }
    let pending = &mut run.image.pending;
    pending.items[pending.count as usize] = *sender;
    pending.count += 1;
    note_minimum(run);
    Ok(())
}

/// Whether one more may be pending by an authorization with a limit, so that nobody who was trusted once fills all places. One for
/// everybody counts all who are pending and thus leaves places to others; any other counts the grantee and its delegates.
pub fn has_room(run: &Run, grant: &Authorization, delegates: &[Pubkey], user: &Key) -> bool {
    let pending = run.image.pending.used();
    if pending_place(run, user) != NONE {
        return true;
    }
    let limit = grant.limit as usize;
    if grant.is_for_everybody() {
        return pending.len() < limit;
    }
    let members = Signers::over(pending, run.salt);
    for number in 0..pending.len() {
        members.insert(number);
    }
    let named = delegates.iter().filter(|delegate| members.contains(&key_of(delegate))).count();
    let own = members.contains(&key_of(&grant.grantee)) && !delegates.iter().any(|delegate| same_key(delegate, &grant.grantee));
    named + usize::from(own) < limit
}

pub fn withdraw(run: &mut Run, sender: &Key) -> Outcome {
    let slot = run.image.slot_of(sender);
    if slot != NONE && run.image.epoch.clients.items[slot].state == health::HEALTHY {
        let mut leaving = [0; 4];
        set::insert(&mut leaving, slot);
        exit(run, &leaving, health::WITHDRAWN);
        return Ok(());
    }
    if pending_place(run, sender) == NONE {
        return Err(INVALID_WITHDRAW);
    }
    remove_pending(run, sender);
    Ok(())
}

/// Takes one member off the pending list, if it is there.
pub fn remove_pending(run: &mut Run, signer: &Key) {
    let place = pending_place(run, signer);
    if place != NONE {
        let pending = &mut run.image.pending;
        let behind = pending.len() - place - 1;
        unsafe { core::ptr::copy(pending.items.as_ptr().add(place + 1), pending.items.as_mut_ptr().add(place), behind) };
        pending.truncate(place + behind);
    }
    note_minimum(run);
}

/// The current round's height, 0 without one.
pub fn current_height(run: &Run) -> u32 {
    match run.image.current() {
        NONE => 0,
        place => run.image.round(place).height,
    }
}

/// Takes those of `slots` that are healthy out of health, and their members off the pending list.
#[inline(never)]
pub fn exit(run: &mut Run, slots: &Set, to: u8) {
    let mut leaving = [0; 4];
    run.image.healthy(&mut leaving);
    set::intersect(&mut leaving, slots);
    if set::is_empty(&leaving) {
        return;
    }
    let height = current_height(run);
    let gone = Signers::over(run.image.epoch.clients.used(), run.salt);
    let mut left = leaving;
    while !set::is_empty(&left) {
        let slot = set::take_first(&mut left);
        let client = &mut run.image.epoch.clients.items[slot];
        client.state = to;
        client.exited_height = height;
        gone.insert(slot);
    }
    // those who stay move up in as few pieces as there are who leave
    let pending = &mut run.image.pending;
    let (count, items) = (pending.len(), pending.items.as_mut_ptr());
    let (mut kept, mut first) = (0, 0);
    for place in 0..=count {
        if place == count || gone.contains(unsafe { &(*items.add(place)).signer }) {
            if kept != first {
                unsafe { core::ptr::copy(items.add(first), items.add(kept), place - first) };
            }
            kept += place - first;
            first = place + 1;
        }
    }
    pending.truncate(kept);
    note_minimum(run);
}

/// Brings a dropped or withdrawn slot back to health.
pub fn come_back(run: &mut Run, slot: usize) -> Outcome {
    let client = &run.image.epoch.clients.items[slot];
    if client.state == health::EJECTED {
        return Err(INVALID_WITNESS);
    }
    let place = pending_place(run, &client.id.signer);
    if place == NONE || !same(&run.image.pending.items[place].p2p, &client.id.p2p) {
        return Err(INVALID_WITNESS);
    }
    if client.rejoins >= MAX_REJOINS {
        return Err(REJOINS_EXHAUSTED);
    }
    let client = &mut run.image.epoch.clients.items[slot];
    client.state = health::HEALTHY;
    client.rejoins += 1;
    client.missed = client.missed.min(WAITED_MISSES);
    set::insert(&mut run.image.epoch.ready, slot);
    Ok(())
}

/// Drops slots whose share a quorum did not see. `slots` are u16, little-endian.
pub fn health_check(run: &mut Run, sender: &Key, slots: &[u8]) -> Outcome {
    if run.image.halted() {
        return Err(HALTED);
    }
    if !run.image.active() {
        return Err(INVALID_RUN_STATE);
    }
    let current = run.image.current();
    if current == NONE {
        return Err(NO_ACTIVE_ROUND);
    }
    let (judging, judged) = (before(run, current, 1), before(run, current, 2));
    if judging == NONE || judged == NONE {
        return Err(INVALID_HEALTH_CHECK);
    }
    let reporter = run.image.slot_of(sender);
    let mut elected = [0; 4];
    witnesses(run, judging, &mut elected);
    if reporter == NONE || !set::has(&elected, reporter) {
        return Err(INVALID_HEALTH_CHECK);
    }
    if run.image.round(judging).statements.len() < needed(run, judging) || slots.is_empty() {
        return Err(INVALID_HEALTH_CHECK);
    }
    let (mut unseen, mut seen, mut leaving) = ([0; 4], [[0; 4]; 2], [0; 4]);
    assigned(run, judged, &mut unseen);
    verdicts(run, judged, &mut seen);
    let [accepted, divided] = seen;
    set::subtract(&mut unseen, &accepted);
    let height = run.image.round(judged).height;
    for pair in slots.chunks_exact(2) {
        let slot = pair[0] as usize | (pair[1] as usize) << 8;
        if slot >= MAX_CLIENTS || !set::has(&unseen, slot) {
            return Err(INVALID_HEALTH_CHECK);
        }
        let client = &run.image.epoch.clients.items[slot];
        if !client.absent_since(height) {
            set::insert(&mut leaving, slot);
        }
    }
    // `rounds` has counted a missed duty for each of these.
    set::subtract(&mut leaving, &divided);
    exit(run, &leaving, health::DROPPED);
    Ok(())
}
