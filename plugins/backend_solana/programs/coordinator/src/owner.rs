//! The owner's instructions: making and freeing a run, and its configuration (`_update_config` in psyche_core/coordinator/
//! transitions.py, the rules in psyche_core/run_config_rules.py). What a model's tables say is plugins' business and not looked at.
use crate::accounts::{
    coordinator_of, instance_of, key_of, must_belong, owned, run_id_len, run_of, Coordinator, Instance, BYTES, CLIENT_VERSION_BYTES, INSTANCE_BYTES,
    METADATA_BYTES, OLD_BYTES, OLD_RUN_STATE, SEED, STAGING_BYTES,
};
use crate::checkpoints::Location;
use crate::image::{self, kind, state, Config, Image, Model, MAX_CHECKPOINTERS, MAX_CLIENTS, MAX_TABLES_BYTES, MAX_WITNESSES};
use crate::refusal::{
    Outcome, CONFIG_SANITY, HALTED, INVALID_RUN_STATE, MODEL_SANITY, PROGRESS_SANITY, UPDATE_CONFIG_FINISHED, UPDATE_CONFIG_NOT_HALTED,
};
use crate::text::{copy, is_text};
use crate::{counted, epochs, history, members, rewards};
use psyche_common::platform::{find_address, same};
use psyche_common::record::{begin, Header, Record};
use psyche_common::runtime::sol_memcmp_;
use psyche_common::{cpi, Account, Error, Input, Reader};

const CONFIG: u8 = 1;
const MODEL: u8 = 2;
const PROGRESS: u8 = 4;
const METADATA: u8 = 8;
const CLIENT_VERSION: u8 = 16;
const STAGED: u8 = 128;

const RESUME: u8 = 0;
const PAUSE: u8 = 1;
const RESUME_FROM_CHECKPOINT: u8 = 2;

/// Highest first sample and epoch from which a run can go on: it cannot reach the end of their numbers.
const MAX_FIRST_SAMPLE: u64 = 1 << 62;
const MAX_EPOCH: u32 = 1 << 31;

pub fn init(input: &Input, mut reader: Reader) -> Outcome {
    let [payer, instance, account, system] = input.accounts::<4>()?;
    let len = reader.u8()? as usize;
    let run_id = reader.array::<32>()?;
    let main_authority = reader.array::<32>()?;
    let join_authority = reader.array::<32>()?;
    let client_version = reader.array::<CLIENT_VERSION_BYTES>()?;
    reader.end()?;
    if len == 0 || len != run_id_len(run_id) || !is_text(run_id) || !is_text(client_version) {
        return Err(Error::BAD_INSTRUCTION.into());
    }
    account.must_sign()?;
    account.must_be_writable()?;
    account.must_be_owned_by(input.program)?;
    if account.len() != BYTES {
        return Err(Error::WRONG_SIZE.into());
    }
    // all zero: the first word is, and each byte is the one eight bytes before it
    let data = account.ptr();
    let mut differs = 1;
    unsafe { sol_memcmp_(data, data.add(8), BYTES as u64 - 8, &mut differs) };
    if unsafe { *(data as *const u64) } != 0 || differs != 0 {
        return Err(Error::ALREADY_EXISTS.into());
    }
    let mut key = [0; 32];
    let name = &run_id[..len];
    let bump = find_address(&[SEED, name], input.program, &mut key);
    instance.must_be(&key)?;
    cpi::create(payer, instance, system, input.program, INSTANCE_BYTES as u64, &[SEED, name, &[bump]])?;
    let made: &mut Instance = begin(instance)?;
    made.bump = bump;
    copy(&mut made.main_authority, main_authority);
    copy(&mut made.join_authority, join_authority);
    copy(&mut made.account, account.key());
    copy(&mut made.run_id, run_id);
    let coordinator: &mut Coordinator = begin(account)?;
    coordinator.run_id_len = len as u32;
    coordinator.nonce = 1;
    copy(&mut coordinator.instance, instance.key());
    copy(&mut coordinator.client_version, client_version);
    Ok(())
}

