"""Conformance of an optimizer that steps on local weights within a share; part of `OptimizerConformance`."""

from __future__ import annotations

from psyche_core.errors import NonFiniteError
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.optimizer.base import OptimizerTests
from psyche_core.testing.optimizer.replicas import Replica, digest, shared
from psyche_core.testing.sentences import differences, raises
from psyche_core.testing.toy_model import toy_samples


class InnerStepTests(OptimizerTests):
    """Inner steps; left out for an optimizer without."""

    def begun(self) -> Replica:
        """A member that has trained a step, and has begun the next share."""
        replica = self.replica()
        count = replica.optimizer.inner_steps
        assert count >= 1, f"inner_steps must be at least 1, the number of parts of a share, got {count}"
        if replica.optimizer.inner_steps == 1:
            pytest.skip("this optimizer takes no inner steps")

        replica.train(1, data=1, learning_rate=self.learning_rate)
        replica.optimizer.load_lookahead(learning_rate=self.learning_rate)
        return replica

    def inner_step(self, replica: Replica, *, data: int) -> None:
        """Train one part of a share."""
        replica.model.gradients(toy_samples(data), micro_batch_size=1)
        replica.optimizer.inner_step(learning_rate=self.learning_rate)

    def test_an_inner_step_moves_the_trained_weights_and_nothing_public(self) -> None:
        """Local weights are this replica's own."""
        replica = self.begun()
        public, weights = digest(shared(replica.optimizer)), digest(replica.model.parameters)
        self.inner_step(replica, data=2)
        assert digest(replica.model.parameters) != weights, (
            "inner_step must move the model's compute weights on, and left all of them as they were"
        )
        assert digest(shared(replica.optimizer)) == public, (
            "inner_step must change neither masters nor public state, and changed one of them"
        )

    def test_the_next_share_begins_where_it_would_without_local_weights(self) -> None:
        """`load_lookahead` and `load_masters` overwrite the local weights of a share that was broken off."""
        replica = self.begun()
        begin = digest(replica.model.parameters)
        self.inner_step(replica, data=2)
        replica.optimizer.load_lookahead(learning_rate=self.learning_rate)
        assert digest(replica.model.parameters) == begin, (
            "load_lookahead must overwrite the local weights of a share that was broken off, and the next share begins elsewhere "
            "than without it"
        )
        self.inner_step(replica, data=3)
        replica.optimizer.load_masters()
        assert digest(replica.model.parameters) == digest(replica.optimizer.masters), (
            "load_masters must overwrite the local weights of a share with the masters; there "
            f"{differences(replica.optimizer.masters, replica.model.parameters)}"
        )

    def test_every_part_of_a_share_is_in_its_payload(self) -> None:
        """The payload is valid, and another one than that of the last part alone."""
        payloads = []
        for parts in ((2, 3), (4, 3), (3,)):
            replica = self.begun()
            for data in parts[:-1]:
                self.inner_step(replica, data=data)
            replica.model.gradients(toy_samples(parts[-1]), micro_batch_size=1)
            payloads.append(replica.optimizer.compress(2, learning_rate=self.learning_rate))
            replica.optimizer.check(payloads[-1])
        assert len(set(payloads)) == len(payloads), (
            "compress must give what all parts of a share have moved, so shares with another first part, or without it, must "
            f"give other payloads, got {len(set(payloads))} different ones of {len(payloads)}"
        )

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_a_gradient_that_is_not_finite_is_no_inner_step(self, bad: float) -> None:
        """`inner_step` raises NonFiniteError; weights and private state are as before."""
        replica = self.begun()
        self.inner_step(replica, data=2)
        before = digest(replica.model.parameters), digest(replica.optimizer.private_state())
        replica.model.gradients(toy_samples(3), micro_batch_size=1)
        replica.model.parameters["odd.prime.weight"].grad[13, 1] = bad  # type: ignore[index]  # set by gradients
        with raises(NonFiniteError, f"inner_step must raise NonFiniteError for a gradient that is {bad}"):
            replica.optimizer.inner_step(learning_rate=self.learning_rate)
        assert (digest(replica.model.parameters), digest(replica.optimizer.private_state())) == before, (
            "an inner_step that raised NonFiniteError must change nothing, and compute weights or private state changed"
        )
