//! The treasurer's run, and the checks of its vault.
use psyche_common::account::Account;
use psyche_common::platform::same;
use psyche_common::record::{open_exact, Header, Record};
use psyche_common::token::TokenAccount;
use psyche_common::{Error, Pubkey, Res};

pub const SEED: &[u8] = b"run";

#[repr(C)]
pub struct Run {
    pub header: Header,
    pub bump: u8,
    zeros: [u8; 3],
    pub index: u64,
    pub main_authority: Pubkey,
    pub join_authority: Pubkey,
    pub instance: Pubkey,
    pub coordinator: Pubkey,
    pub mint: Pubkey,
    pub claimed: u64,
    pub participants: u64,
    /// Slot in which it was made: an index may be used again, and then nobody's claims of before count.
    pub created: u64,
    pub vault: Pubkey,
    /// Units that slashed members are no longer owed, of those whose participants say so.
    pub forgiven: u64,
    reserved: [u8; 8],
}

pub const BYTES: usize = core::mem::size_of::<Run>();
const _: () = assert!(BYTES == 256 && core::mem::offset_of!(Run, claimed) == 184 && core::mem::offset_of!(Run, forgiven) == 240);

unsafe impl Record for Run {
    const MAGIC: [u8; 8] = *b"PsycheTr";
    const VERSION: u32 = 1;
}

pub fn must_be_vault(vault: &Account, run: &Account, found: &Run) -> Res {
    vault.must_be_writable()?;
    vault.must_be(&found.vault)?;
    TokenAccount::of(vault, &found.mint)?.must_belong_to(run.key())
}

/// The run, for its owner, who must sign.
#[inline(always)]
pub fn open_for(authority: &Account, run: &Account, program: &Pubkey) -> Res<&'static mut Run> {
    authority.must_sign()?;
    let found: &mut Run = open_exact(run, program)?;
    if same(&found.main_authority, authority.key()) { Ok(found) } else { Err(Error::NOT_AUTHORITY) }
}
