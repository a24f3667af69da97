//! Refusals: the common ones, and the coordinator's, at 100 and the place of their name in `psyche_core.coordinator.errors`.
use core::num::NonZeroU32;
use psyche_common::Error;

/// A refusal's number. Not zero, so that an `Outcome` is one register: functions that return more are copied into their callers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Refusal(NonZeroU32);

pub type Outcome = Result<(), Refusal>;

const fn own(place: u32) -> Refusal {
    match NonZeroU32::new(100 + place) {
        Some(number) => Refusal(number),
        None => panic!(),
    }
}

pub const NO_ACTIVE_ROUND: Refusal = own(0);
pub const INVALID_WITNESS: Refusal = own(1);
pub const INVALID_RUN_STATE: Refusal = own(2);
pub const DUPLICATE_WITNESS: Refusal = own(3);
pub const INVALID_HEALTH_CHECK: Refusal = own(4);
pub const HALTED: Refusal = own(5);
pub const WITNESSES_FULL: Refusal = own(6);
pub const CANNOT_RESUME: Refusal = own(7);
pub const INVALID_WITHDRAW: Refusal = own(8);
pub const INVALID_CHECKPOINT: Refusal = own(10);
pub const CLIENTS_FULL: Refusal = own(11);
pub const ACCOUNTS_FULL: Refusal = own(12);
pub const INVALID_EVIDENCE: Refusal = own(13);
pub const INVALID_PROOF: Refusal = own(14);
pub const TRANSPORT_KEY_TAKEN: Refusal = own(15);
pub const REJOINS_EXHAUSTED: Refusal = own(16);
pub const UPDATE_CONFIG_FINISHED: Refusal = own(17);
pub const UPDATE_CONFIG_NOT_HALTED: Refusal = own(18);
pub const CONFIG_SANITY: Refusal = own(19);
pub const MODEL_SANITY: Refusal = own(20);
pub const PROGRESS_SANITY: Refusal = own(21);
pub const INVALID_SETTLEMENT: Refusal = own(22);
pub const NOTHING_DUE: Refusal = own(23);
pub const INVALID_COMMIT: Refusal = own(24);

impl From<Error> for Refusal {
    #[inline(always)]
    fn from(error: Error) -> Refusal {
        Refusal(match NonZeroU32::new(error.0) { Some(number) => number, None => NonZeroU32::MIN })
    }
}

impl From<Refusal> for Error {
    #[inline(always)]
    fn from(refusal: Refusal) -> Error { Error(refusal.0.get()) }
}
