//! A lender's share of a pot: floor(everything ever put into it * own deposit / all deposits), less what it had already.
//!
//! "Everything ever put into it" is what lies in the vault and what was paid out. Deposits are closed, so a share only grows as more is put
//! in, nobody's payment changes another's share, and all shares together never exceed the pot.
use psyche_common::account::Account;
use psyche_common::arithmetic::mul_div;
use psyche_common::record::open_exact;
use psyche_common::token::{transfer, TokenAccount};
use psyche_common::{Error, Input, Reader, Res};

use crate::lender;
use crate::pool::{must_be_tokens_of, must_be_vault, Pool, SEED};
use crate::{CLAIMS_CLOSED, FROZEN, OVER_SHARE, REFUNDS_CLOSED};

/// The new total paid to a lender after `amount` more; OVER_SHARE beyond its share. A pot of over 2^64 - 1 units in all (its tokens were
/// put in again after they were paid out) counts as one of 2^64 - 1: shares are at most too small then, and the pool goes on.
fn pay(pot: u64, amount: u64, had: u64, own: u64, all: u64) -> Res<u64> {
    let share = mul_div(pot, own, all).unwrap_or(0);
    if amount > share.saturating_sub(had) { Err(OVER_SHARE) } else { had.checked_add(amount).ok_or(Error::OVERFLOW) }
}

fn pot(vault: &Account, paid: u64) -> u64 { TokenAccount(*vault).amount().saturating_add(paid) }

pub fn lender_claim(input: &Input, data: &[u8]) -> Res {
    let [user, tokens, pool, lender, vault, token] = input.accounts::<6>()?;
    let mut reader = Reader(data);
    let amount = reader.u64()?;
    reader.end()?;
    pool.must_be_writable()?;
    let found: &mut Pool = open_exact(pool, input.program)?;
    let lent = lender::open_for(user, lender, pool, input.program)?;
    if found.claiming == 0 {
        return Err(CLAIMS_CLOSED);
    }
    must_be_tokens_of(user.key(), tokens, &found.redeemable_mint)?;
    must_be_vault(vault, &found.redeemable_vault, &found.redeemable_mint, pool)?;
    if found.claims_frozen != 0 {
        return Err(FROZEN);
    }
    lent.claimed = pay(pot(vault, found.claimed), amount, lent.claimed, lent.deposited, found.deposited)?;
    found.claimed = found.claimed.checked_add(amount).ok_or(Error::OVERFLOW)?;
    transfer(vault, tokens, pool, token, amount, &[SEED, &found.index.to_le_bytes(), &[found.bump]])
}

/// Cannot be frozen: what was not moved out is the lenders' own.
pub fn lender_refund(input: &Input, data: &[u8]) -> Res {
    let [user, tokens, pool, lender, vault, token] = input.accounts::<6>()?;
    let mut reader = Reader(data);
    let amount = reader.u64()?;
    reader.end()?;
    pool.must_be_writable()?;
    let found: &mut Pool = open_exact(pool, input.program)?;
    let lent = lender::open_for(user, lender, pool, input.program)?;
    must_be_tokens_of(user.key(), tokens, &found.collateral_mint)?;
    must_be_vault(vault, &found.collateral_vault, &found.collateral_mint, pool)?;
    if found.refunding == 0 {
        return Err(REFUNDS_CLOSED);
    }
    lent.refunded = pay(pot(vault, found.refunded), amount, lent.refunded, lent.deposited, found.deposited)?;
    found.refunded = found.refunded.checked_add(amount).ok_or(Error::OVERFLOW)?;
    transfer(vault, tokens, pool, token, amount, &[SEED, &found.index.to_le_bytes(), &[found.bump]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        assert_eq!(pay(10, 3, 0, 1, 3), Ok(3));
        assert_eq!(pay(10, 4, 0, 1, 3), Err(OVER_SHARE));
        assert_eq!(pay(10, 1, 2, 1, 3), Ok(3));
        assert_eq!(pay(10, 2, 2, 1, 3), Err(OVER_SHARE));
        assert_eq!(pay(10, 0, 5, 1, 3), Ok(5));
        assert_eq!(pay(10, 0, 0, 0, 0), Ok(0));
        assert_eq!(pay(10, 1, 0, 0, 0), Err(OVER_SHARE));
        assert_eq!(pay(u64::MAX, u64::MAX, 0, u64::MAX, u64::MAX), Ok(u64::MAX));
    }
}
