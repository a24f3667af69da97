//! Collateral for a run, from anybody. What the vault holds beyond what was earned is what the coordinator's next epochs may promise.
use psyche_common::record::open_exact;
use psyche_common::token::{transfer, TokenAccount};
use psyche_common::{Error, Input, Reader, Res};

use crate::coordinator::{Commanded, Coordinator};
use crate::ending::at_most_owed;
use crate::run::{must_be_vault, Run};

pub fn top_up(input: &Input, data: &[u8]) -> Res {
    let [payer, tokens, run, vault, token, instance, coordinator, program] = input.accounts::<8>()?;
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
    let commanded = Commanded { run, instance, account: coordinator, program };
    commanded.must_be_of(found)?;
    coordinator.must_be_writable()?;
    transfer(tokens, vault, payer, token, amount, &[])?;
    let owed = at_most_owed(found, &Coordinator::open(coordinator)?)?;
    commanded.back(found, TokenAccount(*vault).amount().saturating_sub(owed))
}
