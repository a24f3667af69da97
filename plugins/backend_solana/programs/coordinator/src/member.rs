//! The members' instructions: who signs is the signer half of the identity that commands.
use crate::accounts::{coordinator_of, instance_of, key_of, must_belong, open_run, run_of};
use crate::checkpoints::{self, Location};
use crate::equivocation::{self, Report};
use crate::evidence::SignedResult;
use crate::challenges::Commit;
use crate::image::{Identity, Statement, MAX_WORDS_BYTES};
use crate::refusal::{Outcome, Refusal, NOTHING_DUE};
use crate::run::Run;
use crate::{challenges, epochs, history, members, statements};
use core::mem::MaybeUninit;
use psyche_common::authorization::{delegates, must_allow, JOIN_SCOPE};
use psyche_common::platform::log_data;
use psyche_common::{Account, Error, Input, Reader};

const MAX_ADDRESS_BYTES: usize = 512;
const MAX_METADATA_BYTES: usize = 256;
/// A statement without its words, which are sent with their number.
const SAID_BYTES: usize = core::mem::offset_of!(Statement, words_len);

#[inline(always)]
fn begin(input: &Input, user: &Account, account: &Account) -> Result<Run, Refusal> {
    let mut run = MaybeUninit::uninit();
    open_run(input, user, account, &mut run)?;
    Ok(unsafe { run.assume_init() })
}

pub fn join(input: &Input, mut reader: Reader) -> Outcome {
    let [user, authorization, instance, account, sysvar] = input.accounts::<5>()?;
    let p2p = reader.array::<32>()?;
    let proof = reader.array::<64>()?;
    let len = reader.u16()? as usize;
    if len > MAX_ADDRESS_BYTES {
        return Err(Error::TOO_LONG.into());
    }
    let address = reader.bytes(len)?;
    reader.end()?;
    user.must_sign()?;
    let found = instance_of(instance, input)?;
    let coordinator = coordinator_of(account, input)?;
    must_belong(found, instance.key(), account, &coordinator.instance)?;
    let grant = must_allow(authorization, &found.join_authority, user.key(), JOIN_SCOPE)?;
    let mut run = run_of(coordinator)?;
    if grant.limit > 0 && !members::has_room(&run, grant, delegates(authorization), &key_of(user.key())) {
        return Err(Error::LIMIT_REACHED.into());
    }
    members::join(&mut run, &Identity { signer: key_of(user.key()), p2p: key_of(p2p) }, proof, sysvar)?;
    if !address.is_empty() {
        log_data(&[b"join", user.key(), p2p, address]);
    }
    Ok(())
}

pub fn withdraw(input: &Input, reader: Reader) -> Outcome {
    let [user, account] = input.accounts::<2>()?;
    reader.end()?;
    let mut run = begin(input, user, account)?;
    members::withdraw(&mut run, &key_of(user.key()))
}

pub fn tick(input: &Input, reader: Reader) -> Outcome {
    let [user, account] = input.accounts::<2>()?;
    reader.end()?;
    let mut run = begin(input, user, account)?;
    match epochs::tick(&mut run) {
        Err(NOTHING_DUE) if run.looked => Ok(()), // in a long round somebody has to look while the chain still knows the hash
        done => done,
    }
}

pub fn witness(input: &Input, mut reader: Reader) -> Outcome {
    let [user, account] = input.accounts::<2>()?;
    let said = reader.array::<SAID_BYTES>()?;
    let len = reader.u8()? as usize;
    if len > MAX_WORDS_BYTES {
        return Err(Error::TOO_LONG.into());
    }
    let words = reader.bytes(len)?;
    let metadata = reader.0;
    if metadata.len() > MAX_METADATA_BYTES {
        return Err(Error::TOO_LONG.into());
    }
    let mut place = MaybeUninit::<Statement>::zeroed();
    unsafe {
        let to = place.as_mut_ptr() as *mut u8;
        core::ptr::copy_nonoverlapping(said.as_ptr(), to, SAID_BYTES);
        core::ptr::copy_nonoverlapping(words.as_ptr(), to.add(core::mem::offset_of!(Statement, words)), len);
        (*place.as_mut_ptr()).words_len = len as u32;
    }
    let statement = unsafe { &*place.as_ptr() };
    if statement.zero != [0; 2] {
        return Err(Error::BAD_INSTRUCTION.into());
    }
    let mut run = begin(input, user, account)?;
    statements::witness(&mut run, &key_of(user.key()), statement)?;
    if !metadata.is_empty() {
        log_data(&[b"witness", user.key(), metadata]);
    }
    Ok(())
}

pub fn warmup_witness(input: &Input, mut reader: Reader) -> Outcome {
    let [user, account] = input.accounts::<2>()?;
    let (epoch, index) = (reader.u32()?, reader.u16()?);
    let digest = reader.array::<32>()?;
    reader.end()?;
    let mut run = begin(input, user, account)?;
    statements::warmup_witness(&mut run, &key_of(user.key()), epoch, index, &key_of(digest))
}

pub fn epoch_digest(input: &Input, mut reader: Reader) -> Outcome {
    let [user, account] = input.accounts::<2>()?;
    let (epoch, index, digest) = (reader.u32()?, reader.u16()?, reader.array::<32>()?);
    reader.end()?;
    let mut run = begin(input, user, account)?;
    history::epoch_digest(&mut run, &key_of(user.key()), epoch, index, &key_of(digest))
}

pub fn health_check(input: &Input, mut reader: Reader) -> Outcome {
    let [user, account] = input.accounts::<2>()?;
    let count = reader.u16()? as usize;
    let slots = reader.bytes(2 * count)?;
    reader.end()?;
    let mut run = begin(input, user, account)?;
    members::health_check(&mut run, &key_of(user.key()), slots)
}

pub fn checkpoint(input: &Input, mut reader: Reader) -> Outcome {
    let [user, account] = input.accounts::<2>()?;
    let location = Location { kind: reader.u8()?, first: reader.array()?, present: reader.flag()?, second: reader.array()? };
    reader.end()?;
    let mut run = begin(input, user, account)?;
    checkpoints::checkpoint(&mut run, &key_of(user.key()), &location)
}

pub fn equivocation(input: &Input, mut reader: Reader) -> Outcome {
    let [user, account, sysvar] = input.accounts::<3>()?;
    let (epoch, height, index) = (reader.u32()?, reader.u32()?, reader.u16()? as usize);
    let first = SignedResult { payload_hash: reader.array()?, signature: reader.array()? };
    let second = SignedResult { payload_hash: reader.array()?, signature: reader.array()? };
    reader.end()?;
    let mut run = begin(input, user, account)?;
    equivocation::equivocation(&mut run, &key_of(user.key()), &Report { epoch, height, index, results: [first, second] }, sysvar)
}

pub fn verifier_commit(input: &Input, mut reader: Reader) -> Outcome {
    let [user, account] = input.accounts::<2>()?;
    let (epoch, seed, height, trainer) = (reader.u32()?, reader.u64()?, reader.u32()?, reader.u16()?);
    let root = if reader.flag()? { Some(reader.array::<32>()?) } else { None };
    reader.end()?;
    let mut run = begin(input, user, account)?;
    challenges::verifier_commit(&mut run, &key_of(user.key()), &Commit { epoch, seed, height, trainer, root })
}
