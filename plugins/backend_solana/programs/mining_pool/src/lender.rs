//! A lender's account: what it put in and what it had back.
use psyche_common::account::Account;
use psyche_common::platform::{find_address, same};
use psyche_common::record::{self, open_exact, Header, Record};
use psyche_common::{cpi, Error, Input, Pubkey, Reader, Res};

use crate::pool::Pool;
use crate::{OTHER_POOL, STILL_NEEDED};

pub const SEED: &[u8] = b"lender";

#[repr(C)]
pub struct Lender {
    pub header: Header,
    pub bump: u8,
    zeros: [u8; 3],
    pub pool: Pubkey,
    pub user: Pubkey,
    pub deposited: u64,
    pub claimed: u64,
    pub refunded: u64,
    reserved: [u8; 24],
}

pub const BYTES: usize = core::mem::size_of::<Lender>();
const _: () = assert!(BYTES == 128 && core::mem::offset_of!(Lender, deposited) == 80);

unsafe impl Record for Lender {
    const MAGIC: [u8; 8] = *b"PsycheLe";
    const VERSION: u32 = 1;
}

/// The account of this user in this pool; the user must sign.
#[inline(always)]
pub fn open_for(user: &Account, lender: &Account, pool: &Account, program: &Pubkey) -> Res<&'static mut Lender> {
    user.must_sign()?;
    lender.must_be_writable()?;
    let found: &mut Lender = open_exact(lender, program)?;
    if !same(&found.pool, pool.key()) {
        return Err(OTHER_POOL);
    }
    if same(&found.user, user.key()) { Ok(found) } else { Err(Error::NOT_AUTHORITY) }
}

pub fn create(input: &Input, data: &[u8]) -> Res {
    let [payer, user, pool, lender, system] = input.accounts::<5>()?;
    Reader(data).end()?;
    pool.must_be_writable()?;
    let found: &mut Pool = open_exact(pool, input.program)?;
    let mut key = [0; 32];
    let bump = find_address(&[SEED, pool.key(), user.key()], input.program, &mut key);
    lender.must_be(&key)?;
    cpi::create(payer, lender, system, input.program, BYTES as u64, &[SEED, pool.key(), user.key(), &[bump]])?;
    let made: &mut Lender = record::begin(lender)?;
    made.bump = bump;
    made.pool = *pool.key();
    made.user = *user.key();
    found.lenders = found.lenders.checked_add(1).ok_or(Error::OVERFLOW)?;
    Ok(())
}

/// Only while nothing was put in: what was had back must be remembered as long as there may be more.
pub fn close(input: &Input, data: &[u8]) -> Res {
    let [user, spill, pool, lender] = input.accounts::<4>()?;
    Reader(data).end()?;
    spill.must_be_writable()?;
    pool.must_be_writable()?;
    let found: &mut Pool = open_exact(pool, input.program)?;
    let lent = open_for(user, lender, pool, input.program)?;
    if lent.deposited != 0 {
        return Err(STILL_NEEDED);
    }
    found.lenders = found.lenders.checked_sub(1).ok_or(Error::OVERFLOW)?;
    lender.close(spill)
}
