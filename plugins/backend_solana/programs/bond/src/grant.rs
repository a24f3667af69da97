//! The right to join that goes with a bond: an authorization by the terms' account for the bond's account, which names the user.
//!
//! Grantee is the bond and not the user, because a grantee names delegates: with one bond, a user would let 256 others join, and none of
//! these could lose it.
use psyche_common::account::Account;
use psyche_common::authorization::{self, JOIN_SCOPE};
use psyche_common::cpi::{invoke, Meta};
use psyche_common::platform::same;
use psyche_common::{ids, Error, Res};

use crate::bond::{self, Bond};
use crate::bonds::{self, Bonds};

/// Instructions of the authorizer.
const CREATE: u8 = 0;
const GRANTOR_UPDATE: u8 = 1;
const GRANTEE_UPDATE: u8 = 2;
const CLOSE: u8 = 3;

/// The accounts of one right to join.
pub struct Grant<'a> {
    pub bonds: &'a Account,
    pub found: &'a Bonds,
    pub bond: &'a Account,
    pub authorization: &'a Account,
    pub authorizer: &'a Account,
}

impl Grant<'_> {
    /// Makes it, names the user and switches it on; the user pays its rent. The authorizer refuses any other account.
    #[inline(never)]
    pub fn give(&self, held: &Bond, user: &Account, system: &Account) -> Res {
        self.authorizer.must_be(&ids::AUTHORIZER)?;
        let Grant { bonds, bond, authorization, authorizer, .. } = self;
        let payer = Meta { key: user.key(), writable: true, signer: true };
        let made = Meta { key: authorization.key(), writable: true, signer: false };
        let program = Meta { key: system.key(), writable: false, signer: false };

        let mut create = [0u8; 66];
        create[0] = CREATE;
        create[1..33].copy_from_slice(bond.key());
        create[33] = JOIN_SCOPE.len() as u8;
        create[34..34 + JOIN_SCOPE.len()].copy_from_slice(JOIN_SCOPE);
        let metas = [payer, Meta { key: bonds.key(), writable: false, signer: true }, made, program];
        self.as_grantor(&metas, &create, &[*user, **bonds, **authorization, *system, **authorizer])?;

        let mut name = [0u8; 35];
        name[..3].copy_from_slice(&[GRANTEE_UPDATE, 0, 1]);
        name[3..].copy_from_slice(user.key());
        let [payer, _, made, program] = metas;
        let metas = [payer, Meta { key: bond.key(), writable: false, signer: true }, made, program];
        let seeds: [&[u8]; 4] = [bond::SEED, bonds.key(), user.key(), &[held.bump]];
        invoke(&ids::AUTHORIZER, &metas, &name, &[*user, **bond, **authorization, *system, **authorizer], &seeds)?;
        self.switch(1)
    }

    /// Switches it off and closes it: from now on the user cannot join. Its rent goes to `spill`. Refuses the right of another bond.
    #[inline(never)]
    pub fn take(&self, spill: &Account) -> Res {
        self.authorizer.must_be(&ids::AUTHORIZER)?;
        if !same(&authorization::read(self.authorization, &ids::AUTHORIZER)?.grantee, self.bond.key()) {
            return Err(Error::WRONG_ADDRESS);
        }
        self.switch(0)?;
        let metas = [
            Meta { key: self.bonds.key(), writable: false, signer: true },
            Meta { key: spill.key(), writable: true, signer: false },
            Meta { key: self.authorization.key(), writable: true, signer: false },
        ];
        self.as_grantor(&metas, &[CLOSE], &[*self.bonds, *spill, *self.authorization, *self.authorizer])
    }

    fn switch(&self, active: u8) -> Res {
        let metas = [
            Meta { key: self.bonds.key(), writable: false, signer: true },
            Meta { key: self.authorization.key(), writable: true, signer: false },
        ];
        self.as_grantor(&metas, &[GRANTOR_UPDATE, active], &[*self.bonds, *self.authorization, *self.authorizer])
    }

    #[inline(always)]
    fn as_grantor(&self, metas: &[Meta], data: &[u8], accounts: &[Account]) -> Res {
        let seeds: [&[u8]; 4] = [bonds::SEED, &self.found.authority, &self.found.instance, &[self.found.bump]];
        invoke(&ids::AUTHORIZER, metas, data, accounts, &seeds)
    }
}
