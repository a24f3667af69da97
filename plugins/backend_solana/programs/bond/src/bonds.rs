//! A run's terms for bonds, and the checks of their vault.
use psyche_common::account::Account;
use psyche_common::record::{open_exact, Header, Record};
use psyche_common::token::TokenAccount;
use psyche_common::{Pubkey, Res};

pub const SEED: &[u8] = b"bonds";

/// Grounds on which a bond is forfeited, as bits.
pub const SIGNATURES: u8 = 1;
pub const STRIKES: u8 = 2;

#[repr(C)]
pub struct Bonds {
    pub header: Header,
    pub bump: u8,
    /// SIGNATURES, STRIKES, or both.
    pub grounds: u8,
    zeros: [u8; 2],
    pub authority: Pubkey,
    pub instance: Pubkey,
    pub mint: Pubkey,
    pub vault: Pubkey,
    /// Units of the mint that each member puts down.
    pub amount: u64,
    /// Seconds from the end of the right to join until a bond is paid back.
    pub waiting: u64,
    /// Bonds in the vault.
    pub held: u64,
    /// Units burned so far.
    pub burned: u64,
    reserved: [u8; 80],
}

pub const BYTES: usize = core::mem::size_of::<Bonds>();
const _: () = assert!(BYTES == 256 && core::mem::offset_of!(Bonds, amount) == 144 && core::mem::offset_of!(Bonds, burned) == 168);

unsafe impl Record for Bonds {
    const MAGIC: [u8; 8] = *b"PsycheBs";
    const VERSION: u32 = 1;
}

/// The terms, to be written.
#[inline(always)]
pub fn open(bonds: &Account, program: &Pubkey) -> Res<&'static mut Bonds> {
    bonds.must_be_writable()?;
    open_exact(bonds, program)
}

#[inline(never)]
pub fn must_be_vault(vault: &Account, bonds: &Account, found: &Bonds) -> Res {
    vault.must_be_writable()?;
    vault.must_be(&found.vault)?;
    TokenAccount::of(vault, &found.mint)?.must_belong_to(bonds.key())
}
