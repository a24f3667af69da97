//! A slot that signed two results for one share is ejected (psyche_core/coordinator/membership/equivocation.py; `judge` in witness.py).
use crate::elections::{elected_count, quorum};
use crate::evidence::{commitments, SignedResult};
use crate::image::{health, Key, NONE};
use crate::members::{current_height, remove_pending};
use crate::refusal::{Outcome, HALTED, INVALID_EVIDENCE, INVALID_RUN_STATE};
use crate::requeue::add_returned;
use crate::run::{heap, Run};
use crate::set;
use crate::shares::{has_samples, share_of, total, was_seen};
use crate::verified::{Verified, COMMITMENT};
use psyche_common::runtime::sol_sha256;
use psyche_common::Account;

const BLOOM_BITS: u64 = 2560;
const BLOOM_KEYS: usize = 8;
const KEY_DOMAIN: &[u8] = b"psyche/broadcast-bloom/v1";
const FNV_PRIME: u64 = 0x100_0000_01b3;

pub struct Report<'a> {
    pub epoch: u32,
    pub height: u32,
    pub index: usize,
    pub results: [SignedResult<'a>; 2],
}

pub fn equivocation(run: &mut Run, sender: &Key, report: &Report, sysvar: &Account) -> Outcome {
    if run.image.halted() {
        return Err(HALTED);
    }
    if !run.image.active() {
        return Err(INVALID_RUN_STATE);
    }
    let (judged, reporter, slot) = (run.image.round_at(u64::from(report.height)), run.image.slot_of(sender), report.index);
    if judged == NONE || reporter == NONE || run.image.epoch.clients.items[reporter].state != health::HEALTHY {
        return Err(INVALID_EVIDENCE);
    }
    if report.epoch != run.image.progress.epoch || slot >= run.image.epoch.clients.len() {
        return Err(INVALID_EVIDENCE);
    }
    if set::has(&run.image.round(judged).voided, slot) || report.results[0].payload_hash == report.results[1].payload_hash {
        return Err(INVALID_EVIDENCE);
    }
    let share = share_of(run, judged, slot, heap::returned());
    if share == 0 {
        return Err(INVALID_EVIDENCE);
    }
    let accused = run.image.epoch.clients.items[slot].id;
    let mut signed = [[0u8; 32]; 2];
    let intervals = unsafe { core::slice::from_raw_parts(heap::returned(), share) };
    commitments(run, judged, intervals, &accused.signer, &report.results, &mut signed);
    let results = [(&signed[0], report.results[0].signature), (&signed[1], report.results[1].signature)];
    let verified = Verified { key: &accused.p2p, instance: &run.image.instance, domain: COMMITMENT, signed: &results };
    if !verified.just_before(sysvar)? {
        return Err(INVALID_EVIDENCE);
    }

    let news = run.image.epoch.clients.items[slot].state != health::EJECTED;
    let changed = judge_share(run, judged, slot, share, &signed);
    if news {
        void_undecided(run, slot);
        eject(run, slot, &accused.signer);
    } else if !changed {
        return Err(INVALID_EVIDENCE);
    }
    Ok(())
}

