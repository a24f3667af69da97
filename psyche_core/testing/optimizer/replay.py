"""Replays as tests, for optimizers whose `replay` is not None."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from psyche_core.interfaces.replay import AppliedStep, Replay
from psyche_core.testing.contracts import REPLAY, Contract
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.optimizer.base import OptimizerTests
from psyche_core.testing.optimizer.replicas import Replica, digest
from psyche_core.testing.sentences import raises, shown
from psyche_core.verification.replay import NOTHING_OPENED, Rule, chunk_scores, claimed, mean_score, payload_agreement


class ReplayTests(OptimizerTests):
    """What a verifier is shown follows from what the optimizer did."""

    contract: ClassVar[Contract] = REPLAY

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
            memory, count = replay.memory(rows) if replay.has_memory else (None, 0)
            payloads.append(replica.optimizer.compress(step, learning_rate=self.learning_rate))
            after = replay.delta(rows)
            added = [claimed(new, old, off, decay=replay.decay) for new, old, off in zip(after, before, taken, strict=True)]
            score = _score(added, expected, before)
            assert score < 1e-6, (
                f"what compress added to Replay.delta in step {step} must be Replay.contribution of its gradients, score 0, got "
                f"{score:.3g}"
            )
            if replay.verifiable:
                made, _ = replay.contribution_of(
                    replay.gradient(gradients, rows), memory=memory, count=count, learning_rate=self.learning_rate
                )
                score = _score(made, expected, before)
                assert score < 1e-6, (
                    "Replay.contribution_of what Replay.gradient gives must be Replay.contribution of these gradients, score 0, "
                    f"got {score:.3g} in step {step}"
                )
            score = _score(added, [-part for part in expected], before)
            assert score > 1.5, (
                f"another gradient's contribution must be told from what was added in step {step}: the opposite one must score "
                f"above 1.5, got {score:.3g}"
            )
            self._check_payload(replay, payloads[-1], after)

    def _check_payload(self, replay: Replay, payload: bytes, delta: list[Any]) -> None:
        rows = _rows(replay)
        coefficients, sent = replay.coefficients(delta), replay.sent(payload, rows)
        parts = (
            payload_agreement(one, two, topk=group.topk, noise=2.0**-7)
            for group, one, two in zip(replay.groups, coefficients, sent, strict=True)
        )
        agreement = sum(parts, NOTHING_OPENED)
        assert agreement.passes(Rule()), (
            "Replay.sent of a payload must be the largest of Replay.coefficients at each place that was sent, got "
            f"{shown(agreement)}"
        )

    def test_the_transform_keeps_norms_and_is_undone(self) -> None:
        """`coefficients` is orthonormal; `elements` is its inverse."""
        replay = _replay(self.replica())
        generator = np.random.default_rng(0)
        chunks = [generator.normal(size=(group.count, group.size)) for group in replay.groups]
        coefficients = replay.coefficients(chunks)
        for one, two, three in zip(chunks, coefficients, replay.elements(coefficients), strict=True):
            longer = np.linalg.norm(two, axis=1) - np.linalg.norm(one, axis=1)
            assert np.allclose(np.linalg.norm(one, axis=1), np.linalg.norm(two, axis=1)), (
                f"Replay.coefficients must keep the norm of every row (orthonormal), it changes one by {np.abs(longer).max():.3g}"
            )
            assert np.allclose(one, three), (
                f"Replay.elements must undo Replay.coefficients, an element comes back {np.abs(three - one).max():.3g} away"
            )

    def test_some_rows_are_those_of_all(self) -> None:
        """Every method gives the rows that it was asked for."""
        replica = self.replica()
        replay = _replay(replica)
        payload = replica.train(1, data=1, learning_rate=self.learning_rate)
        gradients = {name: tensor.grad for name, tensor in replica.model.parameters.items() if tensor.grad is not None}
        rows = _rows(replay)
        some = [row[1::2] for row in rows]
        for method, whole, part in (
            ("delta", replay.delta(rows), replay.delta(some)),
            ("taken", replay.taken(1, rows), replay.taken(1, some)),
            ("sent", replay.sent(payload, rows), replay.sent(payload, some)),
            (
                "contribution",
                replay.contribution(gradients, rows, learning_rate=self.learning_rate),
                replay.contribution(gradients, some, learning_rate=self.learning_rate),
            ),
        ):
            assert all(np.array_equal(one[1::2], two) for one, two in zip(whole, part, strict=True)), (
                f"Replay.{method} must give the rows that it was asked for, in that order; every second row is not that of all"
            )

    def test_positions_are_ascending_and_the_same_for_everybody(self) -> None:
        """Two replicas give the same positions of one payload, and others of another."""
        first, second = self.replica(), self.replica()
        _replay(first)
        payload, other = self.payload(data=1), self.payload(data=2)
        ours, theirs = _replay(first).positions(payload), _replay(second).positions(payload)
        assert ours.dtype == np.int64, f"Replay.positions must be int64, got {ours.dtype}"
        assert (np.diff(ours) > 0).all(), f"Replay.positions must ascend, got {shown(ours[:8].tolist())} at its beginning"
        assert np.array_equal(ours, theirs), (
            "Replay.positions must be the same on every replica for one payload, another replica gives other ones"
        )
        assert not np.array_equal(ours, _replay(first).positions(other)), (
            "Replay.positions must be those of the payload, and another payload has the same ones"
        )

    def test_the_weights_of_another_replica_are_found_again(self) -> None:
        """Where `verifiable` is True: from what it looked ahead by and the steps since, long afterwards. Its state stays."""
        trainer, verifier = self.replica(), self.replica()
        ours, theirs = _replay(verifier), _replay(trainer)
        if not ours.verifiable:
            pytest.skip("others cannot verify what this optimizer trains with these settings")
        bound = ours.largest_contribution(learning_rate=self.learning_rate)
        assert math.isfinite(bound), f"Replay.largest_contribution must be finite where verifiable is True, got {bound}"

        applied: list[AppliedStep] = []
        seen: list[tuple[int, list[Any] | bytes, dict[str, Any]]] = []
        for step in range(1, 7):
            if step > 2:
                applied.append(AppliedStep([trainer.sent[step - 2], verifier.sent[step - 2]], self.learning_rate))
                for replica in (trainer, verifier):
                    replica.optimizer.apply(step - 2, applied[-1].payloads, learning_rate=self.learning_rate, own_accepted=True)
            by: list[Any] | bytes = [np.sign(group).astype(np.int8) for group in theirs.delta(_rows(theirs))]
            trainer.optimizer.load_lookahead(learning_rate=self.learning_rate)
            if theirs.ahead_bytes is not None:
                by = theirs.ahead()
                wanted = trainer.sent.get(step - 1, b"")
                assert by == wanted, "Replay.ahead must be the newest own payload that is not settled, or empty if there is none"
                assert len(by) <= theirs.ahead_bytes, f"Replay.ahead has {len(by)} bytes, more than ahead_bytes"
            seen.append((len(applied), by, {name: one.detach().clone() for name, one in trainer.model.parameters.items()}))
            for number, replica in enumerate((trainer, verifier)):
                replica.train(step, data=10 * step + number, learning_rate=self.learning_rate)
        before = digest(verifier.optimizer.masters)
        for step, (count, by, weights) in enumerate(seen, start=1):
            undone = applied[count:][::-1]
            if isinstance(by, bytes):
                ours.load_weights_ahead(by, undone=undone, learning_rate=self.learning_rate)
            else:
                ours.load_weights(None if step == 1 else by, undone=undone, learning_rate=self.learning_rate)
            found = verifier.model.parameters
            worst = max(float((found[name].detach() - one).abs().max()) for name, one in weights.items())
            assert worst < 1e-5, (
                f"Replay.load_weights must write the weights of another replica as it trained step {step}, got {worst:.3g} off"
            )
        assert digest(verifier.optimizer.masters) == before, "Replay.load_weights must not change the masters"

    def test_only_a_payload_that_waits_can_be_opened(self) -> None:
        """`taken` of a step that was never compressed raises ValueError."""
        replay = _replay(self.replica())
        wanted = "Replay.taken must raise ValueError, with a sentence, for a step that was not compressed or is settled"
        with raises(ValueError, wanted, match=r".+"):
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
