//! The queue of samples to be assigned again (psyche_core/coordinator/round/requeue.py): ascending, disjoint, neighbours joined.
use crate::image::{Interval, MAX_INTERVALS};
use crate::run::{heap, Run};
use crate::shares::total;

/// The queue as it is written anew: from the highest down and from its last place on, for the lowest may have no place.
struct Merged {
    items: *mut Interval,
    free: *mut Interval,
    /// The lowest interval so far, without a place yet: the next one may touch it.
    lowest: Interval,
}

impl Merged {
    /// Adds an interval below all others; false when that needs a place and none is left.
    #[inline(always)]
    fn add(&mut self, next: *const Interval) -> bool {
        let next = unsafe { &*next };
        if next.last.wrapping_add(1) != self.lowest.first {
            if !self.place() {
                return false;
            }
            self.lowest.last = next.last;
        }
        self.lowest.first = next.first;
        true
    }

    /// Puts the lowest interval in its place; false when none is left.
    #[inline(always)]
    fn place(&mut self) -> bool {
        if self.free == self.items {
            return false;
        }
        unsafe {
            self.free = self.free.sub(1);
            *self.free = self.lowest;
        }
        true
    }
}

/// Puts the `count` ascending intervals at `heap::returned` into the queue. When there are too many, the lowest are lost and counted.
#[inline(never)]
pub fn add_returned(run: &mut Run, count: usize) {
    if count == 0 {
        return;
    }
    let queue = &mut run.image.requeue;
    let items = queue.items.as_mut_ptr();
    let (old, new) = (heap::queue() as *const Interval, heap::returned() as *const Interval);
    unsafe {
        core::ptr::copy_nonoverlapping(items, heap::queue(), queue.len());
        // both point behind what is not merged yet
        let (mut left, mut right) = (old.add(queue.len()), new.add(count));
        let from_new = left == old || (*right.sub(1)).first > (*left.sub(1)).first;
        let highest = if from_new { &mut right } else { &mut left };
        *highest = highest.sub(1);
        let mut merged = Merged { items, free: items.add(MAX_INTERVALS), lowest: **highest };
        let all = 'merging: {
            while right > new {
                let next = right.sub(1);
                let first = (*next).first;
                while left > old && (*left.sub(1)).first >= first {
                    if !merged.add(left.sub(1)) {
                        break 'merging false;
                    }
                    left = left.sub(1);
                }
                if !merged.add(next) {
                    break 'merging false;
                }
                right = next;
            }
            while left > old {
                if !merged.add(left.sub(1)) {
                    break 'merging false;
                }
                left = left.sub(1);
            }
            merged.place()
        };
        let len = items.add(MAX_INTERVALS).offset_from(merged.free) as usize;
        core::ptr::copy(merged.free, items, len);
        core::ptr::write_bytes(items.add(len), 0, MAX_INTERVALS - len);
        queue.count = len as u32;
        if !all {
            let (left, right) = (left.offset_from(old) as usize, right.offset_from(new) as usize);
            let lost = merged.lowest.samples().wrapping_add(total(old, left)).wrapping_add(total(new, right));
            run.image.lost_samples = run.image.lost_samples.wrapping_add(lost);
        }
    }
}

/// Moves up to `wanted` samples from the front of the queue to the batches of the round at `place`; how many are still wanted.
pub fn take(run: &mut Run, place: usize, mut wanted: u64) -> u64 {
    let queue = &mut run.image.requeue;
    let batches = &mut run.image.epoch.rounds.items[place].batches;
    let mut whole = 0;
    for batch in queue.used() {
        let samples = batch.samples();
        if samples > wanted {
            break;
        }
        wanted = wanted.wrapping_sub(samples);
        whole += 1;
    }
    unsafe { core::ptr::copy_nonoverlapping(queue.items.as_ptr(), batches.items.as_mut_ptr(), whole) };
    batches.count = whole as u32;
    if whole < queue.len() && wanted > 0 {
        let batch = &mut queue.items[whole];
        let cut = batch.first.wrapping_add(wanted);
        batches.items[whole] = Interval { first: batch.first, last: cut.wrapping_sub(1) };
        batches.count += 1;
        batch.first = cut;
        wanted = 0;
    }
    let left = queue.len() - whole;
    unsafe { core::ptr::copy(queue.items.as_ptr().add(whole), queue.items.as_mut_ptr(), left) };
    queue.truncate(left);
    wanted
}
