//! SPL Token accounts: what they hold, transfers out of ours, and tokens of ours that are burned.
use crate::account::Account;
use crate::cpi::{invoke, Meta};
use crate::platform::same;
use crate::{ids, Error, Pubkey, Res};

pub const ACCOUNT_BYTES: usize = 165;
pub const MINT_BYTES: usize = 82;

/// A view of a token account whose program, size and state were checked.
pub struct TokenAccount(pub Account);

impl TokenAccount {
    /// An initialised account of this mint, not frozen.
    #[inline(always)]
    pub fn of(account: &Account, mint: &Pubkey) -> Res<TokenAccount> {
        account.must_be_owned_by(&ids::TOKEN)?;
        if account.len() != ACCOUNT_BYTES || account.data()[108] != 1 {
            return Err(Error::WRONG_KIND);
        }
        if !same(unsafe { &*(account.ptr() as *const Pubkey) }, mint) {
            return Err(Error::WRONG_MINT);
        }
        Ok(TokenAccount(*account))
    }

    pub fn owner(&self) -> &'static Pubkey { unsafe { &*(self.0.ptr().add(32) as *const Pubkey) } }

    pub fn amount(&self) -> u64 { unsafe { (self.0.ptr().add(64) as *const u64).read_unaligned() } }

    /// Refuses an account of somebody else, and one that another may spend from or close.
    pub fn must_belong_to(&self, owner: &Pubkey) -> Res {
        if !same(self.owner(), owner) {
            return Err(Error::WRONG_TOKEN_OWNER);
        }
        let data = self.0.data();
        if data[72..76] != [0; 4] || data[129..133] != [0; 4] {
            return Err(Error::DELEGATED_TOKENS);
        }
        Ok(())
    }
}

/// An initialised mint of SPL Token.
pub fn must_be_mint(account: &Account) -> Res {
    account.must_be_owned_by(&ids::TOKEN)?;
    if account.len() != MINT_BYTES || account.data()[45] != 1 { Err(Error::WRONG_KIND) } else { Ok(()) }
}

/// Moves tokens. `seeds` sign for `authority` when it is a derived address of ours; empty when it signed the transaction.
pub fn transfer(from: &Account, to: &Account, authority: &Account, token: &Account, amount: u64, seeds: &[&[u8]]) -> Res {
    token.must_be(&ids::TOKEN)?;
    let mut data = [0u8; 9];
    data[0] = 3;
    data[1..].copy_from_slice(&amount.to_le_bytes());
    let metas = [
        Meta { key: from.key(), writable: true, signer: false },
        Meta { key: to.key(), writable: true, signer: false },
        Meta { key: authority.key(), writable: false, signer: true },
    ];
    invoke(&ids::TOKEN, &metas, &data, &[*from, *to, *authority, *token], seeds)
}

/// Destroys tokens: the mint's supply falls by `amount`. `seeds` sign for `authority`, a derived address of ours.
pub fn burn(from: &Account, mint: &Account, authority: &Account, token: &Account, amount: u64, seeds: &[&[u8]]) -> Res {
    token.must_be(&ids::TOKEN)?;
    let mut data = [0u8; 9];
    data[0] = 8;
    data[1..].copy_from_slice(&amount.to_le_bytes());
    let metas = [
        Meta { key: from.key(), writable: true, signer: false },
        Meta { key: mint.key(), writable: true, signer: false },
        Meta { key: authority.key(), writable: false, signer: true },
    ];
    invoke(&ids::TOKEN, &metas, &data, &[*from, *mint, *authority, *token], seeds)
}

/// Closes a token account that holds no tokens; its lamports go to `spill`.
pub fn close(account: &Account, spill: &Account, authority: &Account, token: &Account, seeds: &[&[u8]]) -> Res {
    token.must_be(&ids::TOKEN)?;
    let metas = [
        Meta { key: account.key(), writable: true, signer: false },
        Meta { key: spill.key(), writable: true, signer: false },
        Meta { key: authority.key(), writable: false, signer: true },
    ];
    invoke(&ids::TOKEN, &metas, &[9], &[*account, *spill, *authority, *token], seeds)
}

/// The programs that make a vault.
pub struct Programs<'a> {
    pub token: &'a Account,
    pub associated: &'a Account,
    pub system: &'a Account,
}

/// Makes the associated token account of `owner` for `mint`, if nobody did before us: anybody may, so one that is there is as good.
pub fn create_vault(payer: &Account, vault: &Account, owner: &Account, mint: &Account, programs: &Programs) -> Res {
    programs.token.must_be(&ids::TOKEN)?;
    programs.associated.must_be(&ids::ASSOCIATED_TOKEN)?;
    programs.system.must_be(&ids::SYSTEM)?;
    let metas = [
        Meta { key: payer.key(), writable: true, signer: true },
        Meta { key: vault.key(), writable: true, signer: false },
        Meta { key: owner.key(), writable: false, signer: false },
        Meta { key: mint.key(), writable: false, signer: false },
        Meta { key: programs.system.key(), writable: false, signer: false },
        Meta { key: programs.token.key(), writable: false, signer: false },
    ];
    let accounts = [*payer, *vault, *owner, *mint, *programs.system, *programs.token, *programs.associated];
    const CREATE_IDEMPOTENT: u8 = 1;
    invoke(&ids::ASSOCIATED_TOKEN, &metas, &[CREATE_IDEMPOTENT], &accounts, &[])?;
    TokenAccount::of(vault, mint.key())?.must_belong_to(owner.key())
}
