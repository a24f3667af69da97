//! What a run's accounts say of one of its members: whether it was ejected and why, and whether it may still be.
//!
//! Layout: docs/reference/solana-programs.md (instance, header) and docs/reference/canonical-image.md. The account of the state is the one
//! that the instance names, so it needs no memory here, and a run that was closed and made again is found as it is now.
use psyche_common::account::Account;
use psyche_common::platform::same;
use psyche_common::record::{open_exact, Header, Record};
use psyche_common::{ids, Error, Pubkey, Res};

use crate::bonds::{Bonds, SIGNATURES, STRIKES};
use crate::{BAD_IMAGE, EJECTED, OTHER_RUN};

pub const MAGIC: [u8; 8] = *b"PsycheCo";
pub const VERSION: u32 = 5;
pub const BYTES: usize = 259_216;
pub const IMAGE: usize = 1_344;

const HEADER_BYTES: usize = 12;
const IMAGE_MAGIC: [u8; 8] = *b"PsycheSt";
const IMAGE_VERSION: u32 = 5;
const IMAGE_BYTES: u32 = 253_776;
const RUN_STATE: usize = IMAGE + 152;
const CLIENT_COUNT: usize = IMAGE + 3_152;
const CLIENTS: usize = IMAGE + 3_160;
const CLIENT_BYTES: usize = 116;
const CLIENT_STATE: usize = 72;
const CLIENT_STRIKES: usize = 108;
const PENDING_COUNT: usize = IMAGE + 189_768;
const PENDING: usize = IMAGE + 189_776;
const IDENTITY_BYTES: usize = 64;
const MAX_CLIENTS: usize = 256;

const STATE_HEALTHY: u8 = 0;
const STATE_EJECTED: u8 = 3;
const STRIKES_EJECT: u8 = 2;
/// States in which members of an epoch may be ejected: warmup, both halves of a round, cooldown.
const PLAYED: core::ops::RangeInclusive<u8> = 2..=5;

/// Where a run is commanded from, as the coordinator's `init` wrote it.
#[repr(C)]
pub struct Instance {
    header: Header,
    bump: u8,
    zero: [u8; 3],
    main_authority: Pubkey,
    pub join_authority: Pubkey,
    pub account: Pubkey,
    run_id: [u8; 32],
    reserved: [u8; 112],
}

const _: () = assert!(core::mem::size_of::<Instance>() == 256 && core::mem::offset_of!(Instance, join_authority) == 48);

unsafe impl Record for Instance {
    const MAGIC: [u8; 8] = *b"PsycheRI";
    const VERSION: u32 = 1;
}

/// The accounts of a run whose members have bonds.
pub struct Watched<'a> {
    pub bonds: &'a Account,
    pub found: &'a Bonds,
    pub instance: &'a Account,
    pub account: &'a Account,
}

/// What a run's accounts say of a user.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub enum Seen {
    /// Nothing that concerns its bond.
    Nothing,
    /// It is pending, or plays in the epoch: it may be ejected for what it does yet.
    Member,
    /// It has left the epoch that is being played, or was dropped: it may be ejected for what it did until the epoch ends.
    Left,
    /// It was ejected on a ground of the terms, in the epoch that is played or was played last.
    Ejected,
}

/// Refuses where the user was ejected, so that no bond is put down that would be burned for what is past.
pub fn must_not_be_ejected(watched: &Watched, user: &Pubkey) -> Res {
    if look(watched, user)? == Seen::Ejected { Err(EJECTED) } else { Ok(()) }
}

