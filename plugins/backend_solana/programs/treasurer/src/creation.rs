//! A run's beginning, and what its owner commands while it lives.
use psyche_common::cpi::{self, invoke, Meta};
use psyche_common::platform::{clock, find_address};
use psyche_common::token::{create_vault, must_be_mint, Programs};
use psyche_common::{ids, record, Error, Input, Reader, Res};

use crate::coordinator::{Commanded, Coordinator, FOR_OWNERS, INIT};
use crate::run::{open_for, Run, BYTES, SEED};
use crate::NOT_FOR_OWNERS;

/// Bytes of the coordinator's `init`: number, run_id length and place, two authorities, client_version.
const INIT_BYTES: usize = 1 + 1 + 32 + 32 + 32 + 96;

pub fn run_create(input: &Input, data: &[u8]) -> Res {
    let [payer, run, vault, mint, instance, coordinator, program, token, associated, system] = input.accounts::<10>()?;
    let mut reader = Reader(data);
    let index = reader.u64()?;
    let main_authority = reader.array::<32>()?;
    let join_authority = reader.array::<32>()?;
    let run_id = reader.array::<33>()?;
    let client_version = reader.array::<96>()?;
    reader.end()?;
    program.must_be(&ids::COORDINATOR)?;
    must_be_mint(mint)?;
    let mut key = [0; 32];
    let bump = find_address(&[SEED, &index.to_le_bytes()], input.program, &mut key);
    run.must_be(&key)?;
    cpi::create(payer, run, system, input.program, BYTES as u64, &[SEED, &index.to_le_bytes(), &[bump]])?;
    create_vault(payer, vault, run, mint, &Programs { token, associated, system })?;

    let made: &mut Run = record::begin(run)?;
    made.bump = bump;
    made.index = index;
    made.main_authority = *main_authority;
    made.join_authority = *join_authority;
    made.instance = *instance.key();
    made.coordinator = *coordinator.key();
    made.mint = *mint.key();
    made.created = clock().slot;
    made.vault = *vault.key();

    let mut init = [0u8; INIT_BYTES];
    init[0] = INIT;
    init[1..34].copy_from_slice(run_id);
    init[34..66].copy_from_slice(run.key());
    init[66..98].copy_from_slice(join_authority);
    init[98..].copy_from_slice(client_version);
    let metas = [
        Meta { key: payer.key(), writable: true, signer: true },
        Meta { key: instance.key(), writable: true, signer: false },
        Meta { key: coordinator.key(), writable: true, signer: true },
        Meta { key: system.key(), writable: false, signer: false },
    ];
    invoke(&ids::COORDINATOR, &metas, &init, &[*payer, *instance, *coordinator, *system, *program], &[])?;
    Coordinator::open(coordinator)?;
    Commanded { run, instance, account: coordinator, program }.back(made, 0)
}

/// Passes one instruction of the coordinator on, with the run signing as its owner.
pub fn run_update(input: &Input, data: &[u8]) -> Res {
    let [authority, run, instance, coordinator, program] = input.accounts::<5>()?;
    let found = open_for(authority, run, input.program)?;
    coordinator.must_be_writable()?;
    let commanded = Commanded { run, instance, account: coordinator, program };
    commanded.must_be_of(found)?;
    match data.first() {
        Some(number) if FOR_OWNERS.contains(number) => {}
        Some(_) => return Err(NOT_FOR_OWNERS),
        None => return Err(Error::BAD_INSTRUCTION),
    }
    commanded.command(found, data)
}
