//! Pays a run's points in an SPL token, one unit for one point.
//!
//! The treasurer's `Run` is the main authority of the coordinator's run and passes on what its own owner commands. What a member earned is
//! read from the coordinator's account; what it was paid is counted here. What is owed stays in the vault until it was paid.
#![cfg_attr(not(test), no_std)]

mod coordinator;
mod creation;
mod ending;
mod participant;
mod run;
mod top_up;

use psyche_common::{Error, Input, Res};

pub const NOT_HALTED: Error = Error(100);
pub const OVER_CLAIM: Error = Error(101);
pub const STILL_OWED: Error = Error(102);
pub const NOT_FOR_OWNERS: Error = Error(103);
pub const OTHER_RUN: Error = Error(104);
pub const STILL_NEEDED: Error = Error(105);
pub const TOO_SOON: Error = Error(106);
pub const BAD_IMAGE: Error = Error(107);
pub const NOT_PAID_OUT: Error = Error(108);

/// # Safety
/// Called by the loader only.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn entrypoint(buffer: *mut u8) -> u64 {
    match Input::parse(buffer).and_then(|input| run_instruction(&input)) {
        Ok(()) => 0,
        Err(error) => error.0 as u64,
    }
}

fn run_instruction(input: &Input) -> Res {
    let Some((number, data)) = input.data.split_first() else { return Err(Error::BAD_INSTRUCTION) };
    match number {
        0 => creation::run_create(input, data),
        1 => creation::run_update(input, data),
        2 => top_up::top_up(input, data),
        3 => participant::create(input, data),
        4 => participant::claim(input, data),
        5 => ending::withdraw_unused(input, data),
        6 => ending::run_close(input, data),
        7 => participant::close(input, data),
        8 => ending::settle(input, data),
        9 => participant::release(input, data),
        _ => Err(Error::BAD_INSTRUCTION),
    }
}
