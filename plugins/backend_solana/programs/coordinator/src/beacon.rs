//! Seeds that nobody chooses: the hash of a slot of the chain that was still to come when the phase before began.
use psyche_common::platform::{sha256, SlotHashes};

const SEED: &[u8] = b"psyche/beacon-seed/1";

/// What the next seed is made of, beside the image. Not the end of a round decides about it, so who ends one gains nothing by waiting.
#[repr(C)]
pub struct Beacon {
    /// The hash of the first slot after this one counts: that in which the phase began which drew the last seed. 0 before the first.
    since: u64,
    /// Zero until it is known.
    hash: [u64; 4],
    reserved: u64,
}

impl Beacon {
    fn known(&self) -> bool { self.hash != [0; 4] }

    /// The next seed, and what stands in for it while no hash is known: who ends a phase in the slot in which it began, or before the
    /// next block, has no choice worth the name.
    #[inline(always)]
    pub fn seed(&self, present: u64) -> u64 {
        if !self.known() {
            return present;
        }
        let hash = unsafe { core::slice::from_raw_parts(self.hash.as_ptr() as *const u8, 32) };
        first_word(&sha256(&[SEED, hash]))
    }

    /// A seed was drawn in this slot: the next one is made of a later slot's hash.
    pub fn drawn(&mut self, slot: u64) {
        self.since = slot;
        self.hash = [0; 4];
    }

    /// Takes in the hash if the chain knows it now; whether anything changed. What is known stays. The chain remembers 512 slots: where
    /// it has forgotten which one was the first, who waits could choose among the others, so one that is still to come counts instead.
    #[inline(never)]
    pub fn look(&mut self, slot: u64) -> bool {
        if self.since == 0 || self.known() || slot < self.since.saturating_add(2) {
            return false;
        }
        let hashes = SlotHashes::open();
        let newest = if hashes.count == 0 { 0 } else { hashes.slot(0) };
        if newest <= self.since {
            return false;
        }
        let last = hashes.count - 1;
        if hashes.slot(last) > self.since {
            self.drawn(slot);
            return true;
        }
        // newest first: `low` is later than `since`, `high` is not, nor is any that has no room behind it for so many later ones
        let (mut low, mut high) = (0, last.min(newest - self.since));
        while low + 1 < high {
            let middle = (low + high) / 2;
            if hashes.slot(middle) > self.since {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.hash = hashes.hash(low);
        true
    }
}

/// The first eight bytes.
pub fn first_word(hash: &[u8; 32]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(word)
}