/// Closes both accounts of a halted run, also those of an older version, of which nothing else is understood any more.
pub fn free(input: &Input, reader: Reader) -> Outcome {
    let [authority, spill, instance, account] = input.accounts::<4>()?;
    reader.end()?;
    spill.must_be_writable()?;
    instance.must_be_writable()?;
    if OLD_BYTES.contains(&account.len()) {
        free_old(input, authority, instance, account)?;
    } else {
        let coordinator = owned(input, authority, instance, account)?;
        if coordinator.image.exists() && !coordinator.image.halted() {
            return Err(INVALID_RUN_STATE);
        }
    }
    instance.close(spill)?;
    account.close(spill)?;
    Ok(())
}

/// Refuses what is no halted run of an older version whose owner signs.
#[inline(never)]
fn free_old(input: &Input, authority: &Account, instance: &Account, account: &Account) -> Outcome {
    authority.must_sign()?;
    let found = instance_of(instance, input)?;
    account.must_be_writable()?;
    account.must_be_owned_by(input.program)?;
    let data = account.data();
    if data[..8] != Coordinator::MAGIC {
        return Err(Error::WRONG_KIND.into());
    }
    let version = unsafe { (*(account.ptr() as *const Header)).version };
    if !matches!(version, 1..=4) || account.len() != OLD_BYTES[version as usize - 1] {
        return Err(Error::WRONG_VERSION.into());
    }
    let of = unsafe { &*(account.ptr().add(core::mem::offset_of!(Coordinator, instance)) as *const [u8; 32]) };
    must_belong(found, instance.key(), account, of)?;
    if !same(&found.main_authority, authority.key()) {
        return Err(Error::NOT_AUTHORITY.into());
    }
    if matches!(data[OLD_RUN_STATE[version as usize - 1]], state::WAITING..=state::COOLDOWN) { Err(INVALID_RUN_STATE) } else { Ok(()) }
}

pub fn stage(input: &Input, mut reader: Reader) -> Outcome {
    let [authority, instance, account] = input.accounts::<3>()?;
    let offset = reader.u16()? as usize;
    let content = reader.0;
    let coordinator = owned(input, authority, instance, account)?;
    if offset + content.len() > STAGING_BYTES {
        return Err(Error::TOO_LONG.into());
    }
    coordinator.staging[offset..offset + content.len()].copy_from_slice(content);
    counted(coordinator);
    Ok(())
}

pub fn set_future_epoch_rates(input: &Input, mut reader: Reader) -> Outcome {
    let [authority, instance, account] = input.accounts::<3>()?;
    let mask = reader.u8()?;
    let (earning, slashing) = (reader.u64()?, reader.u64()?);
    reader.end()?;
    if mask > 3 {
        return Err(Error::BAD_INSTRUCTION.into());
    }
    let coordinator = owned(input, authority, instance, account)?;
    if !coordinator.image.exists() {
        return Err(HALTED);
    }
    let rates = &mut coordinator.image.future_rates;
    if mask & 1 != 0 {
        rates.earning = earning;
    }
    if mask & 2 != 0 {
        rates.slashing = slashing;
    }
    counted(coordinator);
    Ok(())
}

pub fn set_paused(input: &Input, mut reader: Reader) -> Outcome {
    let [authority, instance, account] = input.accounts::<3>()?;
    let what = reader.u8()?;
    reader.end()?;
    let coordinator = owned(input, authority, instance, account)?;
    let mut run = run_of(coordinator)?;
    match what {
        RESUME => epochs::resume(&mut run, false),
        PAUSE => epochs::pause(&mut run),
        RESUME_FROM_CHECKPOINT => epochs::resume(&mut run, true),
        _ => Err(Error::BAD_INSTRUCTION.into()),
    }
}

