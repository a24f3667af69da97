//! The queue of samples to be assigned again (psyche_core/coordinator/requeue.py): ascending, disjoint, neighbours joined.
use crate::image::{Interval, MAX_INTERVALS};
use crate::run::{heap, Run};

/// Puts the `count` ascending intervals at `heap::returned` into the queue. When there are too many, the lowest are lost and counted.
#[inline(never)]
pub fn add_returned(run: &mut Run, count: usize) {
    if count == 0 {
        return;
    }
    let queue = &mut run.image.requeue;
    let (old, new) = (heap::queue() as *const Interval, heap::returned() as *const Interval);
    let mut lost = 0u64;
    // from the highest down, written to the end of the queue, for it is the lowest that may have no place
    let items = queue.items.as_mut_ptr();
    let mut free = MAX_INTERVALS;
    unsafe {
        core::ptr::copy_nonoverlapping(items, heap::queue(), queue.len());
        let (mut left, mut right) = (old.add(queue.len()), new.add(count));
        let mut joined = Interval { first: 0, last: 0 };
        let mut begun = false;
        while left > old || right > new {
            let from_new = left == old || (right > new && (*right.sub(1)).first > (*left.sub(1)).first);
            let next = if from_new {
                right = right.sub(1);
                right
            } else {
                left = left.sub(1);
                left
            };
            if begun && (*next).last.wrapping_add(1) == joined.first {
                joined.first = (*next).first;
                continue;
            }
            if begun {
                if free > 0 {
                    free -= 1;
                    *items.add(free) = joined;
                } else {
                    lost = lost.wrapping_add(joined.samples());
                }
            }
            begun = true;
            joined = *next;
        }
        if free > 0 {
            free -= 1;
            *items.add(free) = joined;
        } else {
            lost = lost.wrapping_add(joined.samples());
        }
        let len = MAX_INTERVALS - free;
        core::ptr::copy(items.add(free), items, len);
        core::ptr::write_bytes(items.add(len), 0, MAX_INTERVALS - len);
        queue.count = len as u32;
    }
    run.image.lost_samples = run.image.lost_samples.wrapping_add(lost);
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
