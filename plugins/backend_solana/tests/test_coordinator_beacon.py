"""What the seed of a round is made of on a chain: nobody who ends the round before chooses it (S4)."""

from __future__ import annotations

import hashlib
import random

import pytest

from plugins.backend_solana.tests.svm.coordinator_svm import CoordinatorSvm, Hashes, slot_hash, slot_hashes
from plugins.backend_solana.tests.svm.largest import NOW, SLOT, Case, Largest, measured
from psyche_backend_solana.layouts.beacon import NOT_KNOWN, Beacon
from psyche_core.coordinator import apply, commands
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import MAX_WITNESSES, RunState

TRIED = 40
"""Slots among which the last witness may choose; 16 s."""


@pytest.fixture(scope="module")
def chain() -> CoordinatorSvm:
    return CoordinatorSvm(members=257)


@pytest.fixture
def largest(chain: CoordinatorSvm) -> Largest:
    return Largest(torn=False, percent=10, instance=chain.instance)


@pytest.fixture
def begun(largest: Largest) -> CoordinatorState:
    """A round in which nobody has stated yet."""
    return largest.playing(0)


@pytest.fixture
def ending(largest: Largest) -> CoordinatorState:
    """A round that the next statement ends."""
    return largest.playing(MAX_WITNESSES - 1, RunState.RoundWitness)


def after(chain: CoordinatorSvm) -> CoordinatorState:
    return image.decode(chain.image)


def drawn(chain: CoordinatorSvm) -> tuple[int, list[tuple[int, int, int]]]:
    """The seed of the newest round, and whose shares of which round are challenged, by whom."""
    state = after(chain)
    return state.epoch.rounds[-1].seed, [(one.height, one.trainer, one.verifier) for one in state.epoch.challenges]


def sent(
    chain: CoordinatorSvm,
    largest: Largest,
    state: CoordinatorState,
    *,
    beacon: Beacon,
    slot: int,
    hashes: Hashes | None = None,
    now: int = NOW,
) -> None:
    """The next statement of a round comes in this slot."""
    chain.begin(state, beacon=beacon)
    chain.at(now, slot, hashes)
    answer = chain.do(largest.next_witness(state), state)
    assert answer.refusal is None, answer.logs


def later(since: int) -> int:
    """The first slot after this one that was not skipped."""
    return next(slot for slot in range(since + 1, since + 100) if slot_hash(slot) is not None)


