//! What happens to the bond of a member that was ejected. Anybody may see to it, and nobody gains: the tokens are burned.
use psyche_common::token::burn;
use psyche_common::{Error, Input, Reader, Res};

use crate::bond::{self, now, ACTIVE, FORFEITED};
use crate::bonds::{self, must_be_vault};
use crate::grant::Grant;
use crate::run::{look, Seen, Watched};
use crate::NOT_EJECTED;

/// Nobody signs. The rent of the right to join goes to the bond's account, from which the user has it back: the user's own account need
/// not be able to take anything, or a cheat would choose one that cannot.
pub fn forfeit(input: &Input, data: &[u8]) -> Res {
    let [bonds, bond, vault, mint, authorization, instance, account, authorizer, token] = input.accounts::<9>()?;
    Reader(data).end()?;
    mint.must_be_writable()?;
    let found = bonds::open(bonds, input.program)?;
    let held = bond::open(bond, bonds, input.program)?;
    mint.must_be(&found.mint)?;
    must_be_vault(vault, bonds, found)?;
    if held.state == FORFEITED || look(&Watched { bonds, found, instance, account }, &held.user)? != Seen::Ejected {
        return Err(NOT_EJECTED);
    }
    let active = held.state == ACTIVE;
    held.state = FORFEITED;
    held.since = now();
    found.held = found.held.checked_sub(1).ok_or(Error::OVERFLOW)?;
    found.burned = found.burned.saturating_add(held.amount);
    let seeds: [&[u8]; 4] = [bonds::SEED, &found.authority, &found.instance, &[found.bump]];
    burn(vault, mint, bonds, token, held.amount, &seeds)?;
    if active { Grant { bonds, found, bond, authorization, authorizer }.take(bond) } else { Ok(()) }
}
