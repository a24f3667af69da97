//! The canonical image as structures: every offset is that of docs/reference/canonical-image.md. Read and written in place.
use core::mem::{offset_of, size_of};

/// 32 bytes of a key, of which the image promises an alignment of 4.
pub type Key = [u32; 8];
/// Slot s is bit s % 64 of word s / 64: on a little-endian machine the image's bitmap of 256.
pub type Set = [u64; 4];

pub const MAX_CLIENTS: usize = 256;
pub const MAX_WITNESSES: usize = 32;
pub const MAX_INTERVALS: usize = 512;
pub const MAX_ACCOUNTS: usize = 512;
pub const MAX_REJOINS: u8 = 3;
pub const WAITED_MISS: u8 = 32;
pub const UNWAITED_MISS: u8 = 2;
pub const STATED: u8 = 1;
pub const LATE_STATEMENT: u8 = 2;
pub const VERY_LATE_STATEMENT: u8 = 16;
pub const LATE_PART: u64 = 5;
pub const VERY_LATE_PART: u64 = 2;
pub const LEFT_BEHIND: u8 = 80;
pub const WAITED_MISSES: u8 = 64;
pub const MAX_MISSED: u8 = 128;
pub const MAX_UNREADY: usize = 256;
pub const UNREADY_LIMIT: u32 = 3;
pub const MAX_ENDS: usize = 4;
pub const MAX_END_INTERVALS: usize = 64;
pub const STORED_ROUNDS: usize = 4;
pub const MAX_CHECKPOINTERS: usize = 16;
pub const BLOOM_BYTES: usize = 320;
pub const MAX_TABLES_BYTES: usize = 2048;
pub const MAX_WORDS_BYTES: usize = 192;
pub const MAX_CHALLENGES: usize = 128;
pub const MAX_CHALLENGED_INTERVALS: usize = 8;
/// Places for the roots and slots of those that recompute a share: a verifier and three tie-breakers.
pub const MAX_JUDGES: usize = 4;

pub const MAGIC: u64 = u64::from_le_bytes(*b"PsycheSt");
pub const VERSION: u32 = 5;

pub mod state {
    pub const UNINITIALIZED: u8 = 0;
    pub const WAITING: u8 = 1;
    pub const WARMUP: u8 = 2;
    pub const TRAIN: u8 = 3;
    pub const WITNESS: u8 = 4;
    pub const COOLDOWN: u8 = 5;
    pub const FINISHED: u8 = 6;
    pub const PAUSED: u8 = 7;
}

pub mod health {
    pub const HEALTHY: u8 = 0;
    pub const DROPPED: u8 = 1;
    pub const WITHDRAWN: u8 = 2;
    pub const EJECTED: u8 = 3;
}

pub mod ending {
    pub const EPOCH_TIME: u8 = 1;
    pub const TOTAL_STEPS: u8 = 2;
    pub const TOO_FEW_CLIENTS: u8 = 3;
    pub const MISSED_QUORUM: u8 = 4;
    pub const PAUSE: u8 = 5;
    pub const ROUNDS: u8 = 6;
}

/// Where a challenge is (psyche_core/verification/challenge.py).
pub mod stage {
    pub const COMMIT: u8 = 0;
    pub const SIGNS: u8 = 1;
    pub const RECOMMIT: u8 = 2;
    pub const REVEAL: u8 = 3;
    pub const TIE_COMMIT: u8 = 4;
    pub const TIE_REVEAL: u8 = 5;
}

pub mod kind {
    pub const EPHEMERAL: u8 = 0;
    pub const DUMMY: u8 = 1;
    pub const HUB: u8 = 2;
    pub const P2P: u8 = 3;
    pub const GCS: u8 = 4;
    pub const P2P_GCS: u8 = 5;
}

#[repr(C)]
pub struct List<T, const N: usize> {
    pub count: u32,
    pub zero: u32,
    pub items: [T; N],
}

