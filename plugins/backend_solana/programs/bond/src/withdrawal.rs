//! How a member has its bond back: it gives up the right to join, leaves the run, and waits.
use psyche_common::token::{transfer, TokenAccount};
use psyche_common::{Error, Input, Reader, Res};

use crate::bond::{self, now, ACTIVE, FORFEITED, LEAVING};
use crate::bonds::{self, must_be_vault};
use crate::grant::Grant;
use crate::run::{look, Seen, Watched};
use crate::{EJECTED, NOT_ACTIVE, NOT_LEAVING, STILL_MEMBER, TOO_EARLY};

/// Seven days: how much longer than the waiting time an epoch that is still played keeps the bond of a member that has left it. A proof
/// against such a member is heard until the epoch ends, and honest epochs last minutes to days. The owner sets how long an epoch may
/// last: without this limit it would keep bonds for ever by an epoch that does not end.
const LONGEST_EPOCH: u64 = 7 * 86_400;

/// The right to join ends at once; the bond stays until the waiting time is over.
pub fn begin(input: &Input, data: &[u8]) -> Res {
    let [user, bonds, bond, authorization, authorizer] = input.accounts::<5>()?;
    Reader(data).end()?;
    let found = bonds::open(bonds, input.program)?;
    let held = bond::open_for(user, bond, bonds, input.program)?;
    if held.state != ACTIVE {
        return Err(NOT_ACTIVE);
    }
    held.state = LEAVING;
    held.since = now();
    Grant { bonds, found, bond, authorization, authorizer }.take(user)
}

/// Pays a bond back and closes its account. A forfeited one is only closed: its tokens are burned already, and its terms may be closed.
pub fn withdraw(input: &Input, data: &[u8]) -> Res {
    let [user, tokens, bonds, bond, vault, instance, account, token] = input.accounts::<8>()?;
    Reader(data).end()?;
    tokens.must_be_writable()?;
    let held = bond::open_for(user, bond, bonds, input.program)?;
    if held.state == FORFEITED {
        return bond.close(user);
    }
    let found = bonds::open(bonds, input.program)?;
    if held.state != LEAVING {
        return Err(NOT_LEAVING);
    }
    let waited = now().saturating_sub(held.since);
    if waited < found.waiting {
        return Err(TOO_EARLY);
    }
    must_be_vault(vault, bonds, found)?;
    TokenAccount::of(tokens, &found.mint)?.must_belong_to(user.key())?;
    match look(&Watched { bonds, found, instance, account }, user.key())? {
        Seen::Ejected => return Err(EJECTED),
        Seen::Member => return Err(STILL_MEMBER),
        Seen::Left if waited - found.waiting < LONGEST_EPOCH => return Err(STILL_MEMBER),
        Seen::Left | Seen::Nothing => {}
    }
    found.held = found.held.checked_sub(1).ok_or(Error::OVERFLOW)?;
    let seeds: [&[u8]; 4] = [bonds::SEED, &found.authority, &found.instance, &[found.bump]];
    transfer(vault, tokens, bonds, token, held.amount, &seeds)?;
    bond.close(user)
}
