//! The pool's account.
use psyche_common::account::Account;
use psyche_common::platform::same;
use psyche_common::record::{open_exact, Header, Record};
use psyche_common::token::TokenAccount;
use psyche_common::{Error, Pubkey, Res};

pub const SEED: &[u8] = b"pool";
pub const MAX_METADATA: usize = 400;

#[repr(C)]
pub struct Pool {
    pub header: Header,
    pub bump: u8,
    pub claiming: u8,
    pub refunding: u8,
    pub deposits_frozen: u8,
    pub claims_frozen: u8,
    zeros: [u8; 7],
    pub index: u64,
    pub authority: Pubkey,
    pub collateral_mint: Pubkey,
    pub collateral_vault: Pubkey,
    pub redeemable_mint: Pubkey,
    pub redeemable_vault: Pubkey,
    pub cap: u64,
    pub lender_cap: u64,
    pub deposited: u64,
    pub extracted: u64,
    pub claimed: u64,
    pub refunded: u64,
    pub lenders: u64,
    pub metadata_len: u16,
    zeros_after: [u8; 6],
    pub metadata: [u8; MAX_METADATA],
    reserved: [u8; 48],
}

pub const BYTES: usize = core::mem::size_of::<Pool>();
const _: () = assert!(BYTES == 704 && core::mem::offset_of!(Pool, cap) == 192 && core::mem::offset_of!(Pool, metadata) == 256);

unsafe impl Record for Pool {
    const MAGIC: [u8; 8] = *b"PsychePo";
    const VERSION: u32 = 1;
}

impl Pool {
    /// Deposits, and with them everybody's share, change no more.
    pub fn is_settled(&self) -> bool { self.claiming != 0 || self.refunding != 0 }
}

/// The pool, for its authority, who must sign.
#[inline(always)]
pub fn open_for(authority: &Account, pool: &Account, program: &Pubkey) -> Res<&'static mut Pool> {
    authority.must_sign()?;
    pool.must_be_writable()?;
    let found: &mut Pool = open_exact(pool, program)?;
    if same(&found.authority, authority.key()) { Ok(found) } else { Err(Error::NOT_AUTHORITY) }
}

/// One of the pool's two vaults.
#[inline(never)]
pub fn must_be_vault(vault: &Account, key: &Pubkey, mint: &Pubkey, pool: &Account) -> Res {
    vault.must_be_writable()?;
    vault.must_be(key)?;
    TokenAccount::of(vault, mint)?.must_belong_to(pool.key())
}

/// Somebody's own token account, to pay into or from.
#[inline(never)]
pub fn must_be_tokens_of(owner: &Pubkey, tokens: &Account, mint: &Pubkey) -> Res {
    tokens.must_be_writable()?;
    TokenAccount::of(tokens, mint)?.must_belong_to(owner)
}
