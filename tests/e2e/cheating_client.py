"""`psyche` with a client that does not do the work which it is paid for; everything else is real.

    python cheating_client.py KIND python -m psyche_core client train ...

Cheats that train something else commit to what they did: their results follow from their delta, with another gradient.

    other-data            trains on made-up samples
    quarter               trains a quarter of its samples
    untrained             sends what it makes of noise
    half, quarter-of-rounds, tenth-of-rounds    trains on made-up samples in every 2nd, 4th or 10th step

Cheats that send a payload which they have not earned commit to a forged delta that explains it, the smallest change of the
one that they would have with their true gradient (`psyche_core.experiments.lazy_work`). One sign of the payload is changed,
since a result that somebody has sent before, byte for byte, is refused.

    random                random coefficients; its forged delta contains no gradient
    stale                 its own payload of ten steps ago
    copy                  another member's newest payload that it knows
    flip                  its own payload with all signs turned

Cheats of those who check others, or are checked:

    false-gradients       as a verifier, and in tie-breaks, makes the gradients of others' shares up, without computing them
    false-tie-breaks      does so in tie-breaks only
    no-reveal             trains, and shows nothing when it is challenged
    huge-delta            trains nothing, and commits to a delta that is a million times too large, to hide that in its rounding
    huge-memory           makes its memory of gradients too large in one step and trains nothing from then on: divided by that
                          memory, any gradient is nothing
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from psyche_core.__main__ import main
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.runtime.checking.kept_deltas import KeptDelta, KeptDeltas, all_rows
from psyche_core.client.runtime.checking.share_checker import ShareChecker
from psyche_core.experiments.lazy_work import forged
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.replay import AppliedStep, Replay
from psyche_core.training.inner_steps import rows_of
from psyche_core.training.trainer import Trained, Trainer
from psyche_core.verification.challenge import Stage
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import Selection

STALE_STEPS = 10
EVERY = {"other-data": 1, "half": 2, "quarter-of-rounds": 4, "tenth-of-rounds": 10}
"""In which steps made-up samples are trained: every such one."""

HUGE = 1e6
HUGE_MEMORY = 1e20
MEMORY_STEP = 5


class _Honest:
    """The methods that are replaced."""

    train = Trainer.train
    apply = Trainer.apply
    recompute = Trainer.recompute
    commit = KeptDeltas.commit
    show = ShareChecker.show
    recompute_share = ShareChecker.recompute


# ---------------------------------------------------------------------------------------------- something else is trained


def trains_other_data(every: int) -> dict[tuple[type, str], Any]:
    def train(self: Trainer, step: int, samples: Samples) -> Trained:
        if step % every:
            return _Honest.train(self, step, samples)
        tokens = bytes(number % 251 * (place % 2 == 0) for place, number in enumerate(range(step, step + len(samples.tokens))))
        return _Honest.train(self, step, Samples(tokens, samples.count, samples.sequence_length, samples.token_size))

    return {(Trainer, "train"): train}


def trains_a_quarter(self: Trainer, step: int, samples: Samples) -> Trained:
    assert samples.count >= 4, "a quarter of its samples is at least one"
    return _Honest.train(self, step, rows_of(samples, 0, samples.count // 4))


def trains_noise(self: Trainer, step: int, samples: Samples) -> Trained:
    gradients = self._micro_batch.gradients

    def noise(_: Samples) -> float:
        generator = torch.Generator().manual_seed(step)
        for parameter in self._model.parameters.values():
            parameter.grad = 1e-3 * torch.randn(parameter.shape, generator=generator)
        return 5.0

    self._micro_batch.gradients = noise  # type: ignore[method-assign]
    try:
        return _Honest.train(self, step, samples)
    finally:
        self._micro_batch.gradients = gradients  # type: ignore[method-assign]


def stops_with_a_huge_memory(self: Trainer, step: int, samples: Samples) -> Trained:
    if step < MEMORY_STEP:
        return _Honest.train(self, step, samples)
    optimizer = self._optimizer
    assert isinstance(optimizer, DistroOptimizer)
    assert optimizer._preconditioner is not None, "the run's settings have gradient_beta2"
    if step == MEMORY_STEP:
        optimizer._preconditioner._flat.fill_(HUGE_MEMORY)
    return trains_noise(self, step, samples)


# ---------------------------------------------------------------------------------------------- a payload that is not earned


class Unearned:
    """Exchanges the payload of each result, and forges the delta to which the client commits. kind: see the module."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._own: dict[int, bytes] = {}
        self._others: list[bytes] = []
        self._sent: dict[int, bytes] = {}

    def methods(self) -> dict[tuple[type, str], Any]:
        def train(trainer: Trainer, step: int, samples: Samples) -> Trained:
            return self._train(trainer, step, samples)

        def apply(trainer: Trainer, step: int, payloads: Sequence[bytes], **more: Any) -> None:
            self._others = [payload for payload in payloads if payload not in self._sent.values()] or self._others
            _Honest.apply(trainer, step, payloads, **more)

        def commit(kept: KeptDeltas, replay: Replay, step: int) -> bytes:
            return self._commit(kept, replay, step)

        return {(Trainer, "train"): train, (Trainer, "apply"): apply, (KeptDeltas, "commit"): commit}

    def _train(self, trainer: Trainer, step: int, samples: Samples) -> Trained:
        done = _Honest.train(trainer, step, samples)
        optimizer = trainer._optimizer
        assert isinstance(optimizer, DistroOptimizer)
        self._own[step] = done.payload
        self._sent[step] = self._payload(optimizer, step)
        return Trained(**{name: getattr(done, name) for name in Trained.__slots__ if name != "payload"}, payload=self._sent[step])

    def _payload(self, optimizer: DistroOptimizer, step: int) -> bytes:
        layout, values = optimizer._layout, optimizer._values
        if self._kind == "stale" and step > STALE_STEPS:
            taken = self._own[step - STALE_STEPS]
        elif self._kind == "copy" and self._others:
            taken = self._others[0]
        else:
            taken = self._own[step]
        chosen = codec.decode(layout, taken, values=values)
        signs = chosen.values.copy()
        if self._kind == "flip":
            signs = -signs
        elif self._kind == "random":
            signs = np.random.default_rng(step).choice(np.array((-1, 1), dtype=np.float32), signs.size)
        signs[step % signs.size] *= -1
        return codec.encode(layout, Selection(chosen.chunks, chosen.indices, signs), values=values)

    def _commit(self, kept: KeptDeltas, replay: Replay, step: int) -> bytes:
        """Commit to the forged delta, through a replay that tells it."""
        rows = all_rows(replay)
        target = replay.sent(self._sent[step], rows)
        true = replay.delta(rows)
        earlier = None if kept._newest is None else kept._kept.get(kept._newest)
        base = [np.zeros(group.shape) for group in true] if earlier is None else _left_of(earlier, replay)
        truth = [new - left for new, left in zip(true, base, strict=True)]
        claim = forged(replay, base, None if self._kind == "random" else truth, target)
        delta = [(left + own).astype(np.float32) for left, own in zip(base, claim, strict=True)]
        fraction = replay.taken_fraction
        taken = [
            np.where(sent != 0, fraction * found, 0.0).astype(np.float32)
            for found, sent in zip(replay.coefficients(delta), target, strict=True)
        ]
        return _Honest.commit(kept, _Told(replay, delta, taken), step)


