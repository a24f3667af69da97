"""What a witness computes: does what a trainer opened follow from the gradient that a judge opened? Without a model.

Source: docs/explanation/verification.md, "What is compared".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psyche_core.errors import PayloadRejected, WireError
from psyche_core.interfaces.replay import Replay
from psyche_core.verification.opening import OpenedChunk
from psyche_core.verification.parts import ChunkTable, ShownDeltas, decode_deltas, decode_gradient
from psyche_core.verification.replay import (
    NOTHING_OPENED,
    WORST,
    PayloadAgreement,
    Rule,
    chunk_scores,
    claimed,
    largest_delta,
    mean_score,
    payload_agreement,
    within,
)
from psyche_core.verification.words import Word


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Opened:
    """Everything that is opened of a share.

    numbers: of the drawn chunks, ascending. roots: of both deltas, 64 bytes. payload: of the share; None if it is unknown here.
    trainers, judges: their parts. committed: by the judge with this signer. step: of the share, so delta has at most so many
    contributions. learning_rate: of the share's step. largest_rate: of any step up to it.
    """

    numbers: Sequence[int]
    roots: bytes
    payload: bytes | None
    trainers: bytes
    judges: bytes
    committed: bytes
    signer: bytes
    step: int
    learning_rate: float
    largest_rate: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out. score: T; None where it was not computed. agreement: of payload and delta. word: for our statement."""

    word: Word
    score: float | None = None
    agreement: PayloadAgreement = NOTHING_OPENED


def compare(replay: Replay, table: ChunkTable, opened: Opened, rule: Rule) -> Comparison:
    """Compare two parts. Those that do not fit what their givers committed to count as missing. May run in any thread."""
    deltas, gradient = _deltas(table, opened), _gradient(table, opened)
    if deltas is None or gradient is None:
        missing = Word.TRAINER_MISSING if gradient is not None else Word.JUDGE_MISSING
        return Comparison(Word.BOTH_MISSING if deltas is None and gradient is None else missing)
    if opened.payload is None:
        return Comparison(Word.NOTHING)

    def largest(contribution: float) -> float:
        return largest_delta(opened.step, rate=1.0, clip=contribution, decay=replay.decay)

    bound = largest(replay.largest_contribution(learning_rate=opened.largest_rate))
    most = largest(replay.usual_contribution(learning_rate=opened.largest_rate)) / table.total**0.5
    after = _by_group(table, opened.numbers, [chunk.delta for chunk in deltas.after])
    before = [np.zeros_like(group) for group in after]
    taken = before
    if deltas.before is not None:
        before = _by_group(table, opened.numbers, [chunk.delta for chunk in deltas.before])
        taken = replay.elements(_by_group(table, opened.numbers, [chunk.taken for chunk in deltas.before]))
    added = [claimed(new, old, off, decay=replay.decay) for new, old, off in zip(after, before, taken, strict=True)]
    recomputed = _by_group(table, opened.numbers, [chunk.delta for chunk in gradient])
    memory, count = _memory(table, opened, deltas.before)
    expected, remembered = replay.contribution_of(recomputed, memory=memory, count=count, learning_rate=opened.learning_rate)
    parts = zip(added, expected, before, strict=True)
    score = mean_score(chunk_scores(one, two, before=old, floor=rule.floor, most=most) for one, two, old in parts)
    if remembered is not None:
        score = max(score, _memory_score(table, opened, deltas.after, remembered, count=count + 1))
    agreement = _agreement(replay, table, opened, after)
    bounded = all(within(group, bound) for group in (*before, *after))
    if not (bounded and rule.passes(score) and agreement.passes(rule)):
        return Comparison(Word.FAILED, score, agreement)

    return Comparison(Word.HIGH if score > rule.median_threshold else Word.PASSED, score, agreement)


def _deltas(table: ChunkTable, opened: Opened) -> ShownDeltas | None:
    try:
        return decode_deltas(opened.trainers, table, numbers=opened.numbers, roots=opened.roots)
    except WireError:
        return None


def _gradient(table: ChunkTable, opened: Opened) -> tuple[OpenedChunk, ...] | None:
    committed, signer = opened.committed, opened.signer
    try:
        return decode_gradient(opened.judges, table, numbers=opened.numbers, committed=committed, signer=signer)
    except WireError:
        return None


def _memory(table: ChunkTable, opened: Opened, before: Sequence[OpenedChunk] | None) -> tuple[list[Any] | None, int]:
    """The memory of the opened chunks before the share, and how many gradients it remembers; zero with a delta of zero."""
    if not table.memory:
        return None, 0
    if before is None:
        sizes = [table.shape_of(number).size for number in opened.numbers]
        return _by_group(table, opened.numbers, [np.zeros(size, dtype=np.float32) for size in sizes]), 0

    memories = [chunk.memory for chunk in before if chunk.memory is not None]
    return _by_group(table, opened.numbers, [one.values for one in memories]), memories[0].count


def _memory_score(
    table: ChunkTable, opened: Opened, after: Sequence[OpenedChunk], expected: Sequence[Any], *, count: int
) -> float:
    """How far the memory after the share is from what follows from the one before: as T, of the roots of its elements."""
    memories = [chunk.memory for chunk in after if chunk.memory is not None]
    if any(one.count != count for one in memories):
        return WORST

    groups = zip(_by_group(table, opened.numbers, [one.values for one in memories]), expected, strict=True)
    roots = [(np.sqrt(one.astype(np.float64)), np.sqrt(two)) for one, two in groups]
    return mean_score(chunk_scores(one, two, before=np.zeros_like(two)) for one, two in roots)


def _agreement(replay: Replay, table: ChunkTable, opened: Opened, after: Sequence[Any]) -> PayloadAgreement:
    assert opened.payload is not None
    try:
        sent = replay.sent(opened.payload, table.rows_of(opened.numbers))
    except PayloadRejected:  # nobody applied it
        return PayloadAgreement(0, 1, 0)

    groups = zip(table.groups, replay.coefficients(after), sent, strict=True)
    return sum((payload_agreement(one, two, topk=group.topk) for group, one, two in groups), NOTHING_OPENED)


def _by_group(table: ChunkTable, numbers: Sequence[int], arrays: Sequence[Any]) -> list[Any]:
    """Chunks [size] in the order of their numbers, as one array [rows, size] for each group."""
    found: list[list[Any]] = [[] for _ in table.groups]
    for number, array in zip(numbers, arrays, strict=True):
        found[table.place_of(number)[0]].append(array)
    return [np.array(own, dtype=np.float32).reshape(len(own), group.size) for group, own in zip(table.groups, found, strict=True)]
