//! Collateral for a run, from anybody.
use psyche_common::record::open_exact;
use psyche_common::token::{transfer, TokenAccount};
use psyche_common::{Error, Input, Reader, Res};

use crate::run::{must_be_vault, Run};

pub fn top_up(input: &Input, data: &[u8]) -> Res {
    let [payer, tokens, run, vault, token] = input.accounts::<5>()?;
    let mut reader = Reader(data);
    let amount = reader.u64()?;
    reader.end()?;
    payer.must_sign()?;
    tokens.must_be_writable()?;
    let found: &mut Run = open_exact(run, input.program)?;
    must_be_vault(vault, run, found)?;
    if tokens.must_be(vault.key()).is_ok() {
        return Err(Error::SAME_ACCOUNT);
    }
    TokenAccount::of(tokens, &found.mint)?;
    transfer(tokens, vault, payer, token, amount, &[])
}
