"""Derivations that are remembered: bounded, immutable, and equal to what is computed afresh."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.coordinator.round import assignment, bloom_filter, committee, witness
from psyche_core.coordinator.round.bloom_filter import BLOOM_BITS, BroadcastBloom, bloom_keys, bloom_positions
from psyche_core.coordinator.round.committee import CommitteeSelection, witness_slots
from psyche_core.coordinator.state import Round
from psyche_core.types import BatchId, bitmap

REMEMBERING = [committee.drawn_order, committee.witnesses, assignment._shares, bloom_filter.bloom_keys, bloom_filter.filter_of]


@pytest.mark.parametrize("function", REMEMBERING, ids=lambda function: function.__name__)
def test_no_memory_grows_without_bound(function: Any) -> None:
    assert 0 < function.cache_info().maxsize <= 4096


def test_nobody_can_change_a_remembered_share(play: Any) -> None:
    run = play(3)
    given_out = assignment.shares(run.state, run.round)
    with pytest.raises(TypeError):
        given_out[0] = ()  # type: ignore[index]
    assert assignment.shares(run.state, run.round) is given_out


_slots = st.sets(st.integers(0, 255), min_size=1, max_size=40).map(lambda slots: tuple(sorted(slots)))


@settings(deadline=None)
@given(_slots, st.integers(0, 2**64 - 1), st.integers(0, 32), st.sets(st.integers(0, 255), max_size=9), st.integers(1, 99))
def test_what_is_remembered_is_what_is_computed(
    bare_state: Any, slots: tuple[int, ...], seed: int, witness_nodes: int, verifiers: set[int], samples: int
) -> None:
    state = replace(bare_state, config=bare_state.config.model_copy(update={"witness_nodes": witness_nodes}))
    recomputing = tuple(sorted(verifiers & set(slots)))
    batches = (BatchId(7, 6 + samples),)
    played = Round(height=0, step=1, seed=seed, slots=slots, batches=batches, recomputing=recomputing)
    for _ in range(2):
        draw = CommitteeSelection(
            tie_breaker_nodes=0,
            witness_nodes=min(witness_nodes, len(slots)),
            verification_percent=0,
            total_nodes=len(slots),
            seed=seed,
        )
        assert witness_slots(state, played) == tuple(sorted(slots[rank] for rank in draw.witnesses()))
        trainers = tuple(slot for slot in slots if slot not in verifiers)
        fresh = assignment._shares.__wrapped__(trainers, seed, played.batches)
        assert fresh.keys() <= set(trainers)
        assert assignment.shares(state, played) == fresh
        assert list(assignment.shares(state, played)) == list(fresh)
    committee.drawn_order.cache_clear()
    assert witness_slots(state, played) == tuple(sorted(slots[rank] for rank in draw.witnesses()))


@settings(deadline=None)
@given(st.lists(st.sets(st.integers(0, 255), max_size=9), max_size=9), st.integers(1, 9))
def test_counting_all_bits_at_once_is_counting_each(seen: list[set[int]], needed: int) -> None:
    counted = witness._seen_by(needed, [bitmap(slots) for slots in seen])
    assert {slot for slot in range(256) if counted >> slot & 1} == {
        slot for slot in range(256) if sum(slot in slots for slots in seen) >= needed
    }
    assert counted < 1 << 256


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.binary(min_size=32, max_size=32))
def test_the_filter_sets_the_bits_of_the_definition(seed: int, items: list[bytes], other: bytes) -> None:
    bloom = BroadcastBloom(seed)
    bits: set[int] = set()
    for item in items:
        bloom.add(item)
        bits.update(bloom_positions(bloom_keys(seed), item, BLOOM_BITS))
    data = bloom.to_bytes()
    assert {bit for bit in range(BLOOM_BITS) if data[bit // 8] >> (bit % 8) & 1} == bits
    again = BroadcastBloom.from_bytes(seed, data)
    assert all(item in again for item in items)
    assert (other in again) == (set(bloom_positions(bloom_keys(seed), other, BLOOM_BITS)) <= bits)
