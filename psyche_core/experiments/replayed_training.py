"""A small training whose shares are replayed: by honest verifiers with other arithmetic, and against lazy work.

Members train as in a run, each with its own optimizer, in the first arithmetic, with the delay of two steps. For some shares the
gradient is computed again, at the same weights, in each other arithmetic; the difference is the error of which an honest member
would be accused. For the same shares the scores of lazy work are computed, at the weights and deltas of the honest member: the
lowest score over the verifier's dtypes counts, since a cheat may be lucky with its verifier. All scores are drawn as the protocol
draws them, 16 chunks at a time.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from psyche_core.experiments.lazy_work import forged, least_scores, random_payload, scores
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.replay import Replay
from psyche_core.training.inner_steps import rows_of
from psyche_core.training.trainer import APPLY_DELAY
from psyche_core.verification.drawing import chunks, distinct
from psyche_core.verification.overlap import RecentPositions
from psyche_core.verification.replay import NOTHING_OPENED, Rule, Scores, claimed, payload_agreement

MOST_CHUNKS = 512
"""Most chunks of a share that are scored; for larger models this many are drawn."""

STALE_ROUNDS = 10
"""Age of the payload that a lazy member sends again."""

QUARTER, HALF, ALL_BUT_ONE, OTHER_DATA = "a quarter of the samples", "half of the samples", "all samples but one", "other data"
RANDOM, STALE, COPY, FLIP = "random payload", "old payload", "copied payload", "flipped signs"
LAZY = (RANDOM, STALE, COPY, FLIP, OTHER_DATA, QUARTER, HALF, ALL_BUT_ONE)
"""Kinds of lazy work, in the order of tables."""

FULL_CHEATS = frozenset({RANDOM, STALE, COPY, FLIP, OTHER_DATA, QUARTER})
"""Kinds of lazy work that the threshold must distinguish from honest work."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a gradient is computed. dtype: compute dtype. micro_batch: sequences per forward pass. threads: of torch on a CPU."""

    dtype: str
    micro_batch: int
    threads: int
    device: str = "cpu"

    @property
    def title(self) -> str:
        """A short name, for tables."""
        threads = f", {self.threads} thread{'s' if self.threads > 1 else ''}" if self.device == "cpu" else ""
        return f"{self.dtype} {self.device}, batch {self.micro_batch}{threads}"


def kinds_of_arithmetic(
    *, dtypes: Sequence[str], micro_batches: Sequence[int], threads: Sequence[int], devices: Sequence[str]
) -> list[Arithmetic]:
    """Return the first of each option together, and variants that differ in one; every dtype with each micro-batch and device."""
    usual = (micro_batches[0], threads[0])
    found = [Arithmetic(dtype, *usual, device) for device in devices for dtype in dtypes]
    found += [Arithmetic(dtype, size, threads[0], devices[0]) for dtype in dtypes for size in micro_batches[1:]]
    found += [
        Arithmetic(dtypes[0], micro_batches[0], count, device) for count in threads[1:] for device in devices if device == "cpu"
    ]
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredShare:
    """The scores of one share.

    phase: `start` or `peak`. honest: T of each draw, float64 [draws], by pair of titles of trainer's and verifier's arithmetic.
    lazy: the same by kind. agreement: Jaccard index of the own payload and the delta in all scored chunks. overlap: D of the own
    payload; None in the first rounds. wrong_signs: see `PayloadAgreement`.
    """

    seed: int
    step: int
    member: int
    phase: str
    honest: Mapping[tuple[str, str], Scores]
    lazy: Mapping[str, Scores]
    agreement: float
    wrong_signs: int
    overlap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Selection of measurements. compared: the first is the members'. measured: (step, member) by phase. draws: of each share."""

    seed: int
    rounds: Sequence[Sequence[Samples]]
    rate: Callable[[int], float]
    compared: Sequence[Arithmetic]
    measured: Mapping[tuple[int, int], str]
    draws: int = 200
    rule: Rule = field(default_factory=Rule)


@dataclass(slots=True)
class _Pending:
    """A share that is being measured, kept until all members of its round have their payloads."""

    member: int
    phase: str
    base: list[Any]
    before: list[Any]
    claim: list[Any]
    verifiers: dict[Arithmetic, list[Any]]
    gradients: dict[str, list[Any]]
    after: list[Any]