/// What becomes of the share, whose intervals are at `heap::returned`; whether anything does.
#[inline(never)]
fn judge_share(run: &mut Run, judged: usize, slot: usize, share: usize, candidates: &[[u8; 32]; 2]) -> bool {
    let height = run.image.round(judged).height;
    if run.image.playing() && current_height(run) <= height.saturating_add(1) {
        set::insert(&mut run.image.epoch.rounds.items[judged].voided, slot);
        return true;
    }
    if !was_seen(run, judged, slot) {
        return false;
    }
    let verdict = judge(run, judged + 1, slot, candidates);
    let client = &mut run.image.epoch.clients.items[slot];
    let bit = 1u8 << (height & 7);
    let known_lost = client.lost_rounds & bit != 0;
    if verdict == CHOSEN || (known_lost && verdict != VOID) {
        return false;
    }
    if !known_lost {
        client.accepted_rounds = client.accepted_rounds.saturating_sub(1);
    }
    let samples = total(heap::returned(), share);
    for one in run.image.epoch.challenges.used_mut() {
        if one.height == height && one.trainer as usize == slot {
            one.share.truncate(0); // there is nothing left to challenge
        }
    }
    if verdict == VOID {
        client.lost_rounds &= !bit;
        add_returned(run, share);
        if known_lost {
            run.image.lost_samples = run.image.lost_samples.saturating_sub(samples);
        }
        set::insert(&mut run.image.epoch.rounds.items[judged].voided, slot);
    } else {
        client.lost_rounds |= bit;
        run.image.lost_samples = run.image.lost_samples.wrapping_add(samples);
    }
    true
}

const UNKNOWN: u8 = 0;
const CHOSEN: u8 = 1;
const VOID: u8 = 2;

/// What the statements of the round at `attesting` say together about the share of `slot`.
#[inline(never)]
fn judge(run: &Run, attesting: usize, slot: usize, candidates: &[[u8; 32]; 2]) -> u8 {
    let round = run.image.round(attesting);
    let mut bits = [[0u16; BLOOM_KEYS]; 2];
    positions(round.seed, candidates, &mut bits);
    let (mut filters, mut votes, mut unexplained) = (0, [0usize; 2], 0);
    for statement in round.statements.used() {
        if statement.participants[slot >> 5 & 7] >> (slot & 31) & 1 == 0 {
            continue;
        }
        filters += 1;
        let mut explained = false;
        for (candidate, places) in bits.iter().enumerate() {
            let inside = places.iter().all(|bit| statement.broadcast_bloom[(*bit >> 3) as usize] >> (*bit & 7) & 1 == 1);
            votes[candidate] += usize::from(inside);
            explained |= inside;
        }
        unexplained += usize::from(!explained);
    }
    let elected = elected_count(run, attesting);
    let liars = elected - quorum(elected);
    let needed = filters.max(liars + 1) - liars;
    if votes[0] >= needed || votes[1] >= needed {
        return CHOSEN;
    }
    if unexplained + liars < needed { VOID } else { UNKNOWN }
}

/// The bits of each candidate in the filters of the round with this seed: keyed 64-bit FNV-1a.
fn positions(seed: u64, candidates: &[[u8; 32]; 2], out: &mut [[u16; BLOOM_KEYS]; 2]) {
    for number in 0..BLOOM_KEYS {
        let mut key = [0u64; 4];
        let parts: [&[u8]; 3] = [KEY_DOMAIN, &seed.to_le_bytes(), &[number as u8]];
        unsafe { sol_sha256(parts.as_ptr(), 3, key.as_mut_ptr() as *mut u8) };
        for (candidate, places) in candidates.iter().zip(out.iter_mut()) {
            let mut state = key[0];
            for byte in candidate {
                state = (state ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
            }
            places[number] = (state % BLOOM_BITS) as u16;
        }
    }
}

/// All shares of a slot void that nothing is decided about yet: who signed twice once may have done so again.
fn void_undecided(run: &mut Run, slot: usize) {
    if !run.image.playing() {
        return;
    }
    let current = current_height(run);
    for place in 0..run.image.epoch.rounds.len() {
        if run.image.round(place).height.saturating_add(1) >= current && has_samples(run, place, slot) {
            set::insert(&mut run.image.epoch.rounds.items[place].voided, slot);
        }
    }
}

/// The slot ejected whatever its health was, its member no longer pending.
pub fn eject(run: &mut Run, slot: usize, signer: &Key) {
    let height = current_height(run);
    let client = &mut run.image.epoch.clients.items[slot];
    if client.state == health::HEALTHY {
        client.exited_height = height;
    }
    client.state = health::EJECTED;
    remove_pending(run, signer);
}
