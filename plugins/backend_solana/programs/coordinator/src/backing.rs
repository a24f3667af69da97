//! What a run may promise its members, where a treasurer's vault stands behind it.

/// What stands behind a run's points, where something does: the vault of a treasurer. No epoch promises more than is free.
#[repr(C)]
pub struct Backing {
    /// Not 0: points are backed. The owner's instruction `back` sets it, and nothing takes it back.
    required: u64,
    /// Points that may still be promised.
    free: u64,
    /// What the epoch that goes on has promised to its members.
    promised: u64,
    reserved: u64,
}

impl Backing {
    /// What an epoch that begins now can promise of `wanted` points; it is set aside for its members.
    pub fn promise(&mut self, wanted: u64) -> u64 {
        if self.required == 0 {
            return wanted;
        }
        self.promised = wanted.min(self.free);
        self.free -= self.promised;
        self.promised
    }

    /// The epoch is over, or was given up, and has paid so much of what it promised.
    pub fn keep(&mut self, paid: u64) {
        self.free = self.free.saturating_add(self.promised.saturating_sub(paid));
        self.promised = 0;
    }

    /// There are so many units for which nobody has earned a point yet.
    pub fn measure(&mut self, units: u64) {
        self.required = 1;
        self.free = units.saturating_sub(self.promised);
    }
}