@pytest.mark.parametrize("known", [False, True])
def test_s4_who_sends_the_last_statement_finds_the_same_draw_in_every_slot(
    chain: CoordinatorSvm, largest: Largest, ending: CoordinatorState, known: bool
) -> None:
    """It could wait for a slot whose seed spares it, while the seed was made of the clock and the slot."""
    found = set()
    beacon = Beacon(SLOT - 20, b"h" * 32) if known else Beacon(SLOT - 20)
    for wait in range(TRIED):
        sent(chain, largest, ending, beacon=beacon, slot=SLOT + wait, now=NOW + wait // 10)
        seed, challenges = drawn(chain)
        assert chain.beacon == Beacon(SLOT + wait)
        assert {height for height, _, _ in challenges} == {5}, "round 8 begins"
        found.add((seed, *challenges))
    assert len(found) == 1
    assert len(challenges) >= 25


def test_the_hash_is_that_of_the_first_slot_after_the_round_began_and_is_never_taken_again(
    chain: CoordinatorSvm, largest: Largest, begun: CoordinatorState
) -> None:
    since = next(slot for slot in range(SLOT - 60, SLOT) if slot_hash(slot + 1) is None)
    first = later(since)
    assert first > since + 1, "the slot after it was skipped"
    sent(chain, largest, begun, beacon=Beacon(since), slot=first + 1)
    content = slot_hash(first)
    assert content is not None
    assert chain.beacon == Beacon(since, content)
    other = [(slot, hashlib.sha256(b"other %d" % slot).digest()) for slot in range(SLOT + 9, SLOT - 503, -1)]
    sent(chain, largest, begun, beacon=chain.beacon, slot=SLOT + 10, hashes=other)
    assert chain.beacon == Beacon(since, content)


@pytest.mark.parametrize("remembered", [1, 2, 3, 100, 511, 512])
def test_every_place_among_the_remembered_slots_is_found(
    chain: CoordinatorSvm, largest: Largest, begun: CoordinatorState, remembered: int
) -> None:
    hashes = slot_hashes(SLOT, remembered)
    slots = [slot for slot, _ in hashes]
    for since in {slots[-1], slots[-1] - 1, slots[-1] + 1, slots[len(slots) // 2], slots[0] - 1, slots[0], slots[0] + 1}:
        sent(chain, largest, begun, beacon=Beacon(since), slot=SLOT, hashes=hashes)
        expected = Beacon(since).looked(SLOT, hashes)
        assert chain.beacon == expected
        if slots[-1] <= since < slots[0]:
            assert expected.hash == slot_hash(later(since))
        else:
            assert not expected.known
            assert expected.since == (since if since >= slots[0] else SLOT)


def test_where_the_first_slot_is_forgotten_nobody_chooses_among_those_that_are_not(
    chain: CoordinatorSvm, largest: Largest, begun: CoordinatorState
) -> None:
    oldest = slot_hashes(SLOT)[-1][0]
    found = set()
    for wait in range(TRIED):
        sent(chain, largest, begun, beacon=Beacon(oldest - 200), slot=SLOT + wait)
        found.add(chain.beacon)
    assert found == {Beacon(SLOT + wait) for wait in range(TRIED)}, "a hash that is still to come counts"


@pytest.mark.parametrize("since", [0, SLOT - 1, SLOT])
def test_a_round_that_ends_at_once_has_a_seed_of_clock_and_slot(
    chain: CoordinatorSvm, largest: Largest, ending: CoordinatorState, since: int
) -> None:
    sent(chain, largest, ending, beacon=Beacon(since), slot=SLOT)
    stands_in = hashlib.sha256(NOW.to_bytes(8, "little") + SLOT.to_bytes(8, "little")).digest()
    assert drawn(chain)[0] == int.from_bytes(stands_in[:8], "little")
    assert chain.beacon == Beacon(SLOT)


def test_a_chain_that_remembers_nothing_has_no_hash(chain: CoordinatorSvm, largest: Largest, ending: CoordinatorState) -> None:
    sent(chain, largest, ending, beacon=Beacon(SLOT - 10), slot=SLOT, hashes=[])
    assert drawn(chain)[0] == Beacon().seed(NOW, SLOT)


def test_the_seeds_formula_is_the_pages(chain: CoordinatorSvm, largest: Largest, ending: CoordinatorState) -> None:
    rng = random.Random(1)
    for _ in range(5):
        content = rng.randbytes(32)
        sent(chain, largest, ending, beacon=Beacon(7, content), slot=SLOT)
        digest = hashlib.sha256(b"psyche/beacon-seed/1" + content).digest()
        assert drawn(chain)[0] == int.from_bytes(digest[:8], "little") == Beacon(7, content).seed(NOW, SLOT)


def test_an_epochs_seed_is_made_of_a_hash_too(chain: CoordinatorSvm, largest: Largest) -> None:
    case = next(case for case in largest.cases() if case.name == "tick: an epoch")
    beacon = Beacon(SLOT - 50)
    measured(chain, case, beacon=beacon)
    assert after(chain).epoch.seed == beacon.looked(SLOT, slot_hashes(SLOT)).seed(NOW, SLOT)
    assert chain.beacon == Beacon(SLOT)


def test_a_tick_that_only_takes_in_the_hash_is_carried_out_once(chain: CoordinatorSvm, begun: CoordinatorState) -> None:
    """In a long round somebody has to, while the chain remembers the slot; otherwise whoever speaks first would choose."""
    begun = apply(begun, commands.Tick(), begun.since, 1)[0]
    chain.begin(begun, beacon=Beacon(SLOT - 1))
    chain.at(begun.since, SLOT)
    assert chain.do(commands.Tick(), begun).refusal == "NothingDue"
    chain.at(begun.since, SLOT + 200)
    nonce = chain.account.nonce
    assert chain.do(commands.Tick(), begun).refusal is None
    assert (chain.image, chain.account.nonce) == (image.encode(begun), nonce + 1)
    assert chain.account.beacon.hash == slot_hash(later(SLOT - 1)) != NOT_KNOWN
    assert chain.do(commands.Tick(), begun).refusal == "NothingDue"


def test_a_refused_command_takes_in_nothing(chain: CoordinatorSvm, begun: CoordinatorState) -> None:
    beacon = Beacon(SLOT - 20)
    refused = commands.Checkpoint(begun.epoch.clients[0].id, {"Hub": {"repo_id": "owner/model"}})
    answer = measured(chain, Case("refused", begun, refused), beacon=beacon)
    assert answer.refusal == "InvalidRunState"
    assert chain.beacon == beacon


def test_a_beacon_is_read_as_it_was_written() -> None:
    for beacon in (Beacon(), Beacon(5), Beacon(2**64 - 1, b"h" * 32)):
        assert Beacon.parse(beacon.pack()) == beacon
    assert (Beacon(5).pending, Beacon().pending, Beacon(5, b"h" * 32).pending) == (True, False, False)