impl<T, const N: usize> List<T, N> {
    #[inline(always)]
    pub fn len(&self) -> usize { self.count as usize }

    /// The slots in use.
    #[inline(always)]
    pub fn used(&self) -> &[T] { unsafe { self.items.get_unchecked(..self.count as usize) } }

    #[inline(always)]
    pub fn used_mut(&mut self) -> &mut [T] { unsafe { self.items.get_unchecked_mut(..self.count as usize) } }

    /// Forgets all from `len` on, and leaves zeros there.
    pub fn truncate(&mut self, len: usize) {
        let old = self.len();
        if len < old {
            unsafe { core::ptr::write_bytes(self.items.as_mut_ptr().add(len), 0, old - len) };
            self.count = len as u32;
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Identity {
    pub signer: Key,
    pub p2p: Key,
}

#[repr(C)]
pub struct Client {
    pub id: Identity,
    pub exited_height: u32,
    pub accepted_rounds: u32,
    pub state: u8,
    pub rejoins: u8,
    pub missed: u8,
    pub lost_rounds: u8,
    pub end_digest: Key,
    pub standing: Standing,
}

/// Strikes and scores of a slot's checked shares in this epoch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Standing {
    pub strikes: u8,
    /// So many scores are remembered, each a bit of `high`, the oldest first.
    pub scores: u8,
    pub high: u8,
    zero: u8,
    pub watched_before: u32,
}

impl Client {
    /// Whether it was absent in the round of this height or later, and came back.
    pub fn absent_since(&self, height: u32) -> bool { self.rejoins > 0 && self.exited_height >= height }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Interval {
    pub first: u64,
    pub last: u64,
}

impl Interval {
    #[inline(always)]
    pub fn samples(&self) -> u64 { self.last.wrapping_sub(self.first).wrapping_add(1) }
}

#[repr(C)]
pub struct Statement {
    pub epoch: u32,
    pub height: u32,
    pub index: u16,
    pub zero: [u8; 2],
    pub participants: Key,
    pub broadcast_bloom: [u8; BLOOM_BYTES],
    pub merkle_root: [u8; 32],
    pub model_digest: Key,
    pub words_len: u32,
    pub words_zero: u32,
    pub words: [u8; MAX_WORDS_BYTES],
}

#[repr(C)]
pub struct Round {
    pub step: u64,
    pub seed: u64,
    pub height: u32,
    pub drain: u8,
    zero: [u8; 3],
    pub slots: Set,
    pub history: Key,
    pub voided: Set,
    pub recomputing: Set,
    pub batches: List<Interval, { MAX_INTERVALS + 1 }>,
    pub statements: List<Statement, MAX_WITNESSES>,
}

#[repr(C)]
pub struct Progress {
    pub step: u64,
    pub data_index: u64,
    pub epoch: u32,
    zero: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Rates {
    pub earning: u64,
    pub slashing: u64,
}

#[repr(C)]
pub struct Config {
    pub warmup_time: u64,
    pub cooldown_time: u64,
    pub max_round_train_time: u64,
    pub round_witness_time: u64,
    pub epoch_time: u64,
    pub batch_warmup_tokens: u64,
    pub total_steps: u32,
    pub rounds_per_epoch: u32,
    pub init_min_clients: u16,
    pub min_clients: u16,
    pub witness_nodes: u16,
    pub batch_start: u16,
    pub batch_end: u16,
    pub verification_percent: u8,
    pub extra_time: u8,
    pub restart_from_checkpoint: u8,
    pub zero: [u8; 3],
    pub checkpointers: List<Key, MAX_CHECKPOINTERS>,
}

#[repr(C)]
pub struct Checkpoint {
    pub kind: u8,
    pub first: [u8; 64],
    pub present: u8,
    pub second: [u8; 64],
    zero: [u8; 6],
}

#[repr(C)]
pub struct Model {
    pub max_seq_len: u32,
    pub cold_start_warmup_steps: u32,
    pub checkpoint: Checkpoint,
    pub tables_len: u32,
    zero: u32,
    pub tables: [u8; MAX_TABLES_BYTES],
}

#[repr(C)]
pub struct Epoch {
    pub start_time: u64,
    pub start_step: u64,
    pub seed: u64,
    pub rates: Rates,
    pub ending: u8,
    pub cold_start: u8,
    pub unplayed: u8,
    pub repeats: u8,
    zero: [u8; 4],
    pub ready: Set,
    pub ceded: Set,
    pub lacking: Set,
    pub held_step: u64,
    pub ready_present: u8,
    zeros: [u8; 7],
    pub ready_since: u64,
    pub clients: List<Client, MAX_CLIENTS>,
    pub rounds: List<Round, STORED_ROUNDS>,
    pub challenges: List<Challenge, MAX_CHALLENGES>,
}

#[repr(C)]
pub struct Root {
    pub slot: u16,
    zero: u16,
    pub commitment: Key,
}

impl Root {
    pub fn of(slot: u16, commitment: Key) -> Root { Root { slot, zero: 0, commitment } }
}

/// A challenge about a share that has no verdict yet.
#[repr(C)]
pub struct Challenge {
    pub height: u32,
    pub since: u32,
    pub trainer: u16,
    pub verifier: u16,
    pub stage: u8,
    pub complained: u8,
    zero: [u8; 2],
    pub share: List<Interval, MAX_CHALLENGED_INTERVALS>,
    pub roots: List<Root, MAX_JUDGES>,
    pub judges: List<u16, MAX_JUDGES>,
    pub missed: List<u16, MAX_JUDGES>,
}

#[repr(C)]
pub struct Account {
    pub signer: Key,
    pub earned: u64,
    pub slashed: u64,
}

/// What was trained when an epoch ended: where a run goes back to when its model is lost.
#[repr(C)]
pub struct EpochEnd {
    pub step: u64,
    pub data_index: u64,
    pub digest: Key,
    pub lost: u64,
    pub history: Key,
    pub queue: List<Interval, MAX_END_INTERVALS>,
}

/// A signer that was not ready when a warmup ended, and how often.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Unready {
    pub signer: Key,
    pub score: u32,
}

#[repr(C)]
pub struct Image {
    pub magic: u64,
    pub version: u32,
    pub size: u32,
    pub run_id: [u8; 32],
    pub instance: Key,
    pub since: u64,
    pub minimum_present: u8,
    zero: [u8; 7],
    pub minimum_since: u64,
    pub lost_samples: u64,
    pub progress: Progress,
    pub future_rates: Rates,
    pub run_state: u8,
    pub pending_pause: u8,
    pub from_checkpoint: u8,
    pub model_lost: u8,
    pub generation: u32,
    pub history: Key,
    pub config: Config,
    pub model: Model,
    pub epoch: Epoch,
    pub pending: List<Identity, MAX_CLIENTS>,
    pub requeue: List<Interval, MAX_INTERVALS>,
    pub accounts: List<Account, MAX_ACCOUNTS>,
    pub stored: EpochEnd,
    pub ends: List<EpochEnd, MAX_ENDS>,
    pub unready: List<Unready, MAX_UNREADY>,
}

pub const BYTES: usize = size_of::<Image>();

const _: () = {
    assert!(BYTES == 253_776);
    assert!(size_of::<Client>() == 116 && size_of::<Statement>() == 628 && size_of::<Round>() == 28_472);
    assert!(size_of::<Config>() == 592 && size_of::<Account>() == 48 && size_of::<EpochEnd>() == 1_120);
    assert!(size_of::<Challenge>() == 336 && offset_of!(Challenge, roots) == 152 && offset_of!(Challenge, judges) == 304);
    assert!(offset_of!(Image, progress) == 112 && offset_of!(Image, run_state) == 152);
    assert!(offset_of!(Image, config) == 192 && offset_of!(Image, config.checkpointers) == 264);
    assert!(offset_of!(Image, model) == 784 && offset_of!(Image, model.tables) == 936);
    assert!(offset_of!(Image, epoch) == 2984 && offset_of!(Image, epoch.ready) == 3032);
    assert!(offset_of!(Image, epoch.clients) == 3152 && offset_of!(Image, epoch.rounds) == 32_856);
    assert!(offset_of!(Round, slots) == 24 && offset_of!(Round, batches) == 152 && offset_of!(Round, statements) == 8368);
    assert!(offset_of!(Image, pending) == 189_768 && offset_of!(Image, requeue) == 206_160);
    assert!(offset_of!(Image, accounts) == 214_360 && offset_of!(Image, stored) == 238_944);
    assert!(offset_of!(Image, ends) == 240_064 && offset_of!(Image, unready) == 244_552);
};

impl Image {
    /// Whether there is a state at all: before the first `update` there is none.
    pub fn exists(&self) -> bool { self.magic == MAGIC }

    pub fn halted(&self) -> bool { matches!(self.run_state, state::UNINITIALIZED | state::FINISHED | state::PAUSED) }

    pub fn active(&self) -> bool { matches!(self.run_state, state::TRAIN | state::WITNESS | state::COOLDOWN) }

    pub fn playing(&self) -> bool { matches!(self.run_state, state::TRAIN | state::WITNESS) }

    /// Place of the current round, NONE before the epoch's first.
    pub fn current(&self) -> usize {
        if self.epoch.unplayed != 0 { NONE } else { self.epoch.rounds.len().wrapping_sub(1) }
    }

    /// Place of a stored round by its height, NONE when it is not stored.
    pub fn round_at(&self, height: u64) -> usize {
        let mut place = 0;
        while place < self.epoch.rounds.len() {
            if u64::from(self.round(place).height) == height {
                return place;
            }
            place += 1;
        }
        NONE
    }

    #[inline(always)]
    pub fn round(&self, place: usize) -> &Round { &self.epoch.rounds.items[place] }

    /// The slot of a signer in this epoch, whatever its health; NONE without one.
    pub fn slot_of(&self, signer: &Key) -> usize {
        for (slot, client) in self.epoch.clients.used().iter().enumerate() {
            if same(&client.id.signer, signer) {
                return slot;
            }
        }
        NONE
    }

    pub fn healthy(&self, out: &mut Set) {
        *out = [0; 4];
        for (clients, word) in self.epoch.clients.used().chunks(64).zip(out) {
            let mut bit = 1u64;
            for client in clients {
                if client.state == health::HEALTHY {
                    *word |= bit;
                }
                bit <<= 1;
            }
        }
    }

    /// The healthy slots that are ready.
    pub fn ready(&self, out: &mut Set) {
        self.healthy(out);
        for word in 0..4 {
            out[word] &= self.epoch.ready[word];
        }
    }

    /// What the newest signed end of this step says, None when there is none.
    pub fn end_of(&self, step: u64) -> Option<&EpochEnd> { self.ends.used().iter().find(|end| end.step == step) }

    pub fn enter(&mut self, run_state: u8, now: u64) {
        self.run_state = run_state;
        self.since = now;
    }

    pub fn finished(&self) -> bool { self.progress.step > u64::from(self.config.total_steps) }
}

/// Stands for a digest nobody gave.
pub const NO_DIGEST: Key = [0; 8];

/// No place, no slot.
pub const NONE: usize = usize::MAX;

#[inline(always)]
pub fn same(a: &Key, b: &Key) -> bool { a[0] == b[0] && a[1] == b[1] && (2..8).all(|word| a[word] == b[word]) }

/// Whether `seconds` have passed since `since`; at least one second must, even for 0.
pub fn due(since: u64, now: u64, seconds: u64) -> bool {
    now != since && since.checked_add(seconds).is_some_and(|end| now >= end)
}
