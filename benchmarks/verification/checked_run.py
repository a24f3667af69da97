"""One training whose shares are checked as docs/explanation/verification.md says, in one process, without messages.

Real parts: the optimizer, the commitments' contents, draws, the state machine, scores, and verdicts. Left out: Merkle proofs and
bytes, which are tested elsewhere, witnesses that lie, and members that are slow. Verifiers compute in bfloat16, members in
float32. A verifier trains its own share, too. Who is ejected is gone, and the others share the batch.

What a cheat claims is the best that it could: where it sends a payload that it has not earned, the smallest change of its delta
that explains the payload, with or without its true gradient, whichever scores less.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import llama
from benchmarks.robustness import liar_of, optimizer_of, rate_of
from psyche_core.experiments.lazy_work import forged
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.replay import Replay
from psyche_core.training.inner_steps import rows_of
from psyche_core.training.trainer import APPLY_DELAY
from psyche_core.verification.challenge import Challenge, Committed, Outcome, Stage, advance
from psyche_core.verification.epoch import DRAWN_AFTER, Closed, NewRound, new_epoch, round_began
from psyche_core.verification.replay import Rule, chunk_scores, claimed, mean_score
from psyche_core.verification.words import Word

Arrays = list[NDArray[np.floating[Any]]]

LENGTH = 64
SEQUENCES = 8
"""Sequences of each member while all are there."""

STALE_ROUNDS = 10
UNEARNED = ("stale", "copy", "flip")
"""Those that send a payload which does not follow from their delta."""

CHEATS = ("random", "stale", "copy", "flip", "other", "quarter")
"""Payloads of noise, of ten rounds ago, of another member, with flipped signs; other samples; a quarter of the samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A training. cheats: kind by member. part: of their rounds in which they cheat. percent: of the shares that are checked."""

    members: int = 8
    steps: int = 120
    begins: int = 10
    cheats: Mapping[int, str] = field(default_factory=dict)
    part: float = 1.0
    percent: int = 10
    seed: int = 0
    size: str = "0.2M"
    rule: Rule = Rule()  # noqa: RUF009  # frozen


@dataclass(frozen=True, slots=True)
class Share:
    """What is kept of a share while it may be challenged.

    weights: it was computed at. before, after: delta without and with this round's contribution; taken: coefficients taken off in
    between. All one array [chunks, size] for each group. cheat: its kind, "" for honest work.
    """

    samples: Samples
    weights: Mapping[str, torch.Tensor]
    before: Arrays
    taken: Arrays
    after: Arrays
    payload: bytes
    rate: float
    cheat: str


@dataclass(slots=True)
class Findings:
    """What came of a training. losses: validation loss by step. ejected: step by member. scores: T of each judged check, by
    whether the share was faked. payload_bytes: of the largest. trained, recomputed: numbers of sequences.
    """

    losses: dict[int, float] = field(default_factory=dict)
    ejected: dict[int, int] = field(default_factory=dict)
    closed: list[Closed] = field(default_factory=list)
    scores: list[tuple[bool, float]] = field(default_factory=list)
    payload_bytes: int = 0
    trained: int = 0
    recomputed: int = 0


class CheckedRun:
    """A training with checks."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.found = Findings()
        self._model = llama.build(plan.size, seed=plan.seed, sequence_length=LENGTH)
        self._verifier = llama.build(plan.size, seed=plan.seed, sequence_length=LENGTH, dtype="bfloat16")
        self._optimizers = [optimizer_of("signs", self._model) for _ in range(plan.members)]
        self._flip = liar_of("signs", "flip", self._model, np.random.default_rng(plan.seed))
        self._rng = np.random.default_rng([plan.seed, 1])
        self._state = new_epoch(percent=plan.percent, slots=plan.members)
        self._payloads: dict[int, dict[int, bytes]] = {}
        self._shares: dict[tuple[int, int], Share] = {}
        self._words: dict[tuple[int, int, int], Word] = {}
        self._rows = [np.arange(group.count) for group in self._replay(0).groups]

    @property
    def members(self) -> tuple[int, ...]:
        """The members that are still there."""
        return tuple(slot for slot in range(self.plan.members) if slot not in self.found.ejected)

    def run(self, *, measure_every: int = 10, tell: Callable[[str], None] = lambda _: None) -> Findings:
        """Train to the end."""
        for step in range(1, self.plan.steps + 1):
            self._check(step)
            self._train(step)
            if step % measure_every == 0 or step == self.plan.steps:
                self.found.losses[step] = self._loss()
                tell(f"step {step}: loss {self.found.losses[step]:.3f}, ejected {sorted(self.found.ejected)}")
        return self.found

    # ------------------------------------------------------------------------------------ training

    def _train(self, step: int) -> None:
        plan, rate = self.plan, rate_of(step, self.plan.steps)
        whole = llama.batch(SEQUENCES * plan.members, step=step, seed=plan.seed, sequence_length=LENGTH)
        ends = np.linspace(0, whole.count, len(self.members) + 1).astype(int)
        made: dict[int, bytes] = {}
        for place, slot in enumerate(self.members):
            optimizer, samples = self._optimizers[slot], rows_of(whole, int(ends[place]), int(ends[place + 1]))
            if step > APPLY_DELAY:
                payloads = list(self._payloads[step - APPLY_DELAY].values())
                optimizer.apply(step - APPLY_DELAY, payloads, learning_rate=rate, own_accepted=True)
            optimizer.load_lookahead(learning_rate=rate_of(step - 1, plan.steps))
            cheat = plan.cheats.get(slot, "") if step > plan.begins and self._rng.random() < plan.part else ""
            made[slot] = self._result(step, slot, samples, made, rate=rate, cheat=cheat)
            self.found.trained += samples.count
            self.found.payload_bytes = max(self.found.payload_bytes, len(made[slot]))
        self._payloads[step] = made

    def _result(self, step: int, slot: int, samples: Samples, made: Mapping[int, bytes], *, rate: float, cheat: str) -> bytes:
        """Train a share, or pretend to; remember what a challenge of it needs."""
        optimizer, replay = self._optimizers[slot], self._replay(slot)
        weights = {name: tensor.detach().clone() for name, tensor in self._model.parameters.items()}
        before = replay.delta(self._rows)
        earlier = slot in self._payloads.get(step - 1, {})
        taken = replay.taken(step - 1, self._rows) if earlier else [np.zeros_like(one) for one in before]
        self._pretended_gradients(samples, step, slot, cheat)
        payload = optimizer.compress(step, learning_rate=rate)
        if cheat in UNEARNED:
            payload = self._unearned(cheat, step, slot, payload, made)
        after = replay.delta(self._rows)
        self._shares[step, slot] = Share(samples, weights, before, taken, after, payload, rate, cheat)
        return payload

    def _pretended_gradients(self, samples: Samples, step: int, slot: int, cheat: str) -> None:
        if cheat == "random":
            for tensor in self._model.parameters.values():
                tensor.grad = torch.from_numpy(self._rng.normal(size=tuple(tensor.shape)).astype(np.float32))
        elif cheat == "quarter":
            self._gradients(rows_of(samples, 0, max(1, samples.count // 4)))
        elif cheat == "other":
            self._gradients(llama.batch(samples.count, step=10_000 + step, seed=slot, sequence_length=LENGTH))
        else:
            self._gradients(samples)

    def _unearned(self, cheat: str, step: int, slot: int, own: bytes, made: Mapping[int, bytes]) -> bytes:
        if cheat == "flip":
            return self._flip(own)
        if cheat == "copy":
            return next(iter(made.values())) if made else self._payloads[step - 1][(slot + 1) % self.plan.members]

        return self._payloads[max(1, step - STALE_ROUNDS)][slot]

    def _gradients(self, samples: Samples) -> None:
        self._model.gradients(samples, micro_batch_size=samples.count)

    # ------------------------------------------------------------------------------------ checks

    def _check(self, step: int) -> None:
        """The round of this step begins. Its height is one less than the step."""
        height = step - 1
        members = frozenset(self.members)
        words = tuple(self._word(one, judge) for one, judge in self._state.due(height - 1))
        drawn = step - DRAWN_AFTER
        shares = [slot for slot in members if {(drawn, slot), (drawn - 1, slot)} <= self._shares.keys()]
        begun = NewRound(
            height=height,
            seed=hashlib.sha256(f"{self.plan.seed} {height}".encode()).digest(),
            shares=shares,
            members=members,
            statements=(words,) * len(members),
            elected=len(members),
            quorum=-(-2 * len(members) // 3),
        )
        self._state, closed = round_began(self._state, begun)
        self.found.closed += closed
        for slot, standing in enumerate(self._state.standings):
            if standing.ejected and slot not in self.found.ejected:
                self.found.ejected[slot] = step
        for one in self._state.open:
            if one.stage in (Stage.COMMIT, Stage.TIE_COMMIT):
                for slot in one.expected:
                    one = advance(one, Committed(slot, bytes(32)))  # roots bind chunks, which nobody changes here
                self._state = self._state.replaced(one)
        needed = {(one.height + 1, one.drawn.trainer) for one in self._state.open}
        for place in [place for place in self._shares if place[0] < step - 3 and place not in needed]:
            del self._shares[place]

    def _word(self, challenge: Challenge, judge: int) -> Word:
        """What every honest witness says: verifiers recompute truthfully here."""
        del judge
        share = self._shares[challenge.height + 1, challenge.drawn.trainer]
        replay = self._replay(challenge.drawn.verifier)
        numbers = np.array(challenge.opened(sum(row.size for row in self._rows)), dtype=np.int64)
        ends = np.cumsum([0, *[row.size for row in self._rows]])
        rows = [numbers[(numbers >= one) & (numbers < other)] - one for one, other in itertools.pairwise(ends)]
        before, taken, after = (
            [one[row] for one, row in zip(every, rows, strict=True)] for every in (share.before, share.taken, share.after)
        )
        recomputed = self._recomputed(self._verifier, share, rows, replay)
        self.found.recomputed += share.samples.count
        opened = list(zip(after, before, replay.elements(taken), strict=True))
        claims = [[claimed(new, old, off, decay=replay.decay) for new, old, off in opened]]
        if share.cheat in UNEARNED:
            base = [replay.decay * (old.astype(np.float64) - off) for _, old, off in opened]
            target, truth = replay.sent(share.payload, rows), self._recomputed(self._model, share, rows, replay)
            claims = [forged(replay, base, known, target) for known in (None, truth)]
        score = min(_score(claim, recomputed, before, self.plan.rule) for claim in claims)
        self.found.scores.append((bool(share.cheat), score))
        if not self.plan.rule.passes(score):
            return Word.FAILED

        return Word.HIGH if score > self.plan.rule.median_threshold else Word.PASSED

    # ------------------------------------------------------------------------------------ help

    def _recomputed(self, model: Model, share: Share, rows: Sequence[Any], replay: Replay) -> list[Any]:
        """The contribution of an honest gradient of this share, in the model's arithmetic."""
        with torch.no_grad():
            for name, tensor in model.parameters.items():
                tensor.copy_(share.weights[name])
        model.gradients(share.samples, micro_batch_size=share.samples.count)
        gradients = {name: tensor.grad for name, tensor in model.parameters.items() if tensor.grad is not None}
        return replay.contribution(gradients, rows, learning_rate=share.rate)

    def _loss(self) -> float:
        honest = next(slot for slot in self.members if slot not in self.plan.cheats)
        self._optimizers[honest].load_masters()
        return self._model.loss(
            llama.batch(64, step=0, part="validation", sequence_length=LENGTH), micro_batch_size=64
        )  # fmt: skip

    def _replay(self, slot: int) -> Replay:
        optimizer: Optimizer = self._optimizers[slot]
        replay = optimizer.replay
        assert replay is not None
        return replay


def _score(claim: Sequence[Any], recomputed: Sequence[Any], before: Sequence[Any], rule: Rule) -> float:
    """T of all given chunks."""
    parts = zip(claim, recomputed, before, strict=True)
    return mean_score(chunk_scores(one, two, before=three, floor=rule.floor) for one, two, three in parts if one.size)


def outcomes(found: Findings) -> dict[str, int]:
    """How many challenges ended how."""
    return {one.name.lower(): sum(closed.verdict.outcome is one for closed in found.closed) for one in Outcome}