pub fn update(input: &Input, mut reader: Reader) -> Outcome {
    let [authority, instance, account] = input.accounts::<3>()?;
    let mask = reader.u8()?;
    if mask & !(CONFIG | MODEL | PROGRESS | METADATA | CLIENT_VERSION | STAGED) != 0 {
        return Err(Error::BAD_INSTRUCTION.into());
    }
    let coordinator = owned(input, authority, instance, account)?;
    if mask & STAGED != 0 {
        reader.end()?;
        reader = Reader(unsafe { core::slice::from_raw_parts(coordinator.staging.as_ptr(), STAGING_BYTES) });
    }
    if mask & (CONFIG | MODEL | PROGRESS) != 0 {
        let name = unsafe { &*(instance.ptr().add(core::mem::offset_of!(Instance, run_id)) as *const [u8; 32]) };
        begin_update(coordinator, mask, name, account.key())?;
    }
    if mask & CONFIG != 0 {
        copy(&mut coordinator.image.config, reader.array::<{ core::mem::size_of::<Config>() }>()?);
    }
    if mask & MODEL != 0 {
        read_model(&mut reader, &mut coordinator.image.model)?;
    }
    if mask & PROGRESS != 0 {
        let progress = &mut coordinator.image.progress;
        progress.step = reader.u64()?;
        progress.data_index = reader.u64()?;
        progress.epoch = reader.u32()?;
    }
    if mask & METADATA != 0 {
        copy(&mut coordinator.metadata, reader.array::<METADATA_BYTES>()?);
        if !is_text(&coordinator.metadata[..64]) || !is_text(&coordinator.metadata[64..344]) {
            return Err(Error::BAD_INSTRUCTION.into());
        }
    }
    if mask & CLIENT_VERSION != 0 {
        copy(&mut coordinator.client_version, reader.array::<CLIENT_VERSION_BYTES>()?);
        if !is_text(&coordinator.client_version) {
            return Err(Error::BAD_INSTRUCTION.into());
        }
    }
    if mask & STAGED == 0 {
        reader.end()?;
    }
    if mask & (CONFIG | MODEL | PROGRESS) != 0 {
        check_update(&mut coordinator.image, mask)?;
    }
    counted(coordinator);
    Ok(())
}

/// Refuses while the run is not halted; with nothing there yet, begins the image of an uninitialized run. Forgets what was derived.
fn begin_update(coordinator: &mut Coordinator, mask: u8, run_id: &[u8; 32], account: &[u8; 32]) -> Outcome {
    let image = &mut coordinator.image;
    if image.exists() {
        if image.run_state == state::FINISHED {
            return Err(UPDATE_CONFIG_FINISHED);
        }
        if !image.halted() {
            return Err(UPDATE_CONFIG_NOT_HALTED);
        }
    } else {
        if mask & (CONFIG | MODEL) != CONFIG | MODEL {
            return Err(if mask & CONFIG == 0 { CONFIG_SANITY } else { MODEL_SANITY });
        }
        image.magic = image::MAGIC;
        image.version = image::VERSION;
        image.size = image::BYTES as u32;
        copy(&mut image.run_id, run_id);
        copy(&mut image.instance, account);
        image.progress.step = 1;
        image.from_checkpoint = 1;
    }
    unsafe { core::ptr::write_bytes(&mut coordinator.memory, 0, 1) };
    Ok(())
}

fn read_model(reader: &mut Reader, model: &mut Model) -> Outcome {
    model.max_seq_len = reader.u32()?;
    model.cold_start_warmup_steps = reader.u32()?;
    let location = Location { kind: reader.u8()?, first: reader.array()?, present: reader.flag()?, second: reader.array()? };
    if location.kind > kind::P2P_GCS || !location.is_sound() {
        return Err(Error::BAD_INSTRUCTION.into());
    }
    location.write(&mut model.checkpoint, location.kind);
    let len = reader.u16()? as usize;
    if len > MAX_TABLES_BYTES {
        return Err(Error::TOO_LONG.into());
    }
    let tables = reader.bytes(len)?;
    unsafe { core::ptr::write_bytes(&mut model.tables, 0, 1) };
    model.tables[..len].copy_from_slice(tables);
    model.tables_len = len as u32;
    Ok(())
}

