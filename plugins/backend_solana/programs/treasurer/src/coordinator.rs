//! What the treasurer knows of the coordinator: where its account says who earned what, and the calls it makes.
//!
//! Layout: docs/reference/solana-programs.md (header) and docs/reference/canonical-image.md. An account without an image (all zero: nothing
//! was configured yet) is halted and owes nobody.
use psyche_common::account::Account;
use psyche_common::cpi::{invoke, Meta};
use psyche_common::{ids, Error, Pubkey, Res};

use crate::run::{Run, SEED};
use crate::BAD_IMAGE;

pub const MAGIC: [u8; 8] = *b"PsycheCo";
pub const VERSION: u32 = 5;
pub const BYTES: usize = 259_216;
pub const IMAGE: usize = 1_344;

const IMAGE_MAGIC: [u8; 8] = *b"PsycheSt";
const IMAGE_VERSION: u32 = 5;
const IMAGE_BYTES: u32 = 253_776;
const RUN_STATE: usize = IMAGE + 152;
const ACCOUNT_COUNT: usize = IMAGE + 214_360;
const ACCOUNTS: usize = IMAGE + 214_368;
const MAX_ACCOUNTS: usize = 512;

/// Instructions of the coordinator that a run's owner may have passed on: stage, update, set_future_epoch_rates, set_paused.
pub const FOR_OWNERS: core::ops::RangeInclusive<u8> = 2..=5;
pub const INIT: u8 = 0;
pub const FREE: u8 = 1;
pub const BACK: u8 = 16;
pub const SETTLE: u8 = 17;

/// A member's balance, in points.
#[repr(C)]
pub struct Points {
    pub signer: Pubkey,
    pub earned: u64,
    pub slashed: u64,
}

impl Points {
    pub fn net(&self) -> u64 { self.earned.saturating_sub(self.slashed) }
}

/// A coordinator's account that was checked.
pub struct Coordinator {
    data: &'static [u8],
}

impl Coordinator {
    /// The account of this program, kind and version, with an image of a known version or none yet.
    #[inline(always)]
    pub fn open(account: &Account) -> Res<Coordinator> {
        account.must_be_owned_by(&ids::COORDINATOR)?;
        if account.len() != BYTES {
            return Err(Error::WRONG_SIZE);
        }
        let data = account.data();
        if data[..8] != MAGIC {
            return Err(Error::WRONG_KIND);
        }
        if u32_at(data, 8) != VERSION {
            return Err(Error::WRONG_VERSION);
        }
        let found = Coordinator { data };
        if found.has_image() && (data[IMAGE..IMAGE + 8] != IMAGE_MAGIC || u32_at(data, IMAGE + 8) != IMAGE_VERSION) {
            return Err(BAD_IMAGE);
        }
        if found.has_image() && (u32_at(data, IMAGE + 12) != IMAGE_BYTES || u32_at(data, ACCOUNT_COUNT) as usize > MAX_ACCOUNTS) {
            return Err(BAD_IMAGE);
        }
        Ok(found)
    }

    fn has_image(&self) -> bool { self.data[IMAGE..IMAGE + 8] != [0; 8] }

    /// Nothing moves until its owner acts: uninitialized (0), finished (6) or paused (7).
    pub fn must_be_halted(&self) -> Res {
        let halted = !self.has_image() || matches!(self.data[RUN_STATE], 0 | 6 | 7);
        if halted { Ok(()) } else { Err(crate::NOT_HALTED) }
    }

    pub fn points(&self) -> &'static [Points] {
        let count = if self.has_image() { u32_at(self.data, ACCOUNT_COUNT) as usize } else { 0 };
        unsafe { core::slice::from_raw_parts(self.data.as_ptr().add(ACCOUNTS) as *const Points, count) }
    }

    /// Points of one member, None if it has none; by halves, for they ascend by signer.
    pub fn points_of(&self, user: &Pubkey) -> Option<&'static Points> {
        let points = self.points();
        let (mut low, mut high) = (0, points.len());
        while low < high {
            let middle = (low + high) / 2;
            match points[middle].signer.cmp(user) {
                core::cmp::Ordering::Equal => return Some(&points[middle]),
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// What a member may have in all, points slashed taken off.
    pub fn net_of(&self, user: &Pubkey) -> u64 {
        match self.points_of(user) {
            Some(points) => points.net(),
            None => 0,
        }
    }
}

/// The accounts by which a run commands its coordinator.
pub struct Commanded<'a> {
    pub run: &'a Account,
    pub instance: &'a Account,
    pub account: &'a Account,
    pub program: &'a Account,
}

impl Commanded<'_> {
    /// Refuses another run's.
    pub fn must_be_of(&self, found: &Run) -> Res {
        self.program.must_be(&ids::COORDINATOR)?;
        if self.instance.must_be(&found.instance).is_err() || self.account.must_be(&found.coordinator).is_err() {
            return Err(crate::OTHER_RUN);
        }
        Ok(())
    }

    /// Tells the coordinator what the vault holds beyond what was earned, so that no epoch promises more.
    #[inline(never)]
    pub fn back(&self, found: &Run, units: u64) -> Res {
        let mut data = [BACK; 9];
        data[1..].copy_from_slice(&units.to_le_bytes());
        self.command(found, &data)
    }

    /// One instruction of the coordinator's owner, who is the run.
    #[inline(never)]
    pub fn command(&self, found: &Run, data: &[u8]) -> Res {
        let metas = [
            Meta { key: self.run.key(), writable: false, signer: true },
            Meta { key: self.instance.key(), writable: false, signer: false },
            Meta { key: self.account.key(), writable: true, signer: false },
        ];
        let seeds: [&[u8]; 3] = [SEED, &found.index.to_le_bytes(), &[found.bump]];
        invoke(&ids::COORDINATOR, &metas, data, &[*self.run, *self.instance, *self.account, *self.program], &seeds)
    }
}

fn u32_at(data: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([data[offset], data[offset + 1], data[offset + 2], data[offset + 3]])
}
