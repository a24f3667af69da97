//! Refusals all programs share. A program's own begin at 100; `psyche_backend_solana.layouts.errors` names them all.
use core::num::NonZeroU32;

pub type Res<T = ()> = Result<T, Error>;

/// The number a transaction fails with (`Custom(n)`), from 1. Programs define their own as constants from 100 on: `Error(100)`.
///
/// Never 0, so that `Res` is one number for the compiler: a function that returns it is called, not inlined (see toolchain/README.md).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Error {
    code: NonZeroU32,
}

/// The error of a number; 0 is none and does not compile in a constant.
#[allow(non_snake_case)]
pub const fn Error(code: u32) -> Error {
    match NonZeroU32::new(code) {
        Some(code) => Error { code },
        None => panic!("an error is not 0"),
    }
}

/// The number as `error.0`.
#[repr(transparent)]
pub struct Number(pub u32);

impl core::ops::Deref for Error {
    type Target = Number;

    #[inline(always)]
    fn deref(&self) -> &Number { unsafe { &*(self as *const Error as *const Number) } }
}

impl core::fmt::Debug for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result { write!(f, "Error({})", self.0) }
}

impl Error {
    pub const BAD_INSTRUCTION: Error = Error(1);
    pub const NOT_ENOUGH_ACCOUNTS: Error = Error(2);
    pub const MISSING_SIGNER: Error = Error(3);
    pub const NOT_WRITABLE: Error = Error(4);
    pub const WRONG_OWNER: Error = Error(5);
    pub const WRONG_SIZE: Error = Error(6);
    pub const WRONG_ADDRESS: Error = Error(7);
    pub const WRONG_KIND: Error = Error(8);
    pub const WRONG_VERSION: Error = Error(9);
    pub const ALREADY_EXISTS: Error = Error(10);
    pub const OVERFLOW: Error = Error(11);
    pub const NOT_AUTHORITY: Error = Error(12);
    pub const WRONG_MINT: Error = Error(13);
    pub const WRONG_TOKEN_OWNER: Error = Error(14);
    pub const TOO_LONG: Error = Error(15);
    pub const CALL_FAILED: Error = Error(16);
    pub const TOO_MANY_ACCOUNTS: Error = Error(17);
    pub const DELEGATED_TOKENS: Error = Error(18);
    pub const SAME_ACCOUNT: Error = Error(19);
    pub const LIMIT_REACHED: Error = Error(20);
}
