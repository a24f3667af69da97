"""Computes for a witness of a challenge whether the trainer's opened delta agrees with the judge's opened gradient.

It needs no model. Source: docs/explanation/verification.md, "What is compared".
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
    rounding_limit,
    taken_agrees,
    within,
)
from psyche_core.verification.words import Word

LEAST_RATE = 1e-3
"""The bound of rounding errors uses a rate of at least this part of the largest one: at a schedule's end the rate may be lower.
"""

MEMORY_FLOOR = 1e-6
"""`floor` for the change of a memory: its numbers have 24 bits, and a step adds less than a hundredth of the memory."""

SMALLEST_DIVIDED = 2e-3
"""Mean of the squares of a chunk's gradient, divided by its memory's roots, below which the memory is too large for the gradient.

It is about 1 for honest members. Who once brought in a memory that is millions of times too large could divide every gradient
by it, and nothing would be the right contribution from then on. Rounding excuses a tenth of a step's usual contribution
(`rounding_limit`), so no contribution at all has a score of at least 0.17 where this mean is larger.
"""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Opened:
    """Everything that is opened of a share.

    numbers: of the drawn chunks, ascending. roots: of the deltas after and before the share, 64 bytes. payload: of the share;
    None if unknown here. trainers, judges: the parts that they opened. committed: the root to which the judge committed. signer:
    of the judge. step: of the share; delta has at most that many contributions. learning_rate: of the share's step. largest_rate:
    the largest rate of all steps up to it.
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
    """The result of a comparison. score: T; None if not computed. agreement: of payload and delta. word: for our statement."""

    word: Word
    score: float | None = None
    agreement: PayloadAgreement = NOTHING_OPENED


def compare(replay: Replay, table: ChunkTable, opened: Opened, rule: Rule) -> Comparison:
    """Compare two opened parts. A part that does not match its commitment counts as missing. May run in any thread."""
    with np.errstate(all="ignore"):  # a member may open any numbers; a score that is not finite fails
        return _compared(replay, table, opened, rule)


def _compared(replay: Replay, table: ChunkTable, opened: Opened, rule: Rule) -> Comparison:
    deltas, gradient = _deltas(table, opened), _gradient(table, opened)
    if deltas is None or gradient is None:
        missing = Word.TRAINER_MISSING if gradient is not None else Word.JUDGE_MISSING
        return Comparison(Word.BOTH_MISSING if deltas is None and gradient is None else missing)
    if opened.payload is None:
        return Comparison(Word.NOTHING)

    after = _by_group(table, opened.numbers, [chunk.delta for chunk in deltas.after])
    taken_after = _by_group(table, opened.numbers, [chunk.taken for chunk in deltas.after])
    before = taken_before = [np.zeros_like(group) for group in after]
    if deltas.before is not None:
        before = _by_group(table, opened.numbers, [chunk.delta for chunk in deltas.before])
        taken_before = _by_group(table, opened.numbers, [chunk.taken for chunk in deltas.before])
    contribution, memory = _expected(replay, table, opened, gradient, before=deltas.before)
    score = _score(replay, table, opened, contribution, deltas=(after, before), taken=taken_before, floor=rule.floor)
    score = max(score, _memory_score(replay, table, opened, memory, after=deltas.after, before=deltas.before))
    sent = _sent(replay, table, opened)
    agreement = _agreement(replay, table, sent, after)
    bound = largest_delta(
        opened.step, rate=1.0, clip=replay.largest_contribution(learning_rate=opened.largest_rate), decay=replay.decay
    )
    sound = all(within(group, bound) for group in (*before, *after))
    sound = (
        sound
        and _taken_rightly(replay, table, after, taken_after, rule)
        and _taken_rightly(replay, table, before, taken_before, rule)
    )
    sound = (
        sound
        and _taken_is_sent(replay, sent, taken_after)
        and not _divided_to_nothing(replay, table, opened, gradient, before=deltas.before)
    )
    if not (sound and rule.passes(score) and agreement.passes(rule)):
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


def _score(
    replay: Replay,
    table: ChunkTable,
    opened: Opened,
    expected: Sequence[Any],
    *,
    deltas: tuple[list[Any], list[Any]],
    taken: list[Any],
    floor: float,
) -> float:
    """Return T of what was added to delta, against `expected`. Chunks that are zero on both sides do not count."""
    rate = max(opened.learning_rate, LEAST_RATE * opened.largest_rate)
    most = rounding_limit(replay.usual_contribution(learning_rate=rate), chunks=table.total, floor=floor)
    off = replay.elements(taken)
    added = [claimed(new, old, gone, decay=replay.decay) for new, old, gone in zip(*deltas, off, strict=True)]
    found = []
    for one, two, old in zip(added, expected, deltas[1], strict=True):
        says = (one != 0).any(axis=1) | (two != 0).any(axis=1)
        found.append(chunk_scores(one, two, before=old, floor=floor, most=most)[says])
    return mean_score(found) if any(part.size for part in found) else 0.0


