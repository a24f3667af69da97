//! Who witnesses and who trains in a round (psyche_core/coordinator/round/committee.py). What was drawn is kept beside everything it was
//! drawn from, one entry for each stored round, and is drawn again where that differs.
use crate::image::{Set, MAX_WITNESSES, STORED_ROUNDS};
use crate::run::Run;
use crate::set;
use crate::shuffle::{draw, position, Draw};

const WITNESSES: u32 = 1;
const TRAINERS: u32 = 2;

#[repr(C)]
pub struct Election {
    seed: u64,
    slots: Set,
    at_most: u32,
    percent: u32,
    known: u32,
    zero: u32,
    witnesses: Set,
    trainers: Set,
}

/// The header's working memory.
#[repr(C)]
pub struct Memory {
    elections: [Election; STORED_ROUNDS],
    unused: [u8; 800 - STORED_ROUNDS * core::mem::size_of::<Election>()],
}

const _: () = assert!(core::mem::size_of::<Memory>() == 800);

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
    if election.known & WITNESSES == 0 {
        let mut ranks = [0; 4];
        set::fill(&mut ranks, most);
        draw(&mut ranks, count, election.seed, Draw::Witnesses, true);
        of_ranks(&slots, &ranks, &mut election.witnesses);
        election.known |= WITNESSES;
    }
    *out = election.witnesses;
}

fn verifier_count(run: &Run, place: usize) -> usize {
    set::count(&run.image.round(place).slots) * run.image.config.verification_percent as usize / 100
}

/// How many train in a round.
pub fn trainer_count(run: &Run, place: usize) -> usize { set::count(&run.image.round(place).slots) - verifier_count(run, place) }

/// Whether a slot trains in a round. Where nobody drew the round's trainers yet, only this slot is looked for, which is cheaper.
pub fn trains(run: &mut Run, place: usize, slot: usize) -> bool {
    let (slots, verifiers) = (run.image.round(place).slots, verifier_count(run, place));
    if verifiers == 0 || !set::has(&slots, slot) {
        return set::has(&slots, slot);
    }
    let election = remembered(run, place);
    if election.known & TRAINERS != 0 {
        return set::has(&election.trainers, slot);
    }
    let mut below = [0; 4];
    set::fill(&mut below, slot);
    set::intersect(&mut below, &slots);
    position(set::count(&below), set::count(&slots), election.seed, Draw::Committee) >= verifiers
}

/// The slots that train in a round.
#[inline(never)]
pub fn trainers(run: &mut Run, place: usize, out: &mut Set) {
    let slots = run.image.round(place).slots;
    let (count, verifiers) = (set::count(&slots), verifier_count(run, place));
    if verifiers == 0 {
        *out = slots;
        return;
    }
    let election = remembered(run, place);
    if election.known & TRAINERS == 0 {
        let (mut ranks, mut drawn) = ([0; 4], [0; 4]);
        set::fill(&mut ranks, verifiers);
        draw(&mut ranks, count, election.seed, Draw::Committee, true);
        of_ranks(&slots, &ranks, &mut drawn);
        election.trainers = slots;
        set::subtract(&mut election.trainers, &drawn);
        election.known |= TRAINERS;
    }
    *out = election.trainers;
}

/// The entry of a stored round, empty if it was another's.
fn remembered<'a>(run: &'a mut Run, place: usize) -> &'a mut Election {
    let (most, percent) = (at_most(run) as u32, u32::from(run.image.config.verification_percent));
    let round = run.image.round(place);
    let election = &mut run.memory.elections[round.height as usize % STORED_ROUNDS];
    let same = election.seed == round.seed && election.at_most == most && election.percent == percent;
    if !same || (0..4).any(|word| election.slots[word] != round.slots[word]) {
        election.seed = round.seed;
        election.slots = round.slots;
        election.at_most = most;
        election.percent = percent;
        election.known = 0;
    }
    election
}

/// The slots whose rank among `slots` is in `ranks`: bits move up one place for each slot below that is not there.
fn of_ranks(slots: &Set, ranks: &Set, out: &mut Set) {
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
