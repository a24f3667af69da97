//! Who is paid: one account for each user of a run, with what it was paid so far.
use psyche_common::account::Account;
use psyche_common::platform::{find_address, same};
use psyche_common::record::{self, open_exact, Header, Record};
use psyche_common::token::{transfer, TokenAccount};
use psyche_common::{cpi, ids, Error, Input, Pubkey, Reader, Res};

use crate::coordinator::{Commanded, Coordinator, SETTLE};
use crate::run::{must_be_vault, Run, SEED as RUN_SEED};
use crate::{NOT_PAID_OUT, OTHER_RUN, OVER_CLAIM, STILL_NEEDED};

pub const SEED: &[u8] = b"participant";

#[repr(C)]
pub struct Participant {
    pub header: Header,
    pub bump: u8,
    zeros: [u8; 3],
    pub run: Pubkey,
    pub user: Pubkey,
    pub claimed: u64,
    /// `created` of the run it belongs to.
    pub run_created: u64,
    /// Its part of the run's `forgiven`.
    pub forgiven: u64,
    reserved: [u8; 24],
}

pub const BYTES: usize = core::mem::size_of::<Participant>();
const _: () = assert!(BYTES == 128 && core::mem::offset_of!(Participant, claimed) == 80 && core::mem::offset_of!(Participant, forgiven) == 96);

unsafe impl Record for Participant {
    const MAGIC: [u8; 8] = *b"PsychePa";
    const VERSION: u32 = 1;
}

impl Participant {
    /// Of this run, and not of one that had its index before.
    pub fn must_be_of(&self, run: &Account, found: &Run) -> Res {
        if same(&self.run, run.key()) && self.run_created == found.created { Ok(()) } else { Err(OTHER_RUN) }
    }
}

pub fn create(input: &Input, data: &[u8]) -> Res {
    let [payer, user, run, participant, system] = input.accounts::<5>()?;
    Reader(data).end()?;
    run.must_be_writable()?;
    let found: &mut Run = open_exact(run, input.program)?;
    let mut key = [0; 32];
    let bump = find_address(&[SEED, run.key(), user.key()], input.program, &mut key);
    participant.must_be(&key)?;
    participant.must_be_writable()?;
    if !is_left_over(participant, run, found, input.program)? {
        cpi::create(payer, participant, system, input.program, BYTES as u64, &[SEED, run.key(), user.key(), &[bump]])?;
    }
    let made: &mut Participant = record::begin(participant)?;
    made.bump = bump;
    made.run = *run.key();
    made.user = *user.key();
    made.claimed = 0;
    made.run_created = found.created;
    made.forgiven = 0;
    found.participants = found.participants.checked_add(1).ok_or(Error::OVERFLOW)?;
    Ok(())
}

/// Whether the account is one of a run that had this index before, and may be used again.
fn is_left_over(participant: &Account, run: &Account, found: &Run, program: &Pubkey) -> Res<bool> {
    if participant.must_be_owned_by(program).is_err() {
        return Ok(false);
    }
    let old: &mut Participant = open_exact(participant, program)?;
    if old.must_be_of(run, found).is_ok() { Err(Error::ALREADY_EXISTS) } else { Ok(true) }
}

/// Pays a user. It signs itself, or the run's owner does, who may thus pay everybody before closing the run.
pub fn claim(input: &Input, data: &[u8]) -> Res {
    let [authority, tokens, run, participant, vault, coordinator, token] = input.accounts::<7>()?;
    let mut reader = Reader(data);
    let amount = reader.u64()?;
    reader.end()?;
    authority.must_sign()?;
    tokens.must_be_writable()?;
    run.must_be_writable()?;
    participant.must_be_writable()?;
    let found: &mut Run = open_exact(run, input.program)?;
    let paid: &mut Participant = open_exact(participant, input.program)?;
    paid.must_be_of(run, found)?;
    if !same(&paid.user, authority.key()) && !same(&found.main_authority, authority.key()) {
        return Err(Error::NOT_AUTHORITY);
    }
    must_be_vault(vault, run, found)?;
    TokenAccount::of(tokens, &found.mint)?.must_belong_to(&paid.user)?;
    if coordinator.must_be(&found.coordinator).is_err() {
        return Err(OTHER_RUN);
    }
    let net = Coordinator::open(coordinator)?.net_of(&paid.user);
    if amount > net.saturating_sub(paid.claimed) {
        return Err(OVER_CLAIM);
    }
    paid.claimed = paid.claimed.checked_add(amount).ok_or(Error::OVERFLOW)?;
    found.claimed = found.claimed.checked_add(amount).ok_or(Error::OVERFLOW)?;
    transfer(vault, tokens, run, token, amount, &[RUN_SEED, &found.index.to_le_bytes(), &[found.bump]])
}

/// Frees the coordinator's account of a member that was paid all it earned, and forgets the payment with it: from anybody, for the run
/// holds only so many accounts. Who owes for points slashed beyond what it earned keeps its own, and with it what it owes.
pub fn release(input: &Input, data: &[u8]) -> Res {
    let [run, participant, instance, coordinator, program] = input.accounts::<5>()?;
    Reader(data).end()?;
    run.must_be_writable()?;
    participant.must_be_writable()?;
    coordinator.must_be_writable()?;
    let found: &mut Run = open_exact(run, input.program)?;
    let paid: &mut Participant = open_exact(participant, input.program)?;
    paid.must_be_of(run, found)?;
    let commanded = Commanded { run, instance, account: coordinator, program };
    commanded.must_be_of(found)?;
    let Some(points) = Coordinator::open(coordinator)?.points_of(&paid.user) else { return Err(NOT_PAID_OUT) };
    if points.earned.checked_sub(points.slashed) != Some(paid.claimed) {
        return Err(NOT_PAID_OUT);
    }
    found.claimed = found.claimed.checked_sub(paid.claimed).ok_or(Error::OVERFLOW)?;
    found.forgiven = found.forgiven.checked_sub(paid.forgiven).ok_or(Error::OVERFLOW)?;
    paid.claimed = 0;
    paid.forgiven = 0;
    let mut command = [SETTLE; 33];
    command[1..].copy_from_slice(&paid.user);
    commanded.command(found, &command)
}

/// Only what remembers nothing, or belongs to a run that is closed: the memory of a payment keeps it from being made twice, and that of
/// slashed points lets the owner close the run, however often their member would like to be asked again.
pub fn close(input: &Input, data: &[u8]) -> Res {
    let [user, spill, run, participant] = input.accounts::<4>()?;
    Reader(data).end()?;
    user.must_sign()?;
    spill.must_be_writable()?;
    run.must_be_writable()?;
    participant.must_be_writable()?;
    let paid: &mut Participant = open_exact(participant, input.program)?;
    if !same(&paid.user, user.key()) {
        return Err(Error::NOT_AUTHORITY);
    }
    if run.must_be(&paid.run).is_err() {
        return Err(OTHER_RUN);
    }
    let gone = run.must_be_owned_by(&ids::SYSTEM).is_ok();
    if !gone {
        let found: &mut Run = open_exact(run, input.program)?;
        if paid.must_be_of(run, found).is_ok() {
            if paid.claimed != 0 || paid.forgiven != 0 {
                return Err(STILL_NEEDED);
            }
            found.participants = found.participants.checked_sub(1).ok_or(Error::OVERFLOW)?;
        }
    }
    participant.close(spill)
}
