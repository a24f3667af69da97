//! The coordinator: `psyche_core.coordinator.apply` on a chain, writing the same image byte for byte.
//!
//! A room here is the room of the same name there, where the rules and their reasons are; what differs is how things are computed
//! within the limits of an instruction: in place, elections by sets of bits, lists merged where they lie.
#![no_std]

mod accounts;
mod backing;
mod beacon;
mod challenges;
mod checkpoints;
mod drawing;
mod elections;
mod epochs;
mod equivocation;
mod evidence;
mod history;
mod image;
mod member;
mod members;
mod owner;
mod refusal;
mod requeue;
mod rewards;
mod rounds;
mod run;
mod set;
mod shares;
mod shuffle;
mod statements;
mod text;
mod verdicts;
mod verified;
mod waiting;
mod warmup;

use accounts::Coordinator;
use psyche_common::{Error, Input, Reader};
use refusal::Outcome;

/// # Safety
/// Called by the loader only.
#[no_mangle]
pub unsafe extern "C" fn entrypoint(buffer: *mut u8) -> u64 {
    let input = match Input::parse(buffer) {
        Ok(input) => input,
        Err(error) => return u64::from(error.0),
    };
    match dispatch(&input) {
        Ok(()) => 0,
        Err(refusal) => u64::from(Error::from(refusal).0),
    }
}

fn dispatch(input: &Input) -> Outcome {
    let Some((number, data)) = input.data.split_first() else { return Err(Error::BAD_INSTRUCTION.into()) };
    let reader = Reader(data);
    match number {
        0 => owner::init(input, reader),
        1 => owner::free(input, reader),
        2 => owner::stage(input, reader),
        3 => owner::update(input, reader),
        4 => owner::set_future_epoch_rates(input, reader),
        5 => owner::set_paused(input, reader),
        6 => member::join(input, reader),
        7 => member::withdraw(input, reader),
        8 => member::tick(input, reader),
        9 => member::witness(input, reader),
        10 => member::warmup_witness(input, reader),
        11 => member::health_check(input, reader),
        12 => member::checkpoint(input, reader),
        13 => member::equivocation(input, reader),
        15 => owner::expel(input, reader),
        16 => owner::back(input, reader),
        17 => owner::settle(input, reader),
        18 => member::epoch_digest(input, reader),
        19 => member::verifier_commit(input, reader),
        _ => Err(Error::BAD_INSTRUCTION.into()),
    }
}

/// One more instruction that succeeds; a refusal after this undoes it.
fn counted(coordinator: &mut Coordinator) { coordinator.nonce = coordinator.nonce.wrapping_add(1) }
