//! One challenge, from its draw to its verdict (psyche_core/verification/challenge.py), and what verdicts mean for a slot
//! (psyche_core/verification/standing.py). Statements' words are counted where they lie.
use crate::drawing::{tie_breakers, Seed};
use crate::image::{stage, Challenge, Image, List, Set, Standing, MAX_JUDGES, MAX_WITNESSES, MAX_WORDS_BYTES, NONE};
use crate::run::Run;
use crate::set;

const AGREEING: usize = 2;
const ROOT_ROUNDS: u32 = 2;
const WATCHED_ROUNDS: u32 = 10;
const MEDIAN_OF: u8 = 5;

/// The end of a challenge.
pub struct Verdict {
    silence: bool,
    passed: bool,
    /// The slot that gets a strike, NONE for nobody.
    strike: usize,
    pub missed: Set,
    pub paid: Set,
    pub requeue: bool,
    high: bool,
    watch: bool,
}

/// What is known when a round begins.
pub struct Began {
    pub height: u32,
    pub seed: Seed,
    /// Slots that may break a tie.
    pub members: Set,
    pub elected: usize,
    pub quorum: usize,
    pub quorate: bool,
    /// Place of the round that ended, whose statements have the words.
    pub current: usize,
}

/// About how many judges a witness says a word each, when words are due.
pub fn judged_count(one: &Challenge) -> usize {
    if one.stage == stage::TIE_REVEAL { one.judges.len() } else { 1 }
}

/// What all witnesses said about one judge, and how many have the trainer's part.
#[derive(Clone, Copy)]
struct Said {
    passed: usize,
    high: usize,
    failed: usize,
    judge_gave: usize,
}


struct Tally {
    judges: [Said; MAX_JUDGES],
    trainer_gave: usize,
}

/// Counts the words from `first` on, `count` in each statement.
#[inline(never)]
fn counted(run: &Run, current: usize, first: usize, count: usize) -> Tally {
    // one byte for each number: passed, high, failed, judge gave, trainer gave
    const COUNTS: [u64; 8] =
        [0, 0x01_01_00_00_01, 0x01_01_00_01_00, 0x01_01_01_00_00, 0x00_01_00_00_00, 0x01_00_00_00_00, 0, 0];
    const _: () = assert!(MAX_WITNESSES < 256);
    let statements = run.image.round(current).statements.used();
    let (mut sums, mut trainer) = ([0u64; MAX_JUDGES], 0);
    let (byte, shift) = ((first >> 1).min(MAX_WORDS_BYTES - 1), 4 * (first as u32 & 1));
    if count == 1 {
        for statement in statements {
            sums[0] = sums[0].wrapping_add(COUNTS[(statement.words[byte] >> shift & 7) as usize]);
        }
        trainer = sums[0] >> 32;
    } else {
        for statement in statements {
            let second = statement.words[(byte + 1).min(MAX_WORDS_BYTES - 1)];
            let mut words = (u32::from(statement.words[byte]) | u32::from(second) << 8) >> shift;
            let mut any = 0;
            for sum in sums.iter_mut().take(count) {
                let counts = COUNTS[(words & 7) as usize];
                *sum = sum.wrapping_add(counts);
                any |= counts;
                words >>= 4;
            }
            trainer += any >> 32;
        }
    }
    let byte = |sum: u64, place: u32| (sum >> (8 * place) & 0xff) as usize;
    let said = |sum: u64| Said { passed: byte(sum, 0), high: byte(sum, 1), failed: byte(sum, 2), judge_gave: byte(sum, 3) };
    Tally { judges: sums.map(said), trainer_gave: trainer as usize }
}

impl Said {
    /// Whether the check passed; None where not even one honest witness is sure to say so, or both are said.
    fn verdict(&self, began: &Began) -> Option<bool> {
        let tolerated = began.elected - began.quorum;
        let (passed, failed) = (self.passed + self.high > tolerated, self.failed > tolerated);
        if passed == failed { None } else { Some(passed) }
    }
}

/// The challenge once a round began. `first`: place of the first word about it, NONE where none were due.
#[inline(never)]
pub fn advance(run: &Run, one: &mut Challenge, began: &Began, first: usize) -> Option<Verdict> {
    if !one.by_command() {
        return if began.height < one.since + 2 { None } else { after_words(run, one, began, first) };
    }
    let verifier = one.verifier as usize;
    let complained = one.complained != 0 && one.stage == stage::COMMIT;
    let missing = !complained && !all_committed(one);
    if missing && began.height < one.since + ROOT_ROUNDS {
        return None;
    }
    if one.stage == stage::TIE_COMMIT {
        return after_tie_commit(one, began);
    }
    if one.committed(verifier) {
        return enter(one, stage::REVEAL, began);
    }
    if complained {
        return enter(one, stage::SIGNS, began);
    }
    if !began.quorate {
        return undecided(one);
    }
    let mut silent = [0; 4];
    set::insert(&mut silent, verifier);
    if one.stage == stage::RECOMMIT {
        return Some(Verdict { silence: true, watch: true, ..closed(one, verifier, &[0; 4], &[0; 4]) });
    }
    Some(Verdict { silence: true, watch: true, ..closed(one, NONE, &silent, &[0; 4]) })
}

