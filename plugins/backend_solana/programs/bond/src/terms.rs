//! What the authority decides: the terms, once and for as long as anybody has a bond. It has no instruction that takes one.
use psyche_common::platform::{find_address, same};
use psyche_common::record::{self, open_exact};
use psyche_common::token::{burn, close as close_tokens, create_vault, must_be_mint, Programs, TokenAccount};
use psyche_common::{cpi, ids, Error, Input, Pubkey, Reader, Res};

use crate::bonds::{self, must_be_vault, Bonds, BYTES, SEED, SIGNATURES, STRIKES};
use crate::run::Instance;
use crate::{BAD_TERMS, NATIVE_MINT, OTHER_RUN, STILL_NEEDED};

/// Ninety days: no terms keep a bond longer from a member that has left.
const MAX_WAITING: u64 = 90 * 86_400;

/// The mint of wrapped SOL: So11111111111111111111111111111111111111112. The token program burns none of its tokens, so no forfeiture by
/// such terms could go through.
const WRAPPED_SOL: Pubkey = [6, 155, 136, 87, 254, 171, 129, 132, 251, 104, 127, 99, 70, 24, 192, 53, 218, 196, 57, 220, 26, 235, 59, 85, 152, 160, 240, 0, 0, 0, 0, 1];

/// The address holds the authority's key: a run whose owner made it the join authority chose who makes these terms.
pub fn create(input: &Input, data: &[u8]) -> Res {
    let [payer, authority, bonds, vault, mint, instance, token, associated, system] = input.accounts::<9>()?;
    let mut reader = Reader(data);
    let (amount, waiting, grounds) = (reader.u64()?, reader.u64()?, reader.u8()?);
    reader.end()?;
    authority.must_sign()?;
    if amount == 0 || waiting > MAX_WAITING || grounds == 0 || grounds & !(SIGNATURES | STRIKES) != 0 {
        return Err(BAD_TERMS);
    }
    must_be_mint(mint)?;
    if same(mint.key(), &WRAPPED_SOL) {
        return Err(NATIVE_MINT);
    }
    let mut key = [0; 32];
    let bump = find_address(&[SEED, authority.key(), instance.key()], input.program, &mut key);
    bonds.must_be(&key)?;
    let run: &mut Instance = open_exact(instance, &ids::COORDINATOR)?;
    if !same(&run.join_authority, bonds.key()) {
        return Err(OTHER_RUN);
    }
    let seeds: [&[u8]; 4] = [SEED, authority.key(), instance.key(), &[bump]];
    cpi::create(payer, bonds, system, input.program, BYTES as u64, &seeds)?;
    create_vault(payer, vault, bonds, mint, &Programs { token, associated, system })?;
    let made: &mut Bonds = record::begin(bonds)?;
    made.bump = bump;
    made.grounds = grounds;
    made.authority = *authority.key();
    made.instance = *instance.key();
    made.mint = *mint.key();
    made.vault = *vault.key();
    made.amount = amount;
    made.waiting = waiting;
    Ok(())
}

/// Only while the vault holds no bond. What else lies in it is burned: whoever sent it there, it is not the authority's.
pub fn close(input: &Input, data: &[u8]) -> Res {
    let [authority, spill, bonds, vault, mint, token] = input.accounts::<6>()?;
    Reader(data).end()?;
    authority.must_sign()?;
    spill.must_be_writable()?;
    mint.must_be_writable()?;
    let found = bonds::open(bonds, input.program)?;
    if !same(&found.authority, authority.key()) {
        return Err(Error::NOT_AUTHORITY);
    }
    if found.held != 0 {
        return Err(STILL_NEEDED);
    }
    mint.must_be(&found.mint)?;
    must_be_vault(vault, bonds, found)?;
    let seeds: [&[u8]; 4] = [SEED, &found.authority, &found.instance, &[found.bump]];
    burn(vault, mint, bonds, token, TokenAccount(*vault).amount(), &seeds)?;
    close_tokens(vault, spill, bonds, token, &seeds)?;
    bonds.close(spill)
}
