//! Collateral in, from lenders, and out, to the authority.
use psyche_common::record::open_exact;
use psyche_common::token::transfer;
use psyche_common::{Error, Input, Reader, Res};

use crate::lender;
use crate::pool::{self, must_be_tokens_of, must_be_vault, Pool, SEED};
use crate::{DEPOSITS_CLOSED, EXTRACTION_CLOSED, FROZEN, OVER_CAP};

pub fn lender_deposit(input: &Input, data: &[u8]) -> Res {
    let [user, tokens, pool, lender, vault, token] = input.accounts::<6>()?;
    let mut reader = Reader(data);
    let amount = reader.u64()?;
    reader.end()?;
    pool.must_be_writable()?;
    let found: &mut Pool = open_exact(pool, input.program)?;
    let lent = lender::open_for(user, lender, pool, input.program)?;
    must_be_tokens_of(user.key(), tokens, &found.collateral_mint)?;
    must_be_vault(vault, &found.collateral_vault, &found.collateral_mint, pool)?;
    if found.is_settled() {
        return Err(DEPOSITS_CLOSED);
    }
    if found.deposits_frozen != 0 {
        return Err(FROZEN);
    }
    let total = found.deposited.checked_add(amount).ok_or(Error::OVERFLOW)?;
    let own = lent.deposited.checked_add(amount).ok_or(Error::OVERFLOW)?;
    if total > found.cap || own > found.lender_cap {
        return Err(OVER_CAP);
    }
    found.deposited = total;
    lent.deposited = own;
    transfer(tokens, vault, user, token, amount, &[])
}

/// To the authority's own account; not any more once what is left is being refunded.
pub fn pool_extract(input: &Input, data: &[u8]) -> Res {
    let [authority, tokens, pool, vault, token] = input.accounts::<5>()?;
    let mut reader = Reader(data);
    let amount = reader.u64()?;
    reader.end()?;
    let found = pool::open_for(authority, pool, input.program)?;
    must_be_tokens_of(authority.key(), tokens, &found.collateral_mint)?;
    must_be_vault(vault, &found.collateral_vault, &found.collateral_mint, pool)?;
    if found.refunding != 0 {
        return Err(EXTRACTION_CLOSED);
    }
    found.extracted = found.extracted.checked_add(amount).ok_or(Error::OVERFLOW)?;
    transfer(vault, tokens, pool, token, amount, &[SEED, &found.index.to_le_bytes(), &[found.bump]])
}