def _left_of(earlier: KeptDelta, replay: Replay) -> list[Any]:
    """What is left of a committed delta in the next step, before anything is added."""
    dense = []
    for group, places, values in zip(earlier.groups, earlier.places, earlier.values, strict=True):
        flat = np.zeros(group.size, dtype=np.float32)
        flat[places] = values
        dense.append(flat.reshape(group.shape))
    return [
        replay.decay * (old.astype(np.float64) - off) for old, off in zip(earlier.groups, replay.elements(dense), strict=True)
    ]


class _Told:
    """A replay with another delta, and other coefficients that are taken off."""

    def __init__(self, replay: Replay, delta: Sequence[Any], taken: Sequence[Any]) -> None:
        self._replay, self._delta, self._taken = replay, delta, taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replay, name)

    def delta(self, rows: Sequence[Any]) -> list[Any]:
        return [group[chosen] for group, chosen in zip(self._delta, rows, strict=True)]

    def taken(self, step: int, rows: Sequence[Any]) -> list[Any]:
        del step
        return [group[chosen] for group, chosen in zip(self._taken, rows, strict=True)]


def commits_to_a_huge_delta(self: KeptDeltas, replay: Replay, step: int) -> bytes:
    rows = all_rows(replay)
    delta = [(HUGE * group).astype(np.float32) for group in replay.delta(rows)]
    taken = [(HUGE * group).astype(np.float32) for group in replay.taken(step, rows)]
    return _Honest.commit(self, _Told(replay, delta, taken), step)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- checks of others


def makes_gradients_up(
    self: Trainer,
    step: int,
    samples: Samples,
    *,
    signs: Sequence[Any] | None,
    undone: Sequence[AppliedStep],
    ahead: bytes | None = None,
) -> list[Any]:
    return [-part for part in _Honest.recompute(self, step, samples, signs=signs, undone=undone, ahead=ahead)]


async def lies_in_tie_breaks(self: ShareChecker, work: act.Recompute, samples: Samples) -> Any:
    state = self._state
    assert state is not None
    ties = {(one.height, one.trainer) for one in state.epoch.challenges if one.stage in (Stage.TIE_COMMIT, Stage.TIE_REVEAL)}
    if (work.place.about, work.place.trainer) not in ties:
        return await _Honest.recompute_share(self, work, samples)
    Trainer.recompute = makes_gradients_up  # type: ignore[method-assign]
    try:
        return await _Honest.recompute_share(self, work, samples)
    finally:
        Trainer.recompute = _Honest.recompute  # type: ignore[method-assign]


async def shows_nothing(self: ShareChecker, action: act.ShowPart) -> Any:
    if action.slot != action.challenge.drawn.trainer:
        return await _Honest.show(self, action)
    return ev.PartFailed(action.place, "it does not want to")


CHEATS: dict[str, Callable[[], dict[tuple[type, str], Any]]] = {
    **{kind: lambda every=every: trains_other_data(every) for kind, every in EVERY.items()},  # type: ignore[misc]
    "quarter": lambda: {(Trainer, "train"): trains_a_quarter},
    "untrained": lambda: {(Trainer, "train"): trains_noise},
    **{kind: lambda kind=kind: Unearned(kind).methods() for kind in ("random", "stale", "copy", "flip")},  # type: ignore[misc]
    "false-gradients": lambda: {(Trainer, "recompute"): makes_gradients_up},
    "false-tie-breaks": lambda: {(ShareChecker, "recompute"): lies_in_tie_breaks},
    "no-reveal": lambda: {(ShareChecker, "show"): shows_nothing},
    "huge-memory": lambda: {(Trainer, "train"): stops_with_a_huge_memory},
    "huge-delta": lambda: {(Trainer, "train"): trains_noise, (KeptDeltas, "commit"): commits_to_a_huge_delta},
}

if __name__ == "__main__":
    for (owner, method), cheat in CHEATS[sys.argv[1]]().items():
        setattr(owner, method, cheat)
    sys.argv = ["psyche", *sys.argv[5:]]
    main()