def _expected(
    replay: Replay,
    table: ChunkTable,
    opened: Opened,
    gradient: Sequence[OpenedChunk],
    *,
    before: Sequence[OpenedChunk] | None,
) -> tuple[list[Any], list[Any] | None]:
    """Return the contribution of the judge's gradient with the trainer's memory, and the memory after it."""
    recomputed = _by_group(table, opened.numbers, [chunk.delta for chunk in gradient])
    memory, count = _memory(table, opened, before)
    return replay.contribution_of(recomputed, memory=memory, count=count, learning_rate=opened.learning_rate)


def _divided_to_nothing(
    replay: Replay, table: ChunkTable, opened: Opened, gradient: Sequence[OpenedChunk], *, before: Sequence[OpenedChunk] | None
) -> bool:
    """Return whether the memory makes nothing of the gradient in more than half of the chunks that have one.

    In a single chunk a gradient may be small for once, where few rows of an embedding are used.
    """
    if not table.memory:
        return False

    recomputed = _by_group(table, opened.numbers, [chunk.delta for chunk in gradient])
    memory, count = _memory(table, opened, before)
    divided, _ = replay.contribution_of(recomputed, memory=memory, count=count, learning_rate=1.0)
    there = [(one != 0).any(axis=1) for one in recomputed]
    means = np.concatenate([np.square(one).mean(axis=1)[has] for one, has in zip(divided, there, strict=True) if one.size])
    return bool(means.size) and 2 * int(np.count_nonzero(~(means >= SMALLEST_DIVIDED))) > means.size


def _memory(table: ChunkTable, opened: Opened, chunks: Sequence[OpenedChunk] | None) -> tuple[list[Any] | None, int]:
    """Return the memory of opened chunks and how many gradients it contains; zeros and 0 if delta was zero (chunks is None)."""
    if not table.memory:
        return None, 0
    if chunks is None:
        sizes = [table.shape_of(number).size for number in opened.numbers]
        return _by_group(table, opened.numbers, [np.zeros(size, dtype=np.float32) for size in sizes]), 0

    memories = [chunk.memory for chunk in chunks if chunk.memory is not None]
    counts = {one.count for one in memories}
    return _by_group(table, opened.numbers, [one.values for one in memories]), counts.pop() if len(counts) == 1 else -1


def _memory_score(
    replay: Replay,
    table: ChunkTable,
    opened: Opened,
    expected: Sequence[Any] | None,
    *,
    after: Sequence[OpenedChunk],
    before: Sequence[OpenedChunk] | None,
) -> float:
    """Return T of the change of the memory against the expected change; 0 if the optimizer has no memory."""
    old, count = _memory(table, opened, before)
    new, remembered = _memory(table, opened, after)
    if old is None or new is None or expected is None:
        return 0.0
    if count < 0 or remembered != count + 1:
        return WORST

    decay, found = replay.memory_decay, []
    for was, now, right in zip(old, new, expected, strict=True):
        kept = decay * was.astype(np.float64)
        found.append(chunk_scores(now - kept, right - kept, before=was, floor=MEMORY_FLOOR))
    return mean_score(found)


def _taken_rightly(replay: Replay, table: ChunkTable, deltas: list[Any], taken: list[Any], rule: Rule) -> bool:
    """Return whether what is taken off the deltas is their largest coefficients, in the fraction that the settings demand."""
    fraction = replay.taken_fraction
    if fraction == 0:
        return not any(part.any() for part in taken)
    if not any(part.any() for part in deltas):
        return not any(part.any() for part in taken)

    coefficients = replay.coefficients(deltas)
    groups = list(zip(table.groups, coefficients, taken, strict=True))
    agreement = sum((payload_agreement(one, two, topk=group.topk) for group, one, two in groups), NOTHING_OPENED)
    return agreement.passes(rule) and all(taken_agrees(one, two, fraction=fraction) for _, one, two in groups)


def _taken_is_sent(replay: Replay, sent: Sequence[Any] | None, taken: list[Any]) -> bool:
    """Return whether exactly the coefficients that the payload sends are taken off the delta."""
    if sent is None or replay.taken_fraction == 0:
        return sent is not None

    return all(bool(((one != 0) == (two != 0)).all()) for one, two in zip(sent, taken, strict=True))


def _sent(replay: Replay, table: ChunkTable, opened: Opened) -> list[Any] | None:
    """Return what the payload sends of the drawn chunks, by group; None for an invalid payload."""
    assert opened.payload is not None
    try:
        return list(replay.sent(opened.payload, table.rows_of(opened.numbers)))
    except PayloadRejected:  # no member applied it
        return None


def _agreement(replay: Replay, table: ChunkTable, sent: Sequence[Any] | None, after: Sequence[Any]) -> PayloadAgreement:
    if sent is None:
        return PayloadAgreement(0, 1, 0)

    groups = zip(table.groups, replay.coefficients(after), sent, strict=True)
    return sum((payload_agreement(one, two, topk=group.topk) for group, one, two in groups), NOTHING_OPENED)


def _by_group(table: ChunkTable, numbers: Sequence[int], arrays: Sequence[Any]) -> list[Any]:
    """Return chunks [size], given in the order of their numbers, as one array [rows, size] for each group."""
    found: list[list[Any]] = [[] for _ in table.groups]
    for number, array in zip(numbers, arrays, strict=True):
        found[table.place_of(number)[0]].append(array)
    return [np.array(own, dtype=np.float32).reshape(len(own), group.size) for group, own in zip(table.groups, found, strict=True)]
