"""Values that cross interfaces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.types import (
    MAX_CLIENTS,
    BatchId,
    ClientState,
    Committee,
    NodeIdentity,
    RunState,
    bitmap,
    total_samples,
)

batches = st.integers(0, 2**63 - 2).flatmap(lambda first: st.builds(BatchId, st.just(first), st.integers(first, 2**63 - 2)))


def test_numbers_on_the_wire_are_the_references() -> None:
    assert [state.name for state in sorted(RunState)] == [
        "Uninitialized", "WaitingForMembers", "Warmup", "RoundTrain", "RoundWitness", "Cooldown", "Finished", "Paused",
    ]  # fmt: skip
    assert [int(state) for state in RunState] == list(range(8))
    assert {state.name: int(state) for state in ClientState} == {"Healthy": 0, "Dropped": 1, "Withdrawn": 2, "Ejected": 3}
    assert {role.name: int(role) for role in Committee} == {"TieBreaker": 0, "Verifier": 1, "Trainer": 2}


def test_states_are_halted_or_active_or_neither() -> None:
    assert [state.name for state in RunState if state.halted] == ["Uninitialized", "Finished", "Paused"]
    assert [state.name for state in RunState if state.active] == ["RoundTrain", "RoundWitness", "Cooldown"]


@given(batches)
def test_b15_a_batch_reads_its_own_printed_form(batch: BatchId) -> None:
    assert BatchId.parse(str(batch)) == batch
    assert BatchId.parse(f"  B[{batch.first},{batch.last}] ") == batch


@pytest.mark.parametrize(("text", "batch"), [("B5", BatchId(5, 5)), ("B[5]", BatchId(5, 5)), ("[0, 3]", BatchId(0, 3))])
def test_short_forms_of_a_batch_are_read(text: str, batch: BatchId) -> None:
    assert BatchId.parse(text) == batch


@pytest.mark.parametrize("text", ["", "B", "B[]", "B[1, 2, 3]", "B[-1, 2]", "B[a, b]", "B[3, 1]", f"B{2**63 - 1}", "C5"])
def test_what_is_no_batch_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        BatchId.parse(text)


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (1, 0), (0, 2**63 - 1)])
def test_a_batch_is_an_interval_of_u64(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="closed interval"):
        BatchId(first, last)


def test_samples_are_counted_inclusively() -> None:
    assert len(BatchId(4, 4)) == 1
    assert total_samples((BatchId(0, 3), BatchId(10, 10))) == 5
    assert total_samples(()) == 0


@pytest.mark.parametrize("key", [b"", b"x" * 31, b"x" * 33, "x" * 32, None, bytearray(32)])
def test_an_identity_is_two_32_byte_keys(key: Any) -> None:
    with pytest.raises(ValueError, match="signer must be 32 bytes"):
        NodeIdentity(key, bytes(32))
    with pytest.raises(ValueError, match="p2p must be 32 bytes"):
        NodeIdentity(bytes(32), key)


def test_an_identity_is_both_keys_and_prints_its_signer() -> None:
    identity = NodeIdentity(bytes(range(32)), bytes(32))

    assert str(identity) == identity.short == "00010203"
    assert identity != NodeIdentity(bytes(range(32)), bytes(range(32)))


@given(st.frozensets(st.integers(0, MAX_CLIENTS - 1)))
def test_a_bitmap_holds_exactly_its_slots(slots: frozenset[int]) -> None:
    participants = bitmap(slots)

    assert len(participants) == 32
    assert {slot for slot in range(MAX_CLIENTS) if participants[slot // 8] >> slot % 8 & 1} == slots


def test_bit_order_of_a_bitmap() -> None:
    assert bitmap([0, 9]) == bytes([1, 2]) + bytes(30)


@pytest.mark.parametrize("slot", [-1, 256])
def test_a_slot_out_of_range_is_refused(slot: int) -> None:
    with pytest.raises(ValueError, match=r"a slot is 0\.\.255"):
        bitmap([slot])


def test_the_longest_interval_has_a_length() -> None:
    assert len(BatchId(0, 2**63 - 2)) == 2**63 - 1
