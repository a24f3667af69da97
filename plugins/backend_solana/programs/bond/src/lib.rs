//! Bonds: who wants to join a run puts tokens down, and they are burned when the run ejects it on a ground that its terms name.
//!
//! The account of a run's terms is the run's join authority: it grants the right to join to who has a bond, and to nobody else. No
//! instruction pays a bond to anybody but the member that put it down. A forfeited one goes to nobody, so no owner gains by convicting.
#![cfg_attr(not(test), no_std)]

mod bond;
mod bonds;
mod forfeiture;
mod grant;
mod run;
mod terms;
mod withdrawal;

use psyche_common::{Error, Input, Res};

pub const BAD_TERMS: Error = Error(100);
pub const OTHER_RUN: Error = Error(101);
pub const OTHER_BONDS: Error = Error(102);
pub const NOT_ACTIVE: Error = Error(103);
pub const NOT_LEAVING: Error = Error(104);
pub const TOO_EARLY: Error = Error(105);
pub const STILL_MEMBER: Error = Error(106);
pub const EJECTED: Error = Error(107);
pub const NOT_EJECTED: Error = Error(108);
pub const STILL_NEEDED: Error = Error(109);
pub const BAD_IMAGE: Error = Error(110);
pub const OTHER_TERMS: Error = Error(111);
pub const NATIVE_MINT: Error = Error(112);

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
        0 => terms::create(input, data),
        1 => bond::deposit(input, data),
        2 => withdrawal::begin(input, data),
        3 => withdrawal::withdraw(input, data),
        4 => forfeiture::forfeit(input, data),
        5 => terms::close(input, data),
        _ => Err(Error::BAD_INSTRUCTION),
    }
}
