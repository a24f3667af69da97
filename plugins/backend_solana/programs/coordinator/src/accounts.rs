//! The program's accounts and the checks before anything is done with them.
use crate::backing::Backing;
use crate::beacon::{first_word, Beacon};
use crate::counted;
use crate::elections::Memory;
use crate::image::{Image, Key};
use crate::refusal::{Outcome, Refusal, HALTED};
use crate::run::Run;
use crate::text::copy;
use core::mem::MaybeUninit;
use psyche_common::platform::{clock, is_address, same, sha256};
use psyche_common::record::{open_exact, Header, Record};
use psyche_common::{Account, Error, Input, Pubkey, Res};

pub const SEED: &[u8] = b"coordinator";
pub const STAGING_BYTES: usize = 4096;
pub const CLIENT_VERSION_BYTES: usize = 96;
pub const METADATA_BYTES: usize = 360;

/// Where a run is commanded from: written by `init` alone.
#[repr(C)]
pub struct Instance {
    header: Header,
    pub bump: u8,
    zero: [u8; 3],
    pub main_authority: Pubkey,
    pub join_authority: Pubkey,
    pub account: Pubkey,
    pub run_id: [u8; 32],
    reserved: [u8; 112],
}

/// The account of a run's state.
#[repr(C)]
pub struct Coordinator {
    pub header: Header,
    pub run_id_len: u32,
    pub nonce: u64,
    pub instance: Pubkey,
    pub client_version: [u8; CLIENT_VERSION_BYTES],
    pub metadata: [u8; METADATA_BYTES],
    pub backing: Backing,
    pub memory: Memory,
    pub beacon: Beacon,
    pub image: Image,
    pub staging: [u8; STAGING_BYTES],
}

pub const INSTANCE_BYTES: usize = core::mem::size_of::<Instance>();
pub const BYTES: usize = core::mem::size_of::<Coordinator>();
/// Bytes of versions 1 to 4, and where their images say what the run does: all that `free` has to know of them.
pub const OLD_BYTES: [usize; 4] = [161_056, 165_152, 188_104, 188_424];
pub const OLD_RUN_STATE: [usize; 4] = [1_344 + 120, 1_344 + 120, 1_344 + 152, 1_344 + 152];

const _: () = {
    assert!(INSTANCE_BYTES == 256 && BYTES == 259_216);
    assert!(core::mem::offset_of!(Coordinator, backing) == 512 && core::mem::offset_of!(Coordinator, memory) == 544 && core::mem::offset_of!(Coordinator, beacon) == 1296 && core::mem::offset_of!(Coordinator, image) == 1344);
};

unsafe impl Record for Instance {
    const MAGIC: [u8; 8] = *b"PsycheRI";
    const VERSION: u32 = 1;
}

unsafe impl Record for Coordinator {
    const MAGIC: [u8; 8] = *b"PsycheCo";
    const VERSION: u32 = 5;
}

pub fn run_id_len(run_id: &[u8; 32]) -> usize { run_id.iter().position(|byte| *byte == 0).unwrap_or(32) }

/// A run's instance at its own address.
#[inline(always)]
pub fn instance_of(account: &Account, input: &Input) -> Res<&'static mut Instance> {
    let instance: &mut Instance = open_exact(account, input.program)?;
    let name = &instance.run_id[..run_id_len(&instance.run_id)];
    if !is_address(account.key(), &[SEED, name, &[instance.bump]], input.program) {
        return Err(Error::WRONG_ADDRESS);
    }
    Ok(instance)
}

/// The account of a run's state, to be written.
#[inline(always)]
pub fn coordinator_of(account: &Account, input: &Input) -> Res<&'static mut Coordinator> {
    account.must_be_writable()?;
    open_exact(account, input.program)
}

/// Refuses an account that is another run's.
#[inline(always)]
pub fn must_belong(instance: &Instance, instance_key: &Pubkey, account: &Account, of: &Pubkey) -> Res {
    if same(&instance.account, account.key()) && same(of, instance_key) { Ok(()) } else { Err(Error::WRONG_ADDRESS) }
}

/// The account of the state for an owner's instruction, all checks done: the owner's signature, the instance, the account. (Functions
/// that return a reference or an error are copied into their callers by the linker; this one is not.)
#[inline(never)]
pub fn open_owned(input: &Input, authority: &Account, instance: &Account, account: &Account, out: &mut *mut Coordinator) -> Outcome {
    authority.must_sign()?;
    let found = instance_of(instance, input)?;
    let coordinator = coordinator_of(account, input)?;
    must_belong(found, instance.key(), account, &coordinator.instance)?;
    if !same(&found.main_authority, authority.key()) {
        return Err(Error::NOT_AUTHORITY.into());
    }
    *out = coordinator;
    Ok(())
}

/// The same as a reference.
#[inline(always)]
pub fn owned(input: &Input, authority: &Account, instance: &Account, account: &Account) -> Result<&'static mut Coordinator, Refusal> {
    let mut found = core::ptr::null_mut();
    open_owned(input, authority, instance, account, &mut found)?;
    Ok(unsafe { &mut *found })
}

/// The clock's time in unix seconds, the slot, and a number that is another one in each slot.
#[inline(never)]
fn read_clock(out: &mut [u64; 3]) {
    let clock = clock();
    let hash = sha256(&[&clock.unix.to_le_bytes(), &clock.slot.to_le_bytes()]);
    *out = [clock.unix.max(0) as u64, clock.slot, first_word(&hash)];
}

/// What a command works on. Refuses (Halted) where there is no run yet. Counts the instruction; a refusal after this undoes that.
#[inline(always)]
pub fn run_of(coordinator: &'static mut Coordinator) -> Result<Run, Refusal> {
    if !coordinator.image.exists() {
        return Err(HALTED);
    }
    counted(coordinator);
    let mut time = [0; 3];
    read_clock(&mut time);
    let [now, slot, salt] = time;
    let looked = coordinator.beacon.look(slot);
    let seed = coordinator.beacon.seed(salt);
    let Coordinator { image, memory, backing, beacon, .. } = coordinator;
    Ok(Run { image, memory, backing, beacon, now, slot, seed, salt, looked })
}

/// What a member's command works on, all checks done: the signature and the account.
#[inline(never)]
pub fn open_run(input: &Input, user: &Account, account: &Account, out: &mut MaybeUninit<Run>) -> Outcome {
    user.must_sign()?;
    let coordinator = coordinator_of(account, input)?;
    out.write(run_of(coordinator)?);
    Ok(())
}

/// A key as the image holds it.
#[inline(always)]
pub fn key_of(key: &Pubkey) -> Key {
    let mut words = [0u32; 8];
    copy(&mut words, key);
    words
}
