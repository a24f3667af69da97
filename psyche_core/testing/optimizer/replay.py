"""Replays as tests, for optimizers whose `replay` is not None."""

from __future__ import annotations

from typing import Any

import numpy as np

from psyche_core.interfaces.replay import Replay
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.optimizer.base import OptimizerTests
from psyche_core.testing.optimizer.replicas import Replica
from psyche_core.verification.replay import NOTHING_OPENED, Rule, chunk_scores, claimed, mean_score, payload_agreement


class ReplayTests(OptimizerTests):
    """What a verifier is shown follows from what the optimizer did."""

    def test_what_was_added_to_delta_is_the_gradient_s_contribution(self) -> None:
        """In each of several steps with accepted payloads; another gradient's contribution is told from it."""
        replica = self.replica()
        replay = _replay(replica)
        rows = _rows(replay)
        payloads = [replica.train(1, data=1, learning_rate=self.learning_rate)]
        for step in range(2, 6):
            if step > 2:
                replica.optimizer.apply(step - 2, [payloads[step - 3]], learning_rate=self.learning_rate, own_accepted=True)
            before, taken = replay.delta(rows), replay.elements(replay.taken(step - 1, rows))
            replica.compute(data=step, learning_rate=self.learning_rate)
            gradients = {name: tensor.grad for name, tensor in replica.model.parameters.items() if tensor.grad is not None}
            expected = replay.contribution(gradients, rows, learning_rate=self.learning_rate)
            payloads.append(replica.optimizer.compress(step, learning_rate=self.learning_rate))
            after = replay.delta(rows)
            added = [claimed(new, old, off, decay=replay.decay) for new, old, off in zip(after, before, taken, strict=True)]
            assert _score(added, expected, before) < 1e-6
            assert _score(added, [-part for part in expected], before) > 1.5
            self._check_payload(replay, payloads[-1], after)

    def _check_payload(self, replay: Replay, payload: bytes, delta: list[Any]) -> None:
        rows = _rows(replay)
        coefficients, sent = replay.coefficients(delta), replay.sent(payload, rows)
        parts = (
            payload_agreement(one, two, topk=group.topk, noise=2.0**-7)
            for group, one, two in zip(replay.groups, coefficients, sent, strict=True)
        )
        assert sum(parts, NOTHING_OPENED).passes(Rule())

    def test_the_transform_keeps_norms_and_is_undone(self) -> None:
        """`coefficients` is orthonormal; `elements` is its inverse."""
        replay = _replay(self.replica())
        generator = np.random.default_rng(0)
        chunks = [generator.normal(size=(group.count, group.size)) for group in replay.groups]
        coefficients = replay.coefficients(chunks)
        for one, two, three in zip(chunks, coefficients, replay.elements(coefficients), strict=True):
            assert np.allclose(np.linalg.norm(one, axis=1), np.linalg.norm(two, axis=1))
            assert np.allclose(one, three)

    def test_some_rows_are_those_of_all(self) -> None:
        """Every method gives the rows that it was asked for."""
        replica = self.replica()
        replay = _replay(replica)
        payload = replica.train(1, data=1, learning_rate=self.learning_rate)
        gradients = {name: tensor.grad for name, tensor in replica.model.parameters.items() if tensor.grad is not None}
        rows = _rows(replay)
        some = [row[1::2] for row in rows]
        for whole, part in (
            (replay.delta(rows), replay.delta(some)),
            (replay.taken(1, rows), replay.taken(1, some)),
            (replay.sent(payload, rows), replay.sent(payload, some)),
            (
                replay.contribution(gradients, rows, learning_rate=self.learning_rate),
                replay.contribution(gradients, some, learning_rate=self.learning_rate),
            ),
        ):
            assert all(np.array_equal(one[1::2], two) for one, two in zip(whole, part, strict=True))

    def test_positions_are_ascending_and_the_same_for_everybody(self) -> None:
        """Two replicas give the same positions of one payload, and others of another."""
        first, second = self.replica(), self.replica()
        _replay(first)
        payload, other = self.payload(data=1), self.payload(data=2)
        ours, theirs = _replay(first).positions(payload), _replay(second).positions(payload)
        assert ours.dtype == np.int64
        assert (np.diff(ours) > 0).all()
        assert np.array_equal(ours, theirs)
        assert not np.array_equal(ours, _replay(first).positions(other))

    def test_only_a_payload_that_waits_can_be_opened(self) -> None:
        """`taken` of a step that was never compressed raises ValueError."""
        replay = _replay(self.replica())
        with pytest.raises(ValueError, match=r".+"):
            replay.taken(7, _rows(replay))


def _replay(replica: Replica) -> Replay:
    replay = replica.optimizer.replay
    if replay is None:
        pytest.skip("this optimizer's training cannot be replayed")
    return replay


def _rows(replay: Replay) -> list[Any]:
    """All rows of all groups."""
    return [np.arange(group.count, dtype=np.int64) for group in replay.groups]


def _score(one: list[Any], other: list[Any], before: list[Any]) -> float:
    return mean_score(chunk_scores(a, b, before=old) for a, b, old in zip(one, other, before, strict=True))