fn all_committed(one: &Challenge) -> bool {
    match one.stage {
        stage::TIE_COMMIT => one.judges.used().iter().all(|judge| one.committed(*judge as usize)),
        _ => one.committed(one.verifier as usize),
    }
}

fn enter(one: &mut Challenge, next: u8, began: &Began) -> Option<Verdict> {
    one.stage = next;
    one.since = began.height;
    None
}

#[inline(never)]
fn undecided(one: &Challenge) -> Option<Verdict> { Some(Verdict { watch: true, ..closed(one, NONE, &[0; 4], &[0; 4]) }) }

/// A verdict about nothing but who is paid: all who did their part, but those struck, silent or `unpaid`.
#[inline(never)]
fn closed(one: &Challenge, strike: usize, missed: &Set, unpaid: &Set) -> Verdict {
    let mut silent = *missed;
    for slot in one.missed.used() {
        set::insert(&mut silent, *slot as usize);
    }
    let mut paid = [0; 4];
    for slot in one.judges.used().iter().chain(core::iter::once(&one.verifier)) {
        let slot = *slot as usize;
        if slot != strike && !set::has(&silent, slot) && !set::has(unpaid, slot) && one.committed(slot) {
            set::insert(&mut paid, slot);
        }
    }
    Verdict { silence: false, passed: false, strike, missed: silent, paid, requeue: false, high: false, watch: false }
}

#[inline(never)]
fn after_words(run: &Run, one: &mut Challenge, began: &Began, first: usize) -> Option<Verdict> {
    let statements = if first == NONE { 0 } else { run.image.round(began.current).statements.len() };
    if statements < began.quorum.max(1) {
        return undecided(one);
    }
    let count = judged_count(one);
    let tally = counted(run, began.current, first, count);
    let (trainer, verifier) = (one.trainer as usize, one.verifier as usize);
    let trainer_silent = 2 * tally.trainer_gave < began.elected;
    if one.stage == stage::SIGNS {
        if trainer_silent {
            return Some(Verdict { silence: true, requeue: true, ..closed(one, trainer, &[0; 4], &[0; 4]) });
        }
        return enter(one, stage::RECOMMIT, began);
    }
    let mut silent = [0; 4];
    for (judge, said) in tally.judges.iter().enumerate().take(count) {
        if 2 * said.judge_gave < began.elected {
            set::insert(&mut silent, if one.stage == stage::REVEAL { verifier } else { one.judges.items[judge] as usize });
        }
    }
    if trainer_silent {
        return Some(Verdict { silence: true, requeue: true, ..closed(one, trainer, &silent, &[0; 4]) });
    }
    if one.stage == stage::TIE_REVEAL {
        return after_tie(one, began, &tally, &silent);
    }
    if !set::is_empty(&silent) {
        return Some(Verdict { silence: true, watch: true, ..closed(one, NONE, &silent, &[0; 4]) });
    }
    after_check(one, began, &tally.judges[0])
}

#[inline(never)]
fn after_check(one: &mut Challenge, began: &Began, said: &Said) -> Option<Verdict> {
    match said.verdict(began) {
        None => undecided(one),
        Some(true) => Some(Verdict { passed: true, high: said.high > said.passed, ..closed(one, NONE, &[0; 4], &[0; 4]) }),
        Some(false) => {
            let mut judges = [0; 4];
            tie_breakers(&began.seed, one.height, one.trainer as usize, one.verifier as usize, &began.members, &mut judges);
            if set::count(&judges) < AGREEING {
                return undecided(one);
            }
            while !set::is_empty(&judges) {
                let slot = set::take_first(&mut judges) as u16;
                one.judges.items[one.judges.len()] = slot;
                one.judges.count += 1;
            }
            enter(one, stage::TIE_COMMIT, began)
        }
    }
}

#[inline(never)]
fn after_tie_commit(one: &mut Challenge, began: &Began) -> Option<Verdict> {
    let mut silent = [0; 4];
    for judge in one.judges.used() {
        if !one.committed(*judge as usize) {
            set::insert(&mut silent, *judge as usize);
        }
    }
    without_judges(one, &silent, began.quorate);
    if one.judges.len() < AGREEING { undecided(one) } else { enter(one, stage::TIE_REVEAL, began) }
}

