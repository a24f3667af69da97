//! Authorizations: a grantor lets a grantee, and whom the grantee names, do what a scope says. Read by other programs.
//!
//! An account is made inactive, switched and limited by its grantor alone, and closed by its grantor while inactive. Its grantee names delegates.
#![cfg_attr(not(test), no_std)]

mod delegates;
mod lifecycle;

use psyche_common::{Error, Input, Res};

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
        0 => lifecycle::create(input, data),
        1 => lifecycle::grantor_update(input, data),
        2 => delegates::grantee_update(input, data),
        3 => lifecycle::close(input, data),
        _ => Err(Error::BAD_INSTRUCTION),
    }
}
