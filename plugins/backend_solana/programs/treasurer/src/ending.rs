//! What the owner takes back: collateral nobody is owed, and the run itself.
//!
//! What is owed is at most the sum of all that was earned, less all that was paid. Points that were slashed are owed no more, but a member
//! may have been paid before it was slashed, and its payment must not lessen what others are owed: so a slashed member counts exactly when
//! its participant account is shown (after the fixed accounts), and as if never slashed when it is not. A transaction shows only so many:
//! `settle` remembers what those it is shown are owed no more. That never becomes less, for points earned and slashed only grow, and who is
//! slashed claims at most what is left; so what was remembered may be too little later, which keeps more in the vault, never too much.
use psyche_common::account::Account;
use psyche_common::cpi::{invoke, Meta};
use psyche_common::platform::{clock, same};
use psyche_common::record::open_exact;
use psyche_common::token::{self, transfer, TokenAccount};
use psyche_common::{ids, Error, Input, Pubkey, Reader, Res};

use crate::coordinator::{Commanded, Coordinator, Points, FREE};
use crate::participant::Participant;
use crate::run::{must_be_vault, open_for, Run, SEED};
use crate::{OTHER_RUN, STILL_OWED, TOO_SOON};

pub fn withdraw_unused(input: &Input, data: &[u8]) -> Res {
    let [authority, tokens, run, vault, coordinator, token, instance, program] = input.accounts::<8>()?;
    Reader(data).end()?;
    let found = open_for(authority, run, input.program)?;
    tokens.must_be_writable()?;
    must_be_vault(vault, run, found)?;
    TokenAccount::of(tokens, &found.mint)?.must_belong_to(authority.key())?;
    let commanded = Commanded { run, instance, account: coordinator, program };
    commanded.must_be_of(found)?;
    coordinator.must_be_writable()?;
    let owed = owed(found, run, coordinator, &input.table[8..input.count], input.program)?;
    let unused = TokenAccount(*vault).amount().saturating_sub(owed);
    transfer(vault, tokens, run, token, unused, &[SEED, &found.index.to_le_bytes(), &[found.bump]])?;
    commanded.back(found, 0)
}

pub fn run_close(input: &Input, data: &[u8]) -> Res {
    let [authority, spill, tokens, run, vault, instance, coordinator, program, token] = input.accounts::<9>()?;
    Reader(data).end()?;
    let found = open_for(authority, run, input.program)?;
    spill.must_be_writable()?;
    tokens.must_be_writable()?;
    run.must_be_writable()?;
    program.must_be(&ids::COORDINATOR)?;
    must_be_vault(vault, run, found)?;
    TokenAccount::of(tokens, &found.mint)?.must_belong_to(authority.key())?;
    if instance.must_be(&found.instance).is_err() {
        return Err(OTHER_RUN);
    }
    if clock().slot <= found.created {
        return Err(TOO_SOON);
    }
    if owed(found, run, coordinator, &input.table[9..input.count], input.program)? != 0 {
        return Err(STILL_OWED);
    }
    let seeds: [&[u8]; 3] = [SEED, &found.index.to_le_bytes(), &[found.bump]];
    transfer(vault, tokens, run, token, TokenAccount(*vault).amount(), &seeds)?;
    token::close(vault, spill, run, token, &seeds)?;
    let metas = [
        Meta { key: run.key(), writable: false, signer: true },
        Meta { key: spill.key(), writable: true, signer: false },
        Meta { key: instance.key(), writable: true, signer: false },
        Meta { key: coordinator.key(), writable: true, signer: false },
    ];
    invoke(&ids::COORDINATOR, &metas, &[FREE], &[*run, *spill, *instance, *coordinator, *program], &seeds)?;
    run.close(spill)
}

/// Units the vault owes, at most: as if nobody had been slashed but those whom the run remembers.
#[inline(always)]
pub fn at_most_owed(found: &Run, coordinator: &Coordinator) -> Res<u64> {
    let mut earned = 0u64;
    for points in coordinator.points() {
        earned = earned.checked_add(points.earned).ok_or(Error::OVERFLOW)?;
    }
    earned.checked_sub(found.claimed).and_then(|owed| owed.checked_sub(found.forgiven)).ok_or(Error::OVERFLOW)
}

/// Units the vault owes, at most; only while the coordinator is halted, so that nobody is earning. `shown`: participants' accounts.
fn owed(found: &Run, run: &Account, account: &Account, shown: &[Account], program: &Pubkey) -> Res<u64> {
    if account.must_be(&found.coordinator).is_err() {
        return Err(OTHER_RUN);
    }
    let coordinator = Coordinator::open(account)?;
    coordinator.must_be_halted()?;
    let mut owed = at_most_owed(found, &coordinator)?;
    for (place, participant) in shown.iter().enumerate() {
        if shown[..place].iter().any(|before| same(before.key(), participant.key())) {
            return Err(Error::SAME_ACCOUNT);
        }
        let paid: &mut Participant = open_exact(participant, program)?;
        paid.must_be_of(run, found)?;
        owed = owed.checked_sub(more_forgiven(&coordinator, paid)?).ok_or(Error::OVERFLOW)?;
    }
    Ok(owed)
}

/// Remembers of participants, as many as an instruction takes, what they are owed no more.
pub fn settle(input: &Input, data: &[u8]) -> Res {
    let [authority, run, account] = input.accounts::<3>()?;
    Reader(data).end()?;
    let found = open_for(authority, run, input.program)?;
    run.must_be_writable()?;
    if account.must_be(&found.coordinator).is_err() {
        return Err(OTHER_RUN);
    }
    let coordinator = Coordinator::open(account)?;
    for participant in &input.table[3..input.count] {
        participant.must_be_writable()?;
        let paid: &mut Participant = open_exact(participant, input.program)?;
        paid.must_be_of(run, found)?;
        let more = more_forgiven(&coordinator, paid)?;
        paid.forgiven = paid.forgiven.checked_add(more).ok_or(Error::OVERFLOW)?;
        found.forgiven = found.forgiven.checked_add(more).ok_or(Error::OVERFLOW)?;
    }
    Ok(())
}

/// What a member is owed no more and nobody remembered yet.
#[inline(always)]
fn more_forgiven(coordinator: &Coordinator, paid: &Participant) -> Res<u64> {
    forgiven(coordinator.points_of(&paid.user), paid.claimed)?.checked_sub(paid.forgiven).ok_or(Error::OVERFLOW)
}

/// How much less a member is owed than if it had not been slashed.
fn forgiven(points: Option<&Points>, claimed: u64) -> Res<u64> {
    let Some(points) = points else { return Ok(0) };
    let unslashed = points.earned.checked_sub(claimed).ok_or(Error::OVERFLOW)?;
    unslashed.checked_sub(points.net().saturating_sub(claimed)).ok_or(Error::OVERFLOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn less(earned: u64, slashed: u64, claimed: u64) -> Res<u64> {
        forgiven(Some(&Points { signer: [7; 32], earned, slashed }), claimed)
    }

    #[test]
    fn what_a_slashed_member_is_no_longer_owed() {
        assert_eq!(less(100, 0, 30), Ok(0));
        assert_eq!(less(100, 20, 30), Ok(20));
        assert_eq!(less(100, 20, 80), Ok(20));
        assert_eq!(less(100, 20, 90), Ok(10));
        assert_eq!(less(100, 20, 100), Ok(0));
        assert_eq!(less(100, 200, 0), Ok(100));
        assert_eq!(less(100, 200, 101), Err(Error::OVERFLOW));
        assert_eq!(forgiven(None, 0), Ok(0));
    }
}