class ReplayedTraining:
    """Trains and measures. models: one for each (device, dtype); optimizers write to the first arithmetic's."""

    def __init__(self, plan: Plan, models: Mapping[tuple[str, str], Model], optimizers: Sequence[Optimizer]) -> None:
        self._plan = plan
        self._models = models
        self._optimizers = optimizers
        self._first = plan.compared[0]
        self._generator = np.random.default_rng(plan.seed)
        self._payloads: deque[list[bytes]] = deque(maxlen=STALE_ROUNDS + 1)
        self._recent: RecentPositions[int] = RecentPositions()
        replay = optimizers[0].replay
        assert replay is not None, "the caller checks it"
        self._rows = _rows(replay, plan.seed)

    def run(self, *, may_measure: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[int, list[MeasuredShare]]]:
        """Yield each step's number and its measured shares. may_measure: asked with the phase before each share is measured."""
        for step, shares in enumerate(self._plan.rounds, start=1):
            done = step - APPLY_DELAY
            for optimizer in self._optimizers if done >= 1 else ():
                rate = self._plan.rate(done + APPLY_DELAY)
                optimizer.apply(done, self._payloads[-APPLY_DELAY], learning_rate=rate, own_accepted=True)
            payloads, pending = [], []
            for member, optimizer in enumerate(self._optimizers):
                optimizer.load_lookahead(learning_rate=self._plan.rate(step - 1))
                phase = self._plan.measured.get((step, member))
                measured = self._before(step, member, shares, phase) if phase is not None and may_measure(phase) else None
                self._gradients(self._first, shares[member])
                payloads.append(optimizer.compress(step, learning_rate=self._plan.rate(step)))
                if measured is not None:
                    self._after(optimizer, measured)
                    pending.append(measured)
            self._payloads.append(payloads)
            overlaps = self._overlaps(step, payloads)
            yield step, [self._scored(step, one, payloads, overlaps.get(one.member)) for one in pending]

    def _before(self, step: int, member: int, shares: Sequence[Samples], phase: str) -> _Pending:
        """Compute all gradients at the weights of this share, except the member's own, which `compress` needs afterwards."""
        optimizer, share = self._optimizers[member], shares[member]
        replay, rate = _replay(optimizer), self._plan.rate(step)

        def contribution(arithmetic: Arithmetic, samples: Samples) -> list[Any]:
            gradients = self._gradients(arithmetic, samples)
            return replay.contribution(gradients, self._rows, learning_rate=rate)

        first_weights = self._models[self._first.device, self._first.dtype].parameters
        for place, model in self._models.items():
            if place != (self._first.device, self._first.dtype):
                _copy(first_weights, model.parameters)
        verifiers = {arithmetic: contribution(arithmetic, share) for arithmetic in self._plan.compared[1:]}
        gradients = {OTHER_DATA: contribution(self._first, shares[(member + 1) % len(shares)])} if len(shares) > 1 else {}
        for kind, count in ((QUARTER, share.count // 4), (HALF, share.count // 2), (ALL_BUT_ONE, share.count - 1)):
            if count >= 1:
                gradients[kind] = contribution(self._first, rows_of(share, 0, count))
        verifiers = {self._first: contribution(self._first, share), **verifiers}
        before = replay.delta(self._rows)
        taken = replay.elements(replay.taken(step - 1, self._rows)) if step > 1 else [np.zeros_like(one) for one in before]
        base = [replay.decay * (one.astype(np.float64) - off) for one, off in zip(before, taken, strict=True)]
        return _Pending(member, phase, base, before, taken, verifiers, gradients, [])

    def _after(self, optimizer: Optimizer, pending: _Pending) -> None:
        replay = _replay(optimizer)
        pending.after = replay.delta(self._rows)
        opened = zip(pending.after, pending.before, pending.claim, strict=True)  # until the next line, claim is what was taken
        pending.claim = [claimed(after, before, taken, decay=replay.decay) for after, before, taken in opened]

    def _scored(self, step: int, pending: _Pending, payloads: Sequence[bytes], overlap: float | None) -> MeasuredShare:
        member, floor, before = pending.member, self._plan.rule.floor, pending.before
        replay = _replay(self._optimizers[member])
        draws = self._draws(step, member)

        def drawn(found: Scores) -> Scores:
            means: Scores = found[draws].mean(axis=1)
            return means

        honest = {}
        for trainer, verifier in _pairs(self._plan.compared):
            claim = pending.claim if trainer == self._first else pending.verifiers[trainer]
            found = scores(claim, pending.verifiers[verifier], before, floor=floor)
            honest[trainer.title, verifier.title] = drawn(found)

        usual = (self._first.micro_batch, self._first.threads)
        same_batch = [one for one in pending.verifiers if (one.micro_batch, one.threads) == usual]
        references = [pending.verifiers[one] for one in same_batch]
        lazy = {
            kind: min((least_scores(claim, one, before, floor=floor) for one in references), key=_mean)
            for kind, claim in pending.gradients.items()
        }
        for kind, target in self._targets(step, member, payloads).items():
            claims = [forged(replay, pending.base, known, target) for known in (None, pending.verifiers[self._first])]
            lazy[kind] = min((scores(claim, one, before, floor=floor) for claim in claims for one in references), key=_mean)
        agreement, wrong = self._agreement(replay, payloads[member], pending.after)
        return MeasuredShare(
            self._plan.seed,
            step,
            member,
            pending.phase,
            honest,
            {kind: drawn(lazy[kind]) for kind in LAZY if kind in lazy},
            agreement,
            wrong,
            overlap,
        )

    def _targets(self, step: int, member: int, payloads: Sequence[bytes]) -> dict[str, list[Any]]:
        """Return payloads, by kind, that a member may send without having trained for them."""
        replay = _replay(self._optimizers[member])
        own = replay.sent(payloads[member], self._rows)
        found = {
            RANDOM: random_payload(replay, [row.size for row in self._rows], self._generator),
            FLIP: [-values for values in own],
        }
        if len(payloads) > 1:
            found[COPY] = replay.sent(payloads[(member + 1) % len(payloads)], self._rows)
        if step > 1:
            found[STALE] = replay.sent(self._payloads[0][member], self._rows)
        return found

    def _agreement(self, replay: Replay, payload: bytes, after: Sequence[Any]) -> tuple[float, int]:
        coefficients, sent = replay.coefficients(after), replay.sent(payload, self._rows)
        parts = (
            payload_agreement(one, other, topk=group.topk)
            for group, one, other in zip(replay.groups, coefficients, sent, strict=True)
        )
        found = sum(parts, NOTHING_OPENED)
        return found.jaccard, found.wrong_signs

    def _overlaps(self, step: int, payloads: Sequence[bytes]) -> dict[int, float]:
        positions = {member: _replay(self._optimizers[0]).positions(payload) for member, payload in enumerate(payloads)}
        found = {member: one.score for member, one in self._recent.scores(step, positions).items()} if step > 1 else {}
        self._recent = self._recent.with_round(step, positions)
        return found

    def _draws(self, step: int, member: int) -> NDArray[np.int64]:
        """Return places of the drawn chunks among the scored ones, int64 [draws, 16 or fewer]."""
        total = sum(row.size for row in self._rows)
        seeds = (int(number).to_bytes(32, "little") for number in range(self._plan.draws))
        return np.array([chunks(seed, height=step, trainer=member, total=total) for seed in seeds], dtype=np.int64)

    def _gradients(self, arithmetic: Arithmetic, samples: Samples) -> dict[str, Any]:
        model = self._models[arithmetic.device, arithmetic.dtype]
        before = torch.get_num_threads()
        if arithmetic.threads != before:
            torch.set_num_threads(arithmetic.threads)
        try:
            model.gradients(samples, micro_batch_size=arithmetic.micro_batch)
        finally:
            if arithmetic.threads != before:
                torch.set_num_threads(before)
        return {name: tensor.grad for name, tensor in model.parameters.items() if tensor.grad is not None}


def measured_shares(phases: Mapping[int, str], members: int, *, each: int) -> dict[tuple[int, int], str]:
    """Choose the shares to measure: up to `each` of every phase, evenly over its steps. phases: of each step."""
    found = {}
    for phase in dict.fromkeys(phases.values()):
        steps = [step for step, own in phases.items() if own == phase]
        count = min(each, len(steps) * members)
        for place in range(count):  # at most `members` in one step, and in a row, so these are different members
            found[steps[place * len(steps) // count], place % members] = phase
    return found


def _pairs(compared: Sequence[Arithmetic]) -> list[tuple[Arithmetic, Arithmetic]]:
    """Return pairs of trainer and verifier: the first with each (also itself), and two of any other dtype with each other."""
    first, *others = compared
    pairs = [(first, other) for other in compared]
    for place, one in enumerate(others):
        pairs += [(one, other) for other in others[place + 1 :] if one.dtype == other.dtype != first.dtype]
    return pairs


def _rows(replay: Replay, seed: int) -> list[NDArray[np.int64]]:
    """Return the chunks that are scored, by group: all chunks of a small model, random ones of a large model."""
    counts = [group.count for group in replay.groups]
    numbers = np.array(distinct(seed.to_bytes(32, "little"), b"rows", count=MOST_CHUNKS, below=sum(counts)), dtype=np.int64)
    ends = np.cumsum([0, *counts])
    return [numbers[(numbers >= start) & (numbers < stop)] - start for start, stop in itertools.pairwise(ends)]


def _replay(optimizer: Optimizer) -> Replay:
    replay = optimizer.replay
    assert replay is not None
    return replay


@torch.no_grad()
def _copy(source: Mapping[str, Any], target: Mapping[str, Any]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _mean(found: Scores) -> float:
    return float(found.mean()) if found.size else math.inf
