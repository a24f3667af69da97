//! What the authority decides: create, limits and freezes, and the two openings, each once and for good.
use psyche_common::platform::{find_address, same};
use psyche_common::token::{create_vault, must_be_mint, Programs};
use psyche_common::{cpi, record, Error, Input, Reader, Res};

use crate::pool::{open_for, Pool, BYTES, MAX_METADATA, SEED};
use crate::{ALREADY_OPEN, SAME_MINT};

const CAP: u8 = 1;
const LENDER_CAP: u8 = 2;
const DEPOSITS_FROZEN: u8 = 4;
const CLAIMS_FROZEN: u8 = 8;
const METADATA: u8 = 16;

pub fn pool_create(input: &Input, data: &[u8]) -> Res {
    let [payer, authority, pool, vault, mint, token, associated, system] = input.accounts::<8>()?;
    let mut reader = Reader(data);
    let index = reader.u64()?;
    let metadata = reader.0;
    authority.must_sign()?;
    must_be_mint(mint)?;
    let mut key = [0; 32];
    let bump = find_address(&[SEED, &index.to_le_bytes()], input.program, &mut key);
    pool.must_be(&key)?;
    cpi::create(payer, pool, system, input.program, BYTES as u64, &[SEED, &index.to_le_bytes(), &[bump]])?;
    create_vault(payer, vault, pool, mint, &Programs { token, associated, system })?;
    let made: &mut Pool = record::begin(pool)?;
    made.bump = bump;
    made.index = index;
    made.authority = *authority.key();
    made.collateral_mint = *mint.key();
    made.collateral_vault = *vault.key();
    set_metadata(made, metadata)
}

/// Limits may be set below what was deposited already: then nobody deposits more.
pub fn pool_update(input: &Input, data: &[u8]) -> Res {
    let [authority, pool] = input.accounts::<2>()?;
    let found = open_for(authority, pool, input.program)?;
    let mut reader = Reader(data);
    let mask = reader.u8()?;
    if mask & !(CAP | LENDER_CAP | DEPOSITS_FROZEN | CLAIMS_FROZEN | METADATA) != 0 {
        return Err(Error::BAD_INSTRUCTION);
    }
    if mask & CAP != 0 {
        found.cap = reader.u64()?;
    }
    if mask & LENDER_CAP != 0 {
        found.lender_cap = reader.u64()?;
    }
    if mask & DEPOSITS_FROZEN != 0 {
        found.deposits_frozen = reader.flag()? as u8;
    }
    if mask & CLAIMS_FROZEN != 0 {
        found.claims_frozen = reader.flag()? as u8;
    }
    if mask & METADATA != 0 {
        let metadata = reader.bytes(reader.0.len())?;
        set_metadata(found, metadata)?;
    }
    reader.end()
}

#[inline(never)]
fn set_metadata(pool: &mut Pool, metadata: &[u8]) -> Res {
    if metadata.len() > MAX_METADATA {
        return Err(Error::TOO_LONG);
    }
    pool.metadata.fill(0);
    pool.metadata[..metadata.len()].copy_from_slice(metadata);
    pool.metadata_len = metadata.len() as u16;
    Ok(())
}

/// Says what will be shared, and opens claims. Another token than the collateral: one vault cannot hold two pots.
pub fn pool_claimable(input: &Input, data: &[u8]) -> Res {
    let [payer, authority, pool, vault, mint, token, associated, system] = input.accounts::<8>()?;
    Reader(data).end()?;
    let found = open_for(authority, pool, input.program)?;
    if found.claiming != 0 {
        return Err(ALREADY_OPEN);
    }
    must_be_mint(mint)?;
    if same(mint.key(), &found.collateral_mint) {
        return Err(SAME_MINT);
    }
    payer.must_sign()?;
    create_vault(payer, vault, pool, mint, &Programs { token, associated, system })?;
    found.claiming = 1;
    found.redeemable_mint = *mint.key();
    found.redeemable_vault = *vault.key();
    Ok(())
}

/// Opens refunds: what was not moved out belongs to the lenders from now on.
pub fn pool_refundable(input: &Input, data: &[u8]) -> Res {
    let [authority, pool] = input.accounts::<2>()?;
    Reader(data).end()?;
    let found = open_for(authority, pool, input.program)?;
    if found.refunding != 0 {
        return Err(ALREADY_OPEN);
    }
    found.refunding = 1;
    Ok(())
}
