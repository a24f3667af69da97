//! Lenders put collateral together, its authority moves it out to have mining paid, and what comes back is shared in proportion to deposits.
//!
//! Two pots, each shared alike: redeemable tokens once claims are open, collateral that was not moved out once refunds are open. Opening
//! either closes deposits for good, so that nobody's share is thinned out afterwards.
#![cfg_attr(not(test), no_std)]

mod funding;
mod lender;
mod pool;
mod settings;
mod share;

use psyche_common::{Error, Input, Res};

pub const OVER_CAP: Error = Error(100);
pub const FROZEN: Error = Error(101);
pub const DEPOSITS_CLOSED: Error = Error(102);
pub const CLAIMS_CLOSED: Error = Error(103);
pub const REFUNDS_CLOSED: Error = Error(104);
pub const ALREADY_OPEN: Error = Error(105);
pub const OVER_SHARE: Error = Error(106);
pub const OTHER_POOL: Error = Error(107);
pub const EXTRACTION_CLOSED: Error = Error(108);
pub const STILL_NEEDED: Error = Error(109);
pub const SAME_MINT: Error = Error(110);

/// # Safety
/// Called by the loader only.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn entrypoint(buffer: *mut u8) -> u64 {
    match Input::parse(buffer).and_then(|input| run(&input)) {
        Ok(()) => 0,
        Err(error) => error.0 as u64,
    }
}

fn run(input: &Input) -> Res {
    let Some((number, data)) = input.data.split_first() else { return Err(Error::BAD_INSTRUCTION) };
    match number {
        0 => settings::pool_create(input, data),
        1 => settings::pool_update(input, data),
        2 => funding::pool_extract(input, data),
        3 => settings::pool_claimable(input, data),
        4 => settings::pool_refundable(input, data),
        5 => lender::create(input, data),
        6 => funding::lender_deposit(input, data),
        7 => share::lender_claim(input, data),
        8 => share::lender_refund(input, data),
        9 => lender::close(input, data),
        _ => Err(Error::BAD_INSTRUCTION),
    }
}
