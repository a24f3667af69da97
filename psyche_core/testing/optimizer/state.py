"""Conformance of an optimizer's state: what is loaded, saved and given to members that join; part of `OptimizerConformance`."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import torch

from psyche_core.errors import ModelError
from psyche_core.interfaces.parameters import LazyParameters
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.optimizer.base import OptimizerTests
from psyche_core.testing.optimizer.replicas import copy_shared, digest, play_rounds, shared
from psyche_core.testing.sentences import differences, raises, shown
from psyche_core.testing.toy_model import toy_samples


class StateTests(OptimizerTests):
    """Masters, public state and private state."""

    def test_load_parameters_replaces_masters_and_forgets(self) -> None:
        """A member that resynced behaves like a new one."""
        used, fresh = self.replica(), self.replica()
        start = {name: master.clone() for name, master in fresh.optimizer.masters.items()}
        for step in (1, 2):
            payload = used.train(step, data=step, learning_rate=self.learning_rate)
        used.optimizer.apply(1, [payload], learning_rate=self.learning_rate, own_accepted=True)
        copy_shared(fresh.optimizer, into=used.optimizer)
        assert digest(used.optimizer.masters) == digest(start), (
            f"load_parameters must replace the masters; of those that were loaded, {differences(start, used.optimizer.masters)}"
        )
        later = [replica.train(3, data=3, learning_rate=self.learning_rate) for replica in (used, fresh)]
        assert later[0] == later[1], (
            "load_parameters must reset all private state, so that a member which resynced sends what a new one sends; its "
            f"payload is another: {shown(later[0])} instead of {shown(later[1])}"
        )

    def test_parameters_to_load_may_be_made_one_at_a_time(self) -> None:
        """A model from disk is never in memory as a whole: the optimizer releases each tensor before it looks up the next."""
        replica = self.replica()
        wanted = {name: torch.full_like(master, 0.25) for name, master in replica.optimizer.masters.items()}
        lazy = _OneAtATime(wanted)
        replica.optimizer.load_parameters(lazy)
        assert digest(replica.optimizer.masters) == digest(wanted), (
            "load_parameters must take parameters that are made on lookup (LazyParameters); of those that were loaded, "
            f"{differences(wanted, replica.optimizer.masters)}"
        )
        assert lazy.most_held <= 1, (
            "load_parameters must release each tensor before it looks up the next, so that a model from disk is never in memory "
            f"as a whole; it held {lazy.most_held}"
        )

    @pytest.mark.parametrize("how", ["missing", "unknown", "turned"])
    def test_parameters_of_another_model_change_nothing(self, how: str) -> None:
        """Names and shapes are compared before anything is replaced, lazy parameters or not."""
        replica = self.replica()
        before = digest(replica.optimizer.masters)
        wrong = {name: torch.zeros_like(master) for name, master in replica.optimizer.masters.items()}
        if how == "missing":
            del wrong["odd.bias"]
        elif how == "unknown":
            wrong["zz.unknown"] = torch.zeros(3)
        else:
            wrong["odd.prime.weight"] = wrong["odd.prime.weight"].t().contiguous()
        for parameters in (wrong, _OneAtATime(wrong)):
            with raises(ModelError, f"load_parameters must raise ModelError for {how} parameters ({type(parameters).__name__})"):
                replica.optimizer.load_parameters(parameters)
        assert digest(replica.optimizer.masters) == before, (
            f"load_parameters that raised ModelError for {how} parameters must change nothing, and the masters changed"
        )

    def test_public_state_is_zero_at_first(self) -> None:
        """float32 tensors, ascending by name, on the masters' device; zero stands for a checkpoint without them."""
        optimizer = self.replica().optimizer
        state, masters = optimizer.public_state, list(optimizer.masters.values())
        assert list(state) == sorted(state), f"public_state must be in ascending order of name, got {shown(list(state))}"
        for name, tensor in state.items():
            assert (tensor.dtype, tensor.device) == (torch.float32, masters[0].device), (
                f"public_state must be float32 on the masters' device, {masters[0].device}, got {tensor.dtype} on "
                f"{tensor.device} for {name}"
            )
            assert not tensor.contiguous().view(torch.int32).any(), (
                "a new optimizer's public_state must be all zero (+0.0), got "
                f"{int(tensor.contiguous().view(torch.int32).ne(0).sum())} other values in {name}"
            )

    def test_load_parameters_leaves_the_public_state(self) -> None:
        """The client loads masters and public state separately, and may give an optimizer its own tensors."""
        replica = self.replica()
        replica.optimizer.apply(1, [self.payload()], learning_rate=self.learning_rate, own_accepted=False)
        before = digest(shared(replica.optimizer))
        if replica.optimizer.public_state:
            replica.optimizer.load_public_state(replica.optimizer.public_state)
        replica.optimizer.load_parameters(replica.optimizer.masters)
        assert digest(shared(replica.optimizer)) == before, (
            "load_parameters must leave the public state alone, and both load methods may be given the optimizer's own tensors; "
            "masters or public state changed"
        )

    def test_a_member_that_joins_stays_equal_over_50_rounds(self) -> None:
        """It loads another's masters and public state, lazily, and trains and applies what the others do."""
        replicas = [self.replica() for _ in range(2)]
        play_rounds(replicas, rounds=5, learning_rate=self.learning_rate)
        joiner, first = self.replica(), replicas[0].optimizer
        if first.public_state:
            assert any(bool(tensor.any()) for tensor in first.public_state.values()), (
                "public_state must be changed by apply, and it is all zero after five rounds; leave out what never changes"
            )
            state = _OneAtATime({name: tensor.clone() for name, tensor in first.public_state.items()})
            joiner.optimizer.load_public_state(state)
            assert state.most_held <= 1, (
                "load_public_state must release each tensor before it looks up the next (LazyParameters), it held "
                f"{state.most_held}"
            )
        joiner.optimizer.load_parameters({name: master.clone() for name, master in first.masters.items()})
        members = [*replicas, joiner]
        play_rounds(
            members,
            rounds=50,
            first=6,
            learning_rate=self.learning_rate,
            after_round=lambda: self.assert_equal_masters(members),
        )

    @pytest.mark.parametrize("how", ["unknown", "missing", "reshaped"])
    def test_public_state_of_another_model_changes_nothing(self, how: str) -> None:
        """Other names or shapes are rejected before anything is changed."""
        replica = self.replica()
        replica.optimizer.apply(1, [self.payload()], learning_rate=self.learning_rate, own_accepted=False)
        before = digest(shared(replica.optimizer))
        wrong = {name: torch.zeros_like(tensor) for name, tensor in replica.optimizer.public_state.items()}
        if how != "unknown" and not wrong:
            pytest.skip("this optimizer has no public state")
        if how == "unknown":
            wrong["unknown"] = torch.zeros(3)
        elif how == "missing":
            del wrong[max(wrong)]
        else:
            wrong[max(wrong)] = torch.zeros(*wrong[max(wrong)].shape, 2)
        for state in (wrong, _OneAtATime(wrong)):
            wanted = (
                f"load_public_state must raise ModelError for {how} tensors ({type(state).__name__}); check_public_state does it"
            )
            with raises(ModelError, wanted):
                replica.optimizer.load_public_state(state)
        assert digest(shared(replica.optimizer)) == before, (
            f"load_public_state that raised ModelError for {how} tensors must change nothing, masters or public state changed"
        )

    def test_a_restarted_replica_goes_on_with_its_private_state(self) -> None:
        """A replica that loads another's masters and private state sends the payload that the other would have sent."""
        before, after = self.replica(), self.replica()
        for step in (1, 2):
            before.model.gradients(toy_samples(step), micro_batch_size=1)
            payload = before.optimizer.compress(step, learning_rate=self.learning_rate)
            before.optimizer.apply(step, [payload], learning_rate=self.learning_rate, own_accepted=True)
        copy_shared(before.optimizer, into=after.optimizer)
        after.optimizer.load_private_state({name: tensor.clone() for name, tensor in before.optimizer.private_state().items()})
        payloads = []
        for replica in (before, after):
            replica.optimizer.load_lookahead(learning_rate=self.learning_rate)
            replica.model.gradients(toy_samples(3), micro_batch_size=1)
            payloads.append(replica.optimizer.compress(3, learning_rate=self.learning_rate))
        assert payloads[0] == payloads[1], (
            "private_state must have all that a restarted replica needs to go on, and its next payload is another one than that "
            f"of the replica that did not restart: {shown(payloads[1])} instead of {shown(payloads[0])}; is momentum or a "
            "residual missing?"
        )

    def test_private_state_of_another_model_changes_nothing(self) -> None:
        """Other names or shapes, and values that are not finite, are rejected before anything is changed."""
        replica = self.replica()
        replica.model.gradients(toy_samples(1), micro_batch_size=1)
        replica.optimizer.compress(1, learning_rate=self.learning_rate)
        good = {name: tensor.clone() for name, tensor in replica.optimizer.private_state().items()}
        wrongs = {"an unknown name": {**good, "unknown": torch.zeros(3)}}
        if good:
            name = max(good, key=lambda name: good[name].numel())
            wrongs["a missing name"] = {key: tensor for key, tensor in good.items() if key != name}
            wrongs["another shape"] = {**good, name: torch.zeros(5)}
            wrongs["values that are not finite"] = {**good, name: torch.full_like(good[name], float("nan"))}
        for how, wrong in wrongs.items():
            with raises(ModelError, f"load_private_state must raise ModelError for {how}"):
                replica.optimizer.load_private_state(wrong)
        assert digest(replica.optimizer.private_state()) == digest(good), (
            "load_private_state that raised ModelError must change nothing; of the private state "
            f"{differences(good, replica.optimizer.private_state())}"
        )


class _OneAtATime(LazyParameters):
    """Makes each tensor on lookup, and records how many earlier tensors were still referenced then."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._made: list[weakref.ref[torch.Tensor]] = []
        self.most_held = 0

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        self.most_held = max(self.most_held, sum(made() is not None for made in self._made))
        made = self._tensors[name].clone()
        self._made.append(weakref.ref(made))
        return made
