"""A step of training as tests, and `OptimizerConformance`, which has all tests of an optimizer."""

from __future__ import annotations

from typing import ClassVar

import torch

from psyche_core.errors import NonFiniteError
from psyche_core.testing.contracts import Contract
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.optimizer.base import OptimizerTests
from psyche_core.testing.optimizer.inner_steps import InnerStepTests
from psyche_core.testing.optimizer.payloads import PayloadTests
from psyche_core.testing.optimizer.processes import ProcessTests
from psyche_core.testing.optimizer.replay import ReplayTests
from psyche_core.testing.optimizer.replicas import digest, play_rounds, shared
from psyche_core.testing.optimizer.state import StateTests
from psyche_core.testing.sentences import difference, differences, raises, shown
from psyche_core.testing.toy_model import TOY_SHAPES, ToyModel, toy_samples


class OptimizerConformance(StateTests, PayloadTests, ProcessTests, InnerStepTests, ReplayTests):
    """The requirements for every `Optimizer`. Subclass it and write `make_optimizer`; override the attributes below.

    Attributes:
        learning_rate: used in all steps.
        capabilities: those of `exact`, `public-state` and `inner-steps` that it has; None leaves out what it does not show.
        resends_refused: False for an optimizer that drops updates that were not accepted; the contract allows this only if the
            optimizer documents it.
    """

    contract: ClassVar[Contract] = OptimizerTests.contract  # not that of ReplayTests

    def test_capabilities_are_those_that_were_declared(self) -> None:
        """So that optional tests are not left out because the optimizer lost a capability."""
        replica = self.replica()
        replica.optimizer.apply(1, [self.payload()], learning_rate=self.learning_rate, own_accepted=False)
        optimizer = replica.optimizer
        shown = {"exact": optimizer.exact, "public-state": bool(optimizer.public_state), "inner-steps": optimizer.inner_steps > 1}
        self.compare_capabilities(shown)

    def test_masters_are_the_models_weights_in_float32(self) -> None:
        """Masters start as the model's weights, float32, ascending by name."""
        model = ToyModel(dtype=torch.bfloat16)
        masters = self.make_optimizer(model).masters
        assert list(masters) == sorted(TOY_SHAPES), (
            f"masters must have the model's parameters, in ascending order of name, {shown(sorted(TOY_SHAPES))}, got "
            f"{shown(list(masters))}"
        )
        for name, master in masters.items():
            assert master.dtype == torch.float32, f"masters must be float32, got {master.dtype} for {name}"
            wanted = model.parameters[name].detach().float()
            assert torch.equal(master, wanted), (
                f"masters must start as the model's weights; of {name} {difference(wanted, master)}"
            )

    def test_lookahead_and_gradients_do_not_change_the_masters(self) -> None:
        """Only `apply` and loading move masters and public state."""
        replica = self.replica()
        replica.optimizer.apply(1, [self.payload()], learning_rate=self.learning_rate, own_accepted=False)
        before = digest(shared(replica.optimizer))
        for step in (2, 3):
            replica.optimizer.check(replica.train(step, data=step, learning_rate=self.learning_rate))
        replica.optimizer.load_lookahead(learning_rate=self.learning_rate)
        replica.optimizer.load_masters()
        assert digest(shared(replica.optimizer)) == before, (
            "load_lookahead, compress, check and load_masters must not change masters or public state, and one of them did; only "
            "apply and the load methods move them"
        )

    def test_load_masters_writes_the_compute_weights(self) -> None:
        """`load_masters` is used for evaluation."""
        replica = self.replica()
        replica.train(1, data=1, learning_rate=self.learning_rate)
        replica.optimizer.load_lookahead(learning_rate=self.learning_rate)
        replica.optimizer.load_masters()
        assert digest(replica.model.parameters) == digest(replica.optimizer.masters), (
            "load_masters must write the masters into the model's compute weights; there "
            f"{differences(replica.optimizer.masters, replica.model.parameters)}"
        )

    def test_momentum_has_the_masters_shapes_and_looking_at_it_changes_nothing(self) -> None:
        """`momentum` may be empty; what it holds is finite."""
        replica = self.replica()
        for step in (1, 2):
            payload = replica.train(step, data=step, learning_rate=self.learning_rate)
            replica.optimizer.check(payload)
            replica.optimizer.apply(step, [payload], learning_rate=self.learning_rate, own_accepted=True)
            before = digest(shared(replica.optimizer)), digest(replica.optimizer.private_state())
            for name, tensor in replica.optimizer.momentum.items():
                shape = replica.optimizer.masters[name].shape
                assert tensor.shape == shape, (
                    f"momentum must have the masters' shapes, {tuple(shape)} for {name}, got {tuple(tensor.shape)}"
                )
                wrong = int((~torch.isfinite(tensor)).sum())
                assert wrong == 0, f"momentum must be finite, got {wrong} values of {name} that are NaN or infinite"
            assert (digest(shared(replica.optimizer)), digest(replica.optimizer.private_state())) == before, (
                "looking at momentum must change nothing, and masters, public state or private state changed"
            )

    def test_apply_moves_the_masters(self) -> None:
        """A payload has an effect."""
        replica = self.replica()
        before = digest(replica.optimizer.masters)
        replica.optimizer.apply(1, [self.payload()], learning_rate=self.learning_rate, own_accepted=False)
        assert digest(replica.optimizer.masters) != before, (
            "apply must move the masters by an accepted payload, and left all of them as they were"
        )

    def test_no_payloads_leave_the_masters(self) -> None:
        """An empty round changes nothing, weight decay and public state included."""
        replica = self.replica()
        replica.optimizer.apply(1, [self.payload()], learning_rate=self.learning_rate, own_accepted=False)
        replica.train(2, data=1, learning_rate=self.learning_rate)
        before = digest(shared(replica.optimizer))
        replica.optimizer.apply(2, [], learning_rate=self.learning_rate, own_accepted=False)
        assert digest(shared(replica.optimizer)) == before, (
            "apply without payloads changed the masters or the public state; a round without accepted results must leave both as "
            "they are, weight decay included (psyche_core.interfaces.Optimizer)"
        )

    def test_apply_does_not_depend_on_the_order_of_payloads(self) -> None:
        """Arrival order differs between members."""
        payloads = [self.payload(data=data) for data in range(5)]
        replicas = [self.replica() for _ in range(3)]
        for replica, order in zip(replicas, (payloads, payloads[::-1], payloads[2:] + payloads[:2]), strict=True):
            replica.optimizer.apply(1, order, learning_rate=self.learning_rate, own_accepted=False)
        self.assert_equal_masters(replicas)

    def test_apply_does_not_depend_on_what_was_trained_here(self) -> None:
        """A member without a share, the sender, and one that trained ahead agree."""
        idle, sender, ahead = self.replica(), self.replica(), self.replica()
        payloads = [sender.train(1, data=1, learning_rate=self.learning_rate), self.payload(data=2)]
        for step in (1, 2):
            ahead.train(step, data=7 + step, learning_rate=self.learning_rate)
        for replica in (idle, sender, ahead):
            replica.optimizer.apply(1, payloads, learning_rate=self.learning_rate, own_accepted=replica is sender)
        self.assert_equal_masters([idle, sender, ahead])

    def test_four_replicas_stay_equal_over_overlapped_rounds(self) -> None:
        """With missing shares, payloads that are not accepted and different data for each replica."""
        replicas = [self.replica() for _ in range(4)]
        start = digest(replicas[0].optimizer.masters)
        play_rounds(
            replicas, rounds=30, learning_rate=self.learning_rate, after_round=lambda: self.assert_equal_masters(replicas)
        )
        assert digest(replicas[0].optimizer.masters) != start, (
            "30 rounds of training must move the masters, and all of them are as they were"
        )

    def test_the_loss_falls(self) -> None:
        """The parameters of a single member approach their targets."""
        replica = self.replica()
        for parameter in replica.model.parameters.values():
            parameter.data.fill_(0.3)
        replica.optimizer.load_parameters({name: value.detach() for name, value in replica.model.parameters.items()})
        before = replica.model.loss(toy_samples(0), micro_batch_size=1)
        play_rounds([replica], rounds=20, learning_rate=self.learning_rate)
        replica.optimizer.load_masters()
        after = replica.model.loss(toy_samples(0), micro_batch_size=1)
        assert after < before, (
            f"20 rounds of training must lower the loss of the toy model at learning rate {self.learning_rate:g}, got "
            f"{before:.5g} before and {after:.5g} after; do masters move against the gradients?"
        )

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
    def test_a_gradient_that_is_not_finite_changes_nothing(self, bad: float) -> None:
        """`compress` raises NonFiniteError, and the next payload is the same as without the bad gradient."""
        hit, twin = self.replica(), self.replica()
        for replica in (hit, twin):
            replica.train(1, data=1, learning_rate=self.learning_rate)

        before = digest(hit.optimizer.masters)
        hit.model.gradients(toy_samples(2), micro_batch_size=1)
        hit.model.parameters["odd.prime.weight"].grad[13, 1] = bad  # type: ignore[index]  # set by gradients
        with raises(NonFiniteError, f"compress must raise NonFiniteError for a gradient that is {bad}"):
            hit.optimizer.compress(2, learning_rate=self.learning_rate)

        assert digest(hit.optimizer.masters) == before, (
            "a compress that raised NonFiniteError must change nothing, and the masters changed"
        )
        again = [replica.train(2, data=3, learning_rate=self.learning_rate) for replica in (hit, twin)]
        assert again[0] == again[1], (
            "a compress that raised NonFiniteError must change nothing, and the next payload is another one than without the bad "
            f"gradient: {shown(again[0])} instead of {shown(again[1])}"
        )

    def test_work_that_was_not_accepted_is_given_back(self) -> None:
        """The next payload differs from the one after an accepted payload."""
        if not self.resends_refused:
            pytest.skip("this optimizer documents that it drops updates that were not accepted")

        later = []
        for accepted in (False, True):
            replica = self.replica()
            own = replica.train(1, data=1, learning_rate=self.learning_rate)
            replica.train(2, data=2, learning_rate=self.learning_rate)
            payloads = [own] if accepted else []
            replica.optimizer.apply(1, payloads, learning_rate=self.learning_rate, own_accepted=accepted)
            replica.model.fill_gradients(0.0)
            later.append(replica.optimizer.compress(3, learning_rate=self.learning_rate))
        assert later[0] != later[1], (
            "an update that was not accepted must be kept and sent again, and the later payload is the same as after an accepted "
            "one; an optimizer that documents that it drops such updates sets resends_refused = False in its test class"
        )
