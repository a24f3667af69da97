"""Challenges with the real optimizer: commitments, drawn chunks, proofs, scores and verdicts, for honest members and cheats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from psyche_core.interfaces.replay import Replay
from psyche_core.testing.toy_model import ToyModel
from psyche_core.verification.challenge import Challenge, Committed, Outcome, RoundBegan, Stage, advance
from psyche_core.verification.drawing import Drawn
from psyche_core.verification.merkle import MerkleTree, gradient_leaf
from psyche_core.verification.opening import OpenedChunk, decode_chunk, delta_leaf, opened_half, sign_bits, signs_fit
from psyche_core.verification.replay import (
    NOTHING_OPENED,
    Rule,
    chunk_scores,
    claimed,
    largest_delta,
    mean_score,
    payload_agreement,
    within,
)
from psyche_core.verification.words import Word
from psyche_optim_distro.chunks.blocked_buffer import BlockedBuffer
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings

SHAPES = {"a": (64, 48), "b": (48, 64), "norm": (48,)}
RATE, RULE, WITNESSES = 0.01, Rule(), 4
TRAINER, VERIFIER = 4, 5
SAMPLES = 8


@dataclass
class Commitment:
    """What a member keeps of a round: all chunks of delta with their proofs, and the root."""

    chunks: list[OpenedChunk]
    root: bytes

    @classmethod
    def of(cls, delta: list[Any], taken: list[Any]) -> Commitment:
        parts = []
        for rows, coefficients in zip(delta, taken, strict=True):
            for row, dense in zip(rows, coefficients, strict=True):
                positions = np.flatnonzero(dense)
                parts.append((row.astype(np.float32), positions, dense[positions].astype(np.float32)))
        tree = MerkleTree([delta_leaf(*part) for part in parts])
        return cls([OpenedChunk(number, *part, tree.proof(number)) for number, part in enumerate(parts)], tree.root)


@dataclass
class Member:
    """A member whose samples' gradients are a common part and noise, as in training."""

    cheat: str = ""
    model: ToyModel = field(default_factory=lambda: ToyModel(SHAPES))
    kept: list[Commitment] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = DistroSettings(compression_chunk=8, compression_topk=6, quantize_1bit=True, clip_grad_norm=1.0)
        self.optimizer = DistroOptimizer(settings, self.model, compiled=False)

    @property
    def replay(self) -> Replay:
        return self.optimizer.replay

    @property
    def rows(self) -> list[Any]:
        return [np.arange(group.count) for group in self.replay.groups]

    def train(self, step: int) -> None:
        if step > 2:
            self.optimizer.apply(step - 2, [self.payloads[-2]], learning_rate=RATE, own_accepted=True)
        cheats = self.cheat if step == 4 else ""
        samples = range(SAMPLES // 4) if cheats == "quarter" else range(SAMPLES)
        for name, gradient in gradient_of(step + 100 * (cheats == "other"), samples).items():
            self.model.parameters[name].grad = gradient
        payload = self.optimizer.compress(step, learning_rate=RATE)
        self.kept.append(Commitment.of(self.replay.delta(self.rows), self.replay.taken(step, self.rows)))
        self.payloads.append(self.payloads[0] if cheats == "old payload" else payload)


def gradient_of(step: int, samples: range) -> dict[str, torch.Tensor]:
    """The mean of the samples' gradients."""
    found = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        common = torch.randn(shape, generator=torch.Generator().manual_seed(1000 * step + number))
        noise = [torch.randn(shape, generator=torch.Generator().manual_seed(97 * step + 7 * one + number)) for one in samples]
        found[name] = common + 1.5 * torch.stack(noise).mean(dim=0)
    return found


def by_group(replay: Replay, numbers: list[int], arrays: Mapping[int, Any]) -> list[Any]:
    """Chunks of some numbers, one array for each group."""
    found, first = [], 0
    for group in replay.groups:
        own = [arrays[number] for number in numbers if first <= number < first + group.count]
        found.append(np.array(own).reshape(len(own), group.size))
        first += group.count
    return found


def passes(
    replay: Replay,
    numbers: list[int],
    before: Commitment,
    after: Commitment,
    gradient: Commitment,
    payload: bytes,
    *,
    bounded: bool = True,
) -> bool:
    """What a witness computes: proofs, score and payload of the opened chunks, all from bytes."""
    total = sum(group.count for group in replay.groups)
    sizes = [group for group in replay.groups for _ in range(group.count)]
    opened: dict[str, dict[int, OpenedChunk]] = {"before": {}, "after": {}, "gradient": {}}
    for number in numbers:
        for name, kept in (("before", before), ("after", after), ("gradient", gradient)):
            chunk = decode_chunk(kept.chunks[number].encode(), size=sizes[number].size, topk=sizes[number].topk)
            fits = chunk.is_gradient_of if name == "gradient" else chunk.belongs
            if not fits(kept.root, chunks=total):
                return False
            opened[name][number] = chunk

    def arrays(name: str, what: str) -> list[Any]:
        return by_group(replay, numbers, {number: getattr(chunk, what) for number, chunk in opened[name].items()})

    old, new, off = arrays("before", "delta"), arrays("after", "delta"), replay.elements(arrays("before", "taken"))
    added = [claimed(one, two, three, decay=replay.decay) for one, two, three in zip(new, old, off, strict=True)]
    bound = largest_delta(3, rate=RATE, clip=1.0, decay=replay.decay)
    if bounded and not all(within(one, bound) for one in old if one.size):
        return False

    parts = zip(added, arrays("gradient", "delta"), old, strict=True)
    most = bound / total**0.5 if bounded else np.inf
    score = mean_score(chunk_scores(one, two, before=three, most=most) for one, two, three in parts)
    places, first = [], 0
    for group in replay.groups:
        places.append(np.array([number - first for number in numbers if first <= number < first + group.count], dtype=np.int64))
        first += group.count
    sent = replay.sent(payload, places)
    agreement = sum(
        (
            payload_agreement(one, two, topk=group.topk)
            for group, one, two in zip(replay.groups, replay.coefficients(new), sent, strict=True)
        ),
        NOTHING_OPENED,
    )
    return RULE.passes(score) and agreement.passes(RULE)


def recomputed(replay: Replay, rows: list[Any], step: int, *, honest: bool = True) -> Commitment:
    """What somebody who trains the share again commits to."""
    gradients = gradient_of(step if honest else step + 50, range(SAMPLES))
    parts = [row for group in replay.contribution(gradients, rows, learning_rate=RATE) for row in group]
    tree = MerkleTree([gradient_leaf(row.astype("<f4").tobytes()) for row in parts])
    none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    chunks = [OpenedChunk(number, row, none, nothing, tree.proof(number)) for number, row in enumerate(parts)]
    return Commitment(chunks, tree.root)


def next_round(challenge: Challenge, words: Sequence[Word] = ()) -> Challenge:
    """The challenge once the round begins that ends its stage, of four elected witnesses that say the same words."""
    height = challenge.since + 1 + challenge.awaits_words(challenge.since + 1)
    said = (tuple(words),) * WITNESSES if words else ()
    event = RoundBegan(
        height=height, seed=bytes([height]) * 32, words=said, elected=WITNESSES, quorum=3, members=frozenset(range(9))
    )
    return advance(challenge, event)


def played(member: Member, *, honest_verifier: bool = True) -> Challenge:
    """A challenge of step 4 to its end: everybody but trainer and verifier is honest."""
    replay, rows = member.replay, member.rows
    before, after, payload = member.kept[2], member.kept[3], member.payloads[3]
    total = sum(group.count for group in replay.groups)
    halves = [opened_half(chunk.delta, chunk.positions, chunk.values) for chunk in before.chunks]
    assert signs_fit([sign_bits(chunk.delta) for chunk in before.chunks], halves, before.root)
    challenge = Challenge(height=4, drawn=Drawn(TRAINER, VERIFIER), since=6)
    own = recomputed(replay, rows, 4, honest=honest_verifier)
    challenge = next_round(advance(challenge, Committed(VERIFIER, own.root)))
    word = passes(replay, list(challenge.opened(total)), before, after, own, payload)
    challenge = next_round(challenge, [Word.PASSED if word else Word.FAILED])
    if challenge.stage is Stage.CLOSED:
        return challenge

    third = recomputed(replay, rows, 4)
    for judge in challenge.judges:
        challenge = advance(challenge, Committed(judge, third.root))
    challenge = next_round(challenge)
    word = passes(replay, list(challenge.opened(total)), before, after, third, payload)
    return next_round(challenge, [Word.PASSED if word else Word.FAILED] * len(challenge.judges))


@pytest.mark.parametrize(
    ("cheat", "honest_verifier", "outcome", "strikes"),
    [
        ("", True, Outcome.PASSED, set()),
        ("", False, Outcome.FALSE_ACCUSATION, {VERIFIER}),
        ("quarter", True, Outcome.GUILTY, {TRAINER}),
        ("other", True, Outcome.GUILTY, {TRAINER}),
        ("old payload", True, Outcome.GUILTY, {TRAINER}),
        ("quarter", False, Outcome.GUILTY, {TRAINER}),
    ],
)
def test_who_trained_passes_and_who_did_not_gets_the_strike(
    cheat: str, honest_verifier: bool, outcome: Outcome, strikes: set[int]
) -> None:
    member = Member(cheat)
    for step in range(1, 5):
        member.train(step)
    verdict = played(member, honest_verifier=honest_verifier).verdict
    assert verdict is not None
    assert (verdict.outcome, set(verdict.strikes), verdict.requeue) == (outcome, strikes, TRAINER in strikes)


def test_a_chunk_that_was_changed_after_it_was_committed_is_not_believed() -> None:
    member = Member()
    for step in range(1, 5):
        member.train(step)
    honest = recomputed(member.replay, member.rows, 4)
    numbers = list(range(0, 40, 3))
    assert passes(member.replay, numbers, member.kept[2], member.kept[3], honest, member.payloads[3])
    member.kept[3].chunks[6].delta[0] += np.float32(1e-3)
    assert not passes(member.replay, numbers, member.kept[2], member.kept[3], honest, member.payloads[3])


def test_a_delta_that_is_too_large_hides_no_lie() -> None:
    """Without the bound, T's third term would be the cheat's to choose, and no gradient at all would pass."""
    member = Member()
    for step in range(1, 4):
        member.train(step)
    replay, rows = member.replay, member.rows
    taken = replay.taken(3, rows)
    huge = [1e6 * delta for delta in replay.delta(rows)]
    kept = [(replay.decay * (old - off)).astype(np.float32) for old, off in zip(huge, replay.elements(taken), strict=True)]
    before = Commitment.of(huge, taken)
    with torch.no_grad():
        for name, parameter in member.model.parameters.items():
            parameter.grad = torch.zeros(SHAPES[name])
    member.optimizer.load_private_state(private(member, kept))
    payload = member.optimizer.compress(4, learning_rate=RATE)  # of the forged delta, without any training
    after = Commitment.of([(part * np.float32(1)).astype(np.float32) for part in kept], replay.taken(4, rows))
    honest = recomputed(replay, rows, 4)
    numbers = list(range(0, 90, 6))
    assert passes(replay, numbers, before, after, honest, payload, bounded=False)
    assert not passes(replay, numbers, before, after, honest, payload)


def private(member: Member, chunks: list[Any]) -> dict[str, torch.Tensor]:
    """A private state whose delta, after one decay, has these chunks."""
    flat = torch.from_numpy(np.concatenate([part.ravel() for part in chunks])) / member.replay.decay
    return {f"delta.{name}": tensor for name, tensor in BlockedBuffer(flat, member.optimizer._layout).items()}
