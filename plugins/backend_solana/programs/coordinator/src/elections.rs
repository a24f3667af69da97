//! Who witnesses and who trains in a round (psyche_core/coordinator/round/committee.py). The witnesses drawn are kept beside everything
//! they were drawn from, one entry for each stored round, and are drawn again where that differs.
use crate::image::{Set, MAX_WITNESSES, STORED_ROUNDS};
use crate::run::Run;
use crate::set;
use crate::shuffle::draw;

#[repr(C)]
pub struct Election {
    seed: u64,
    slots: Set,
    at_most: u32,
    known: u32,
    witnesses: Set,
}

/// The header's working memory.
#[repr(C)]
pub struct Memory {
    elections: [Election; STORED_ROUNDS],
    unused: [u8; 752 - STORED_ROUNDS * core::mem::size_of::<Election>()],
}

const _: () = assert!(core::mem::size_of::<Memory>() == 752);

pub fn at_most(run: &Run) -> usize {
    match run.image.config.witness_nodes {
        0 => MAX_WITNESSES,
        nodes => nodes as usize,
    }
}

/// How many witness in a round.
pub fn elected_count(run: &Run, place: usize) -> usize { set::count(&run.image.round(place).slots).min(at_most(run)) }

/// Statements needed among so many elected witnesses: two thirds, rounded up.
pub fn quorum(elected: usize) -> usize { (2 * elected).div_ceil(3) }

/// How many witness statements a round needs.
pub fn needed(run: &Run, place: usize) -> usize { quorum(elected_count(run, place)) }

/// The slots elected to witness in a round.
#[inline(never)]
pub fn witnesses(run: &mut Run, place: usize, out: &mut Set) {
    let slots = run.image.round(place).slots;
    let (count, most) = (set::count(&slots), at_most(run));
    if count <= most {
        *out = slots;
        return;
    }
    let election = remembered(run, place);
    if election.known == 0 {
        let mut ranks = [0; 4];
        set::fill(&mut ranks, most);
        draw(&mut ranks, count, election.seed, true);
        of_ranks(&slots, &ranks, &mut election.witnesses);
        election.known = 1;
    }
    *out = election.witnesses;
}

/// How many train in a round.
pub fn trainer_count(run: &Run, place: usize) -> usize {
    let mut training = [0; 4];
    trainers(run, place, &mut training);
    set::count(&training)
}

/// Whether a slot trains in a round.
pub fn trains(run: &Run, place: usize, slot: usize) -> bool {
    let round = run.image.round(place);
    set::has(&round.slots, slot) && !set::has(&round.recomputing, slot)
}

/// The slots that train in a round: all but those that recompute a share.
pub fn trainers(run: &Run, place: usize, out: &mut Set) {
    let round = run.image.round(place);
    *out = round.slots;
    set::subtract(out, &round.recomputing);
}

/// The entry of a stored round, empty if it was another's.
fn remembered<'a>(run: &'a mut Run, place: usize) -> &'a mut Election {
    let most = at_most(run) as u32;
    let round = run.image.round(place);
    let election = &mut run.memory.elections[round.height as usize % STORED_ROUNDS];
    let same = election.seed == round.seed && election.at_most == most;
    if !same || (0..4).any(|word| election.slots[word] != round.slots[word]) {
        election.seed = round.seed;
        election.slots = round.slots;
        election.at_most = most;
        election.known = 0;
    }
    election
}

/// The slots whose rank among `slots` is in `ranks`: bits move up one place for each slot below that is not there.
pub fn of_ranks(slots: &Set, ranks: &Set, out: &mut Set) {
    let mut rank = 0;
    for (word, place) in slots.iter().zip(out) {
        let (mut found, mut absent) = (set::window(ranks, rank), !*word);
        rank = rank.wrapping_add(word.count_ones() as usize);
        while absent != 0 {
            let lowest = absent & absent.wrapping_neg();
            let below = found & lowest.wrapping_sub(1);
            found = found.wrapping_add(found).wrapping_sub(below);
            absent ^= lowest;
        }
        *place = found;
    }
}
