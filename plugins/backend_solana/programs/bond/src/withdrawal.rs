//! How a member has its bond back: it gives up the right to join, leaves the run, and waits.
use psyche_common::token::{transfer, TokenAccount};
use psyche_common::{Error, Input, Reader, Res};

use crate::bond::{self, now, ACTIVE, FORFEITED, LEAVING};
use crate::bonds::{self, must_be_vault};
use crate::grant::Grant;
use crate::run::{must_be_gone, Watched};
use crate::{NOT_ACTIVE, NOT_LEAVING, TOO_EARLY};

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

/// Pays a bond back and closes its account. A forfeited one is only closed: its tokens are burned already.
pub fn withdraw(input: &Input, data: &[u8]) -> Res {
    let [user, tokens, bonds, bond, vault, instance, account, token] = input.accounts::<8>()?;
    Reader(data).end()?;
    tokens.must_be_writable()?;
    let found = bonds::open(bonds, input.program)?;
    let held = bond::open_for(user, bond, bonds, input.program)?;
    if held.state == FORFEITED {
        return bond.close(user);
    }
    if held.state != LEAVING {
        return Err(NOT_LEAVING);
    }
    if now().saturating_sub(held.since) < found.waiting {
        return Err(TOO_EARLY);
    }
    must_be_vault(vault, bonds, found)?;
    TokenAccount::of(tokens, &found.mint)?.must_belong_to(user.key())?;
    must_be_gone(&Watched { bonds, found, instance, account }, user.key())?;
    found.held = found.held.checked_sub(1).ok_or(Error::OVERFLOW)?;
    let seeds: [&[u8]; 4] = [bonds::SEED, &found.authority, &found.instance, &[found.bump]];
    transfer(vault, tokens, bonds, token, held.amount, &seeds)?;
    bond.close(user)
}