#[inline(never)]
fn after_tie(one: &mut Challenge, began: &Began, tally: &Tally, silent: &Set) -> Option<Verdict> {
    let (mut failed, mut passed) = (0, 0);
    for (judge, said) in one.judges.used().iter().zip(&tally.judges) {
        if !set::has(silent, *judge as usize) {
            match said.verdict(began) {
                Some(true) => passed += 1,
                Some(false) => failed += 1,
                None => {}
            }
        }
    }
    without_judges(one, silent, true);
    if failed >= AGREEING && passed == 0 {
        return Some(Verdict { requeue: true, ..closed(one, one.trainer as usize, &[0; 4], &[0; 4]) });
    }
    if passed >= AGREEING && failed == 0 {
        return Some(closed(one, one.verifier as usize, &[0; 4], &[0; 4]));
    }
    undecided(one)
}

/// Takes silent judges out; with `counts` they missed a duty.
#[inline(never)]
fn without_judges(one: &mut Challenge, silent: &Set, counts: bool) {
    if set::is_empty(silent) {
        return;
    }
    if counts {
        let mut missed = *silent;
        for slot in one.missed.used() {
            set::insert(&mut missed, *slot as usize);
        }
        one.missed.truncate(0);
        while !set::is_empty(&missed) && one.missed.len() < MAX_JUDGES {
            one.missed.items[one.missed.len()] = set::take_first(&mut missed) as u16;
            one.missed.count += 1;
        }
    }
    retain(&mut one.judges, |slot| !set::has(silent, slot as usize));
}

/// Keeps the slots of a list for which `stays` says so.
fn retain(list: &mut List<u16, MAX_JUDGES>, stays: impl Fn(u16) -> bool) {
    let mut kept = 0;
    for place in 0..list.len() {
        if stays(list.items[place]) {
            list.items[kept] = list.items[place];
            kept += 1;
        }
    }
    list.truncate(kept);
}

/// The challenge once these slots are ejected: about an ejected trainer there is nothing left to decide. In a tie-break the verifier is
/// not needed.
pub fn without(one: &mut Challenge, ejected: &Set) -> Option<Verdict> {
    retain(&mut one.judges, |slot| !set::has(ejected, slot as usize));
    retain(&mut one.missed, |slot| !set::has(ejected, slot as usize));
    let judging = matches!(one.stage, stage::TIE_COMMIT | stage::TIE_REVEAL);
    let trainer_left = set::has(ejected, one.trainer as usize);
    if trainer_left || (set::has(ejected, one.verifier as usize) && !judging) {
        return Some(Verdict { watch: !trainer_left, ..closed(one, NONE, &[0; 4], ejected) });
    }
    None
}

/// Changes the standings of those that a verdict is about. `height`: of the round that begins.
#[inline(never)]
pub fn standings(image: &mut Image, one: &Challenge, verdict: &Verdict, height: u32) {
    let trainer = one.trainer as usize;
    let strike = verdict.strike;
    if strike != NONE {
        let standing = &mut image.epoch.clients.items[strike].standing;
        // a process that died cannot show any of the shares that it had trained
        let known = verdict.silence && strike == trainer && one.height < standing.struck_at();
        if !known {
            standing.strike(height);
        }
    }
    if strike != trainer {
        let standing = &mut image.epoch.clients.items[trainer].standing;
        if verdict.watch {
            standing.watched_before = standing.watched_before.max(height.saturating_add(1));
        } else if verdict.passed {
            standing.score(height, verdict.high);
        }
    }
}

impl Standing {
    fn strike(&mut self, height: u32) {
        self.strikes = self.strikes.saturating_add(1);
        self.watched_before = self.watched_before.max(height.saturating_add(WATCHED_ROUNDS + 1));
        self.scores = 0;
        self.high = 0;
    }

    /// The round of the last strike, 0 for none.
    fn struck_at(&self) -> u32 {
        if self.strikes == 0 { 0 } else { self.watched_before.saturating_sub(WATCHED_ROUNDS + 1) }
    }

    /// A passed challenge: most of the last five with a high score are a strike.
    fn score(&mut self, height: u32, high: bool) {
        if self.scores == MEDIAN_OF {
            self.high >>= 1;
        } else {
            self.scores += 1;
        }
        self.high |= u8::from(high) << (self.scores - 1);
        if self.scores == MEDIAN_OF && self.high.count_ones() > u32::from(MEDIAN_OF / 2) {
            self.strike(height);
        }
    }
}
