//! Accounts that are one plain structure: checked by owner, size, magic and version, then read and written in place.
use crate::account::Account;
use crate::{Error, Pubkey, Res};

/// What every account of ours begins with.
#[repr(C)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
}

/// # Safety
/// A `#[repr(C)]` structure that begins with a `Header`, has no padding and is valid for every content; aligned to 8 at most.
pub unsafe trait Record {
    const MAGIC: [u8; 8];
    const VERSION: u32;
}

const fn size<T>() -> usize { core::mem::size_of::<T>() }

/// The account as a `T`: owner, size (a `T` or more: a list may follow), magic and version, refused in this order.
#[inline(always)]
pub fn open<T: Record>(account: &Account, program: &Pubkey) -> Res<&'static mut T> {
    account.must_be_owned_by(program)?;
    if account.len() < size::<T>() {
        return Err(Error::WRONG_SIZE);
    }
    let header = unsafe { &*(account.ptr() as *const Header) };
    if header.magic != T::MAGIC {
        return Err(Error::WRONG_KIND);
    }
    if header.version != T::VERSION {
        return Err(Error::WRONG_VERSION);
    }
    Ok(unsafe { &mut *(account.ptr() as *mut T) })
}

/// Like `open`, for an account of exactly a `T`.
#[inline(always)]
pub fn open_exact<T: Record>(account: &Account, program: &Pubkey) -> Res<&'static mut T> {
    account.must_be_owned_by(program)?;
    if account.len() != size::<T>() {
        return Err(Error::WRONG_SIZE);
    }
    open(account, program)
}

/// Writes magic and version into an account just made, and gives it as a `T`.
#[inline(always)]
pub fn begin<T: Record>(account: &Account) -> Res<&'static mut T> {
    if account.len() < size::<T>() {
        return Err(Error::WRONG_SIZE);
    }
    let header = unsafe { &mut *(account.ptr() as *mut Header) };
    header.magic = T::MAGIC;
    header.version = T::VERSION;
    Ok(unsafe { &mut *(account.ptr() as *mut T) })
}
