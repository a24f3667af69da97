//! A member's bond: put down, and with it the right to join.
use psyche_common::account::Account;
use psyche_common::platform::{find_address, same};
use psyche_common::record::{self, open_exact, Header, Record};
use psyche_common::token::{transfer, TokenAccount};
use psyche_common::{cpi, Error, Input, Pubkey, Reader, Res};

use crate::bonds::{self, must_be_vault};
use crate::grant::Grant;
use crate::run::{must_not_be_ejected, Watched};
use crate::{OTHER_BONDS, OTHER_TERMS};

pub const SEED: &[u8] = b"bond";

/// States of a bond.
pub const ACTIVE: u8 = 0;
pub const LEAVING: u8 = 1;
pub const FORFEITED: u8 = 2;

#[repr(C)]
pub struct Bond {
    pub header: Header,
    pub bump: u8,
    pub state: u8,
    zeros: [u8; 2],
    pub bonds: Pubkey,
    pub user: Pubkey,
    /// Units put down.
    pub amount: u64,
    /// Unix second in which it entered its state.
    pub since: u64,
    reserved: [u8; 32],
}

pub const BYTES: usize = core::mem::size_of::<Bond>();
const _: () = assert!(BYTES == 128 && core::mem::offset_of!(Bond, amount) == 80 && core::mem::offset_of!(Bond, since) == 88);

unsafe impl Record for Bond {
    const MAGIC: [u8; 8] = *b"PsycheBo";
    const VERSION: u32 = 1;
}

/// A bond of these terms, to be written.
#[inline(always)]
pub fn open(bond: &Account, bonds: &Account, program: &Pubkey) -> Res<&'static mut Bond> {
    bond.must_be_writable()?;
    let found: &mut Bond = open_exact(bond, program)?;
    if same(&found.bonds, bonds.key()) { Ok(found) } else { Err(OTHER_BONDS) }
}

/// The same, for its user, who must sign.
#[inline(always)]
pub fn open_for(user: &Account, bond: &Account, bonds: &Account, program: &Pubkey) -> Res<&'static mut Bond> {
    user.must_sign()?;
    user.must_be_writable()?;
    let found = open(bond, bonds, program)?;
    if same(&found.user, user.key()) { Ok(found) } else { Err(Error::NOT_AUTHORITY) }
}

pub fn now() -> u64 { psyche_common::platform::clock().unix.max(0) as u64 }

/// The user says which terms it means: while nobody has a bond, their authority may close them and make others.
pub fn deposit(input: &Input, data: &[u8]) -> Res {
    let [user, tokens, bonds, bond, vault, authorization, instance, account, authorizer, token, system] = input.accounts::<11>()?;
    let mut reader = Reader(data);
    let (amount, waiting, grounds) = (reader.u64()?, reader.u64()?, reader.u8()?);
    reader.end()?;
    user.must_sign()?;
    tokens.must_be_writable()?;
    let found = bonds::open(bonds, input.program)?;
    if (found.amount, found.waiting, found.grounds) != (amount, waiting, grounds) {
        return Err(OTHER_TERMS);
    }
    must_be_vault(vault, bonds, found)?;
    TokenAccount::of(tokens, &found.mint)?.must_belong_to(user.key())?;
    must_not_be_ejected(&Watched { bonds, found, instance, account }, user.key())?;
    let mut key = [0; 32];
    let bump = find_address(&[SEED, bonds.key(), user.key()], input.program, &mut key);
    bond.must_be(&key)?;
    cpi::create(user, bond, system, input.program, BYTES as u64, &[SEED, bonds.key(), user.key(), &[bump]])?;
    let made: &mut Bond = record::begin(bond)?;
    made.bump = bump;
    made.bonds = *bonds.key();
    made.user = *user.key();
    made.amount = found.amount;
    made.since = now();
    found.held = found.held.checked_add(1).ok_or(Error::OVERFLOW)?;
    transfer(tokens, vault, user, token, found.amount, &[])?;
    Grant { bonds, found, bond, authorization, authorizer }.give(made, user, system)
}