fn check_update(image: &mut Image, mask: u8) -> Outcome {
    check_config(&image.config)?;
    let (config, model) = (&image.config, &image.model);
    let nameless = model.checkpoint.kind != kind::DUMMY && model.checkpoint.first[0] == 0;
    if model.max_seq_len == 0 || model.checkpoint.kind == kind::EPHEMERAL || nameless {
        return Err(MODEL_SANITY);
    }
    let rounds = (config.epoch_time - config.warmup_time) / config.max_round_train_time;
    if u64::from(model.cold_start_warmup_steps) > rounds {
        return Err(CONFIG_SANITY);
    }
    if mask & PROGRESS != 0 {
        let last_step = (u64::from(config.total_steps) + 1).min(u64::from(u32::MAX));
        let progress = &image.progress;
        let in_range = progress.step >= 1 && progress.step <= last_step;
        if !in_range || progress.data_index > MAX_FIRST_SAMPLE || progress.epoch > MAX_EPOCH {
            return Err(PROGRESS_SANITY);
        }
        history::move_here(image);
    }
    Ok(())
}

fn check_config(config: &Config) -> Outcome {
    let count = config.checkpointers.len();
    let malformed = count > MAX_CHECKPOINTERS || config.checkpointers.zero != 0 || config.zero != [0; 3] || config.restart_from_checkpoint > 1;
    if malformed || config.checkpointers.items[count..].iter().any(|key| *key != [0; 8]) {
        return Err(Error::BAD_INSTRUCTION.into());
    }
    let keys = config.checkpointers.used();
    let twice = (0..count).any(|place| keys[..place].iter().any(|key| image::same(key, &keys[place])));
    let (least, most) = (config.min_clients, MAX_CLIENTS as u16);
    let broken = config.epoch_time == 0
        || config.warmup_time >= config.epoch_time
        || config.max_round_train_time == 0
        || config.max_round_train_time >= config.epoch_time
        || config.round_witness_time == 0
        || least == 0
        || config.init_min_clients < least
        || config.init_min_clients > most
        || config.batch_start == 0
        || config.batch_end < config.batch_start
        || config.total_steps == 0
        || config.witness_nodes > least
        || config.witness_nodes > MAX_WITNESSES as u16
        || config.cooldown_time == 0
        || config.extra_time == 0
        || config.verification_percent > 100
        || twice;
    if broken { Err(CONFIG_SANITY) } else { Ok(()) }
}

/// Says what stands behind points not promised yet, once and whenever that changes: from then on no epoch promises more.
pub fn back(input: &Input, mut reader: Reader) -> Outcome {
    let [authority, instance, account] = input.accounts::<3>()?;
    let units = reader.u64()?;
    reader.end()?;
    let coordinator = owned(input, authority, instance, account)?;
    coordinator.backing.measure(units);
    counted(coordinator);
    Ok(())
}

/// Frees the account of a signer that was paid out, whom nothing can be paid or slashed any more.
pub fn settle(input: &Input, mut reader: Reader) -> Outcome {
    let [authority, instance, account] = input.accounts::<3>()?;
    let signer = reader.array::<32>()?;
    reader.end()?;
    let coordinator = owned(input, authority, instance, account)?;
    let mut run = run_of(coordinator)?;
    rewards::settle(&mut run, &key_of(signer))
}

/// Who may say who joins may also send a member away, as if it had withdrawn: a right that is taken back must end some time.
pub fn expel(input: &Input, mut reader: Reader) -> Outcome {
    let [authority, instance, account] = input.accounts::<3>()?;
    let user = reader.array::<32>()?;
    reader.end()?;
    authority.must_sign()?;
    let found = instance_of(instance, input)?;
    let coordinator = coordinator_of(account, input)?;
    must_belong(found, instance.key(), account, &coordinator.instance)?;
    if !same(authority.key(), &found.join_authority) && !same(authority.key(), &found.main_authority) {
        return Err(Error::NOT_AUTHORITY.into());
    }
    let mut run = run_of(coordinator)?;
    members::withdraw(&mut run, &key_of(user))
}
