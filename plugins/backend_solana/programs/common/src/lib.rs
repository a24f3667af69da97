//! What all programs share: the platform, accounts and their checks, calls of other programs, exact arithmetic.
//!
//! `no_std`, no crates, no floating point, no 128-bit division. Whatever comes from outside is checked where it is read.
#![cfg_attr(not(test), no_std)]

pub mod account;
pub mod arithmetic;
pub mod authorization;
pub mod cpi;
pub mod error;
pub mod ids;
pub mod input;
pub mod platform;
pub mod record;
pub mod runtime;
pub mod token;

pub type Pubkey = [u8; 32];
pub use account::Account;
pub use error::{Error, Res};
pub use input::{Input, Reader};
