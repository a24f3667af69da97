"""Records for tests of journals, and a journal that is filled with them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hypothesis import strategies as st

from psyche_core.training.checkpoints.journal.contents import Recovered
from psyche_core.training.checkpoints.journal.journal import Journal
from psyche_core.training.checkpoints.journal_records import AppliedRound, StoredResult
from psyche_core.types import MAX_SAMPLES, BatchId

INSTANCE = bytes(range(32))
DIGEST = b"d" * 32
LIMIT = 2**20

_hashes = st.binary(min_size=32, max_size=32)
_u32 = st.integers(0, 2**32 - 1)
_u64 = st.integers(0, 2**64 - 1)
_batches = st.tuples(st.integers(0, MAX_SAMPLES - 1), st.integers(0, MAX_SAMPLES - 1)).map(lambda ends: BatchId(*sorted(ends)))

stored_results = st.builds(
    StoredResult,
    epoch=_u32,
    height=_u32,
    step=_u32,
    seed=_u64,
    slot=st.integers(0, 255),
    share=st.lists(_batches, max_size=5).map(tuple),
    commitment=_hashes,
    payload_hash=_hashes,
    signature=st.binary(min_size=64, max_size=64),
    trainer=_hashes,
    signer=_hashes,
    roots=st.sampled_from([0, 64]).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
)
applied_rounds = st.builds(
    AppliedRound,
    epoch=_u32,
    height=_u32,
    step=_u32,
    learning_rate=st.floats(0.0, allow_infinity=False),
    results=st.lists(st.tuples(_hashes, _hashes), max_size=5).map(tuple),
    statements=_hashes,
)


def payload_of(step: int, slot: int) -> bytes:
    """A payload of some 40 bytes; slots 2 and above of a step have the same one."""
    return f"step {step} slot {min(slot, 2)} ".encode() * 3


def result(step: int, slot: int, payload: bytes | None = None) -> StoredResult:
    """A result of that step; payload: None for `payload_of`."""
    payload_hash = hashlib.sha256(payload_of(step, slot) if payload is None else payload).digest()
    return StoredResult(
        epoch=1,
        height=step + 7,
        step=step,
        seed=step * 2**40,
        slot=slot,
        share=(BatchId(10 * step, 10 * step + slot),),
        commitment=hashlib.sha256(b"%d %d" % (step, slot)).digest(),
        payload_hash=payload_hash,
        signature=b"s" * 64,
        trainer=bytes((slot,)) * 32,
        signer=bytes((slot, 1)) * 16,
    )


def history(step: int, *, branch: str = "") -> bytes:
    """The history up to a step; another one after each restore of the coordinator."""
    return hashlib.sha256(f"{branch} {step}".encode()).digest()


def applied(step: int, *results: StoredResult, rate: float = 0.1) -> AppliedRound:
    """A round of these results."""
    pairs = tuple((each.commitment, each.payload_hash) for each in results)
    return AppliedRound(epoch=1, height=step + 7, step=step, learning_rate=rate, results=pairs, history=history(step))


def play(journal: Journal, first: int, last: int, *, members: int = 4) -> list[StoredResult | AppliedRound]:
    """Add rounds first..last as a client does, results of a step before the round two steps older; what was added."""
    added: list[StoredResult | AppliedRound] = []
    for step in range(first, last + 1):
        add_results(journal, step, members=members, added=added)
        if step - 2 >= first:
            add_round(journal, step - 2, added)
        journal.sync()
    for step in range(max(first, last - 1), last + 1):
        add_round(journal, step, added)
    journal.sync()
    return added


def add_results(journal: Journal, step: int, *, members: int = 4, added: list[StoredResult | AppliedRound] | None = None) -> None:
    """Add all members' results of a step."""
    for slot in range(members):
        one = result(step, slot)
        assert journal.add_result(one, payload_of(step, slot))
        if added is not None:
            added.append(one)


def add_round(journal: Journal, step: int, added: list[StoredResult | AppliedRound] | None = None) -> None:
    """Add the round of a step with all of its four results but the one of slot 1."""
    record = applied(step, *(result(step, slot) for slot in (3, 0, 2)), rate=0.1 / step)
    journal.add_applied(record)
    if added is not None:
        added.append(record)


def is_beginning(found: Recovered, written: list[StoredResult | AppliedRound]) -> bool:
    """Whether what was found is what some beginning of the written records leads to, and every payload is there."""
    for count in range(len(written) + 1):
        rounds = tuple(each for each in written[:count] if isinstance(each, AppliedRound))
        last = found.header.base_step + len(rounds)
        pending = tuple(each for each in written[:count] if isinstance(each, StoredResult) and each.step > last)
        if (found.rounds, found.pending) == (rounds, pending):
            hashes = [each for record in rounds for each in record.payload_hashes] + [record.payload_hash for record in pending]
            return all(hashlib.sha256(found.payload(each)).digest() == each for each in hashes)
    return False


def open_journal(folder: Path, told: list[str] | None = None, *, instance: bytes = INSTANCE, limit: int = LIMIT) -> Journal:
    return Journal.open(
        folder, "a run", instance=instance, limit_bytes=limit, report=(lambda _: None) if told is None else told.append
    )


def read(folder: Path, told: list[str] | None = None, *, generation: int | None = None) -> Recovered | None:
    """What a process that starts now finds."""
    with open_journal(folder, told) as journal:
        return journal.read(generation=generation)