/// Looks for a user. A run that is closed, was made again with another join authority, or is of a version that nobody plays any more
/// says nothing.
#[inline(never)]
pub fn look(watched: &Watched, user: &Pubkey) -> Res<Seen> {
    let Watched { bonds, found, instance, account } = watched;
    if instance.must_be(&found.instance).is_err() {
        return Err(OTHER_RUN);
    }
    if instance.must_be_owned_by(&ids::SYSTEM).is_ok() {
        return Ok(Seen::Nothing);
    }
    let run: &mut Instance = open_exact(instance, &ids::COORDINATOR)?;
    if !same(&run.join_authority, bonds.key()) {
        return Ok(Seen::Nothing);
    }
    if account.must_be(&run.account).is_err() {
        return Err(OTHER_RUN);
    }
    if !is_played(account)? {
        return Ok(Seen::Nothing);
    }
    let data = account.data();
    let pending = contains(&data[PENDING..], u32_at(data, PENDING_COUNT) as usize, IDENTITY_BYTES, user);
    let client = place(&data[CLIENTS..], u32_at(data, CLIENT_COUNT) as usize, CLIENT_BYTES, user);
    if client < MAX_CLIENTS {
        let client = &data[CLIENTS + CLIENT_BYTES * client..][..CLIENT_BYTES];
        if is_forfeit(client[CLIENT_STATE], client[CLIENT_STRIKES], found.grounds) {
            return Ok(Seen::Ejected);
        }
        if PLAYED.contains(&data[RUN_STATE]) {
            let plays = pending || client[CLIENT_STATE] == STATE_HEALTHY;
            return Ok(if plays { Seen::Member } else { Seen::Left });
        }
    }
    Ok(if pending { Seen::Member } else { Seen::Nothing })
}

/// Whether a client in this state loses its bond. Who has two strikes was ejected for them, whatever else came to light; who was
/// ejected with fewer has signed two results for one share. Those who were dropped or have withdrawn lose nothing.
fn is_forfeit(state: u8, strikes: u8, grounds: u8) -> bool {
    let ground = if strikes >= STRIKES_EJECT { STRIKES } else { SIGNATURES };
    state == STATE_EJECTED && grounds & ground != 0
}

/// Whether the account has an image that the coordinator works on. One of an older version can only be closed.
#[inline(always)]
fn is_played(account: &Account) -> Res<bool> {
    account.must_be_owned_by(&ids::COORDINATOR)?;
    let data = account.data();
    if data.len() < HEADER_BYTES || data[..8] != MAGIC {
        return Err(Error::WRONG_KIND);
    }
    let version = u32_at(data, 8);
    if version < VERSION {
        return Ok(false);
    }
    if version > VERSION {
        return Err(Error::WRONG_VERSION);
    }
    if data.len() != BYTES {
        return Err(Error::WRONG_SIZE);
    }
    if data[IMAGE..IMAGE + 8] == [0; 8] {
        return Ok(false); // nothing was configured yet
    }
    if data[IMAGE..IMAGE + 8] != IMAGE_MAGIC || u32_at(data, IMAGE + 8) != IMAGE_VERSION || u32_at(data, IMAGE + 12) != IMAGE_BYTES {
        return Err(BAD_IMAGE);
    }
    let counts = (u32_at(data, CLIENT_COUNT) as usize, u32_at(data, PENDING_COUNT) as usize);
    if counts.0 > MAX_CLIENTS || counts.1 > MAX_CLIENTS { Err(BAD_IMAGE) } else { Ok(true) }
}

fn contains(list: &[u8], count: usize, stride: usize, user: &Pubkey) -> bool { place(list, count, stride, user) < MAX_CLIENTS }

/// The first of `count` records that begins with this key; MAX_CLIENTS if none does.
#[inline(never)]
fn place(list: &[u8], count: usize, stride: usize, user: &Pubkey) -> usize {
    let mut at = 0;
    for number in 0..count {
        let key = &list[at..at + 32];
        // most keys differ in the first byte, which costs much less to see than a syscall for each
        if key[0] == user[0] && same(unsafe { &*(key.as_ptr() as *const Pubkey) }, user) {
            return number;
        }
        at += stride;
    }
    MAX_CLIENTS
}

fn u32_at(data: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([data[offset], data[offset + 1], data[offset + 2], data[offset + 3]])
}
