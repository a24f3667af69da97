"""Conformance of an optimizer. A plugin's whole test is:

    class TestSparseSign(OptimizerConformance):
        def make_optimizer(self, model):
            return SparseSign(Settings(), model)

Every optimizer goes through the overlapped schedule of protocol section 3 (apply s - 2 before training s), with members that
have no share in a round and payloads that are not accepted, on a toy model with odd shapes. The only test of training quality is
that the loss falls.
"""

from __future__ import annotations

import random
import tracemalloc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import pytest
import torch

from psyche_core.errors import ModelError, NonFiniteError, PayloadRejected
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.parameters import LazyParameters
from psyche_core.testing.replicas import Replica, copy_shared, digest, play_rounds, shared
from psyche_core.testing.toy_model import TOY_SHAPES, ToyModel, toy_samples

__all__ = ["OptimizerConformance", "Replica", "copy_shared", "digest", "play_rounds", "shared"]

FUZZED_PAYLOADS = 300
MEMORY_PER_CHECK = 64
"""`check` may allocate at most this many times `max_payload_bytes`, plus one MiB."""


class OptimizerConformance:
    """The requirements for every `Optimizer`. Subclass it and write `make_optimizer`; override the attributes below.

    Attributes:
        learning_rate: used in all steps.
        resends_refused: False for an optimizer that drops updates that were not accepted; the contract allows this only if the
            optimizer documents it.
    """

    learning_rate: ClassVar[float] = 0.01
    resends_refused: ClassVar[bool] = True

    def make_optimizer(self, model: Model) -> Optimizer:
        """A new optimizer of `model`."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def one_thread(self) -> Iterator[None]:
        """One thread is fastest for small tensors and on shared machines."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)

    def replica(self, shapes: Mapping[str, tuple[int, ...]] = TOY_SHAPES) -> Replica:
        """A new member with the common first weights."""
        model = ToyModel(shapes)
        return Replica(model, self.make_optimizer(model))

    def payload(self, *, step: int = 1, data: int = 1) -> bytes:
        """The first payload of a new member."""
        return self.replica().train(step, data=data, learning_rate=self.learning_rate)

    def assert_equal_masters(self, replicas: Sequence[Replica]) -> None:
        """Check that masters and public state are equal: bit for bit if the optimizer is exact, else approximately."""
        first, *others = [replica.optimizer for replica in replicas]
        for other in others:
            if first.exact:
                assert digest(shared(other)) == digest(shared(first))
            else:
                for name, tensor in shared(first).items():
                    torch.testing.assert_close(shared(other)[name], tensor, rtol=1e-4, atol=self.learning_rate / 10)

    def test_masters_are_the_models_weights_in_float32(self) -> None:
        """Masters start as the model's weights, float32, ascending by name."""
        model = ToyModel(dtype=torch.bfloat16)
        masters = self.make_optimizer(model).masters
        assert list(masters) == sorted(TOY_SHAPES)
        for name, master in masters.items():
            assert master.dtype == torch.float32
            assert torch.equal(master, model.parameters[name].detach().float())

    def test_lookahead_and_gradients_do_not_change_the_masters(self) -> None:
        """Only `apply` and loading move masters and public state."""
        replica = self.replica()
        replica.optimizer.apply(1, [self.payload()], learning_rate=self.learning_rate, own_accepted=False)
        before = digest(shared(replica.optimizer))
        for step in (2, 3):
            replica.optimizer.check(replica.train(step, data=step, learning_rate=self.learning_rate))
        replica.optimizer.load_lookahead(learning_rate=self.learning_rate)
        replica.optimizer.load_masters()
        assert digest(shared(replica.optimizer)) == before

    def test_load_masters_writes_the_compute_weights(self) -> None:
        """`load_masters` is used for evaluation."""
        replica = self.replica()
        replica.train(1, data=1, learning_rate=self.learning_rate)
        replica.optimizer.load_lookahead(learning_rate=self.learning_rate)
        replica.optimizer.load_masters()
        assert digest(replica.model.parameters) == digest(replica.optimizer.masters)

    def test_apply_moves_the_masters(self) -> None:
        """A payload has an effect."""
        replica = self.replica()
        before = digest(replica.optimizer.masters)
        replica.optimizer.apply(1, [self.payload()], learning_rate=self.learning_rate, own_accepted=False)
        assert digest(replica.optimizer.masters) != before

    def test_no_payloads_leave_the_masters(self) -> None:
        """An empty round changes nothing, weight decay and public state included."""
        replica = self.replica()
        replica.optimizer.apply(1, [self.payload()], learning_rate=self.learning_rate, own_accepted=False)
        replica.train(2, data=1, learning_rate=self.learning_rate)
        before = digest(shared(replica.optimizer))
        replica.optimizer.apply(2, [], learning_rate=self.learning_rate, own_accepted=False)
        assert digest(shared(replica.optimizer)) == before

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
        assert digest(replicas[0].optimizer.masters) != start

    def test_the_loss_falls(self) -> None:
        """The parameters of a single member approach their targets."""
        replica = self.replica()
        for parameter in replica.model.parameters.values():
            parameter.data.fill_(0.3)
        replica.optimizer.load_parameters({name: value.detach() for name, value in replica.model.parameters.items()})
        before = replica.model.loss(toy_samples(0), micro_batch_size=1)
        play_rounds([replica], rounds=20, learning_rate=self.learning_rate)
        replica.optimizer.load_masters()
        assert replica.model.loss(toy_samples(0), micro_batch_size=1) < before

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
    def test_a_gradient_that_is_not_finite_changes_nothing(self, bad: float) -> None:
        """`compress` raises NonFiniteError, and the next payload is the same as without the bad gradient."""
        hit, twin = self.replica(), self.replica()
        for replica in (hit, twin):
            replica.train(1, data=1, learning_rate=self.learning_rate)

        before = digest(hit.optimizer.masters)
        hit.model.gradients(toy_samples(2), micro_batch_size=1)
        hit.model.parameters["odd.prime.weight"].grad[13, 1] = bad  # type: ignore[index]  # set by gradients
        with pytest.raises(NonFiniteError):
            hit.optimizer.compress(2, learning_rate=self.learning_rate)

        assert digest(hit.optimizer.masters) == before
        again = [replica.train(2, data=3, learning_rate=self.learning_rate) for replica in (hit, twin)]
        assert again[0] == again[1]

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
        assert later[0] != later[1]

    def test_load_parameters_replaces_masters_and_forgets(self) -> None:
        """A member that resynced behaves like a new one."""
        used, fresh = self.replica(), self.replica()
        start = {name: master.clone() for name, master in fresh.optimizer.masters.items()}
        for step in (1, 2):
            payload = used.train(step, data=step, learning_rate=self.learning_rate)
        used.optimizer.apply(1, [payload], learning_rate=self.learning_rate, own_accepted=True)
        copy_shared(fresh.optimizer, into=used.optimizer)
        assert digest(used.optimizer.masters) == digest(start)
        later = [replica.train(3, data=3, learning_rate=self.learning_rate) for replica in (used, fresh)]
        assert later[0] == later[1]

    def test_parameters_to_load_may_be_made_one_at_a_time(self) -> None:
        """A model from disk is never in memory as a whole: the optimizer releases each tensor before it looks up the next."""
        replica = self.replica()
        wanted = {name: torch.full_like(master, 0.25) for name, master in replica.optimizer.masters.items()}
        lazy = _OneAtATime(wanted)
        replica.optimizer.load_parameters(lazy)
        assert digest(replica.optimizer.masters) == digest(wanted)
        assert lazy.most_held <= 1

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
            with pytest.raises(ModelError):
                replica.optimizer.load_parameters(parameters)
        assert digest(replica.optimizer.masters) == before

    def test_public_state_is_zero_at_first(self) -> None:
        """float32 tensors, ascending by name, on the masters' device; zero stands for a checkpoint without them."""
        optimizer = self.replica().optimizer
        state, masters = optimizer.public_state, list(optimizer.masters.values())
        assert list(state) == sorted(state)
        for tensor in state.values():
            assert (tensor.dtype, tensor.device) == (torch.float32, masters[0].device)
            assert not tensor.contiguous().view(torch.int32).any()

    def test_load_parameters_leaves_the_public_state(self) -> None:
        """The client loads masters and public state separately, and may give an optimizer its own tensors."""
        replica = self.replica()
        replica.optimizer.apply(1, [self.payload()], learning_rate=self.learning_rate, own_accepted=False)
        before = digest(shared(replica.optimizer))
        if replica.optimizer.public_state:
            replica.optimizer.load_public_state(replica.optimizer.public_state)
        replica.optimizer.load_parameters(replica.optimizer.masters)
        assert digest(shared(replica.optimizer)) == before

    def test_a_member_that_joins_stays_equal_over_50_rounds(self) -> None:
        """It loads another's masters and public state, lazily, and trains and applies what the others do."""
        replicas = [self.replica() for _ in range(2)]
        play_rounds(replicas, rounds=5, learning_rate=self.learning_rate)
        joiner, first = self.replica(), replicas[0].optimizer
        if first.public_state:
            assert any(bool(tensor.any()) for tensor in first.public_state.values()), "the state has not moved in five rounds"
            state = _OneAtATime({name: tensor.clone() for name, tensor in first.public_state.items()})
            joiner.optimizer.load_public_state(state)
            assert state.most_held <= 1
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
            with pytest.raises(ModelError):
                replica.optimizer.load_public_state(state)
        assert digest(shared(replica.optimizer)) == before

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
        assert payloads[0] == payloads[1]

    def test_private_state_of_another_model_changes_nothing(self) -> None:
        """Other names or shapes, and values that are not finite, are rejected before anything is changed."""
        replica = self.replica()
        replica.model.gradients(toy_samples(1), micro_batch_size=1)
        replica.optimizer.compress(1, learning_rate=self.learning_rate)
        good = {name: tensor.clone() for name, tensor in replica.optimizer.private_state().items()}
        wrongs = [{**good, "unknown": torch.zeros(3)}]
        if good:
            name = max(good, key=lambda name: good[name].numel())
            wrongs.append({key: tensor for key, tensor in good.items() if key != name})
            wrongs.append({**good, name: torch.zeros(5)})
            wrongs.append({**good, name: torch.full_like(good[name], float("nan"))})
        for wrong in wrongs:
            with pytest.raises(ModelError):
                replica.optimizer.load_private_state(wrong)
        assert digest(replica.optimizer.private_state()) == digest(good)

    def test_valid_payloads_pass_and_fit(self) -> None:
        """Zero, tiny and large gradients give payloads that pass `check` and are not longer than `max_payload_bytes`."""
        optimizer = self.replica().optimizer
        spiky = self.replica()
        for step, scale in enumerate((0.0, 1e-30, 1.0, 1e4), start=1):
            spiky.model.gradients(toy_samples(step), micro_batch_size=1)
            for parameter in spiky.model.parameters.values():
                assert parameter.grad is not None
                parameter.grad.mul_(scale)

            payload = spiky.optimizer.compress(step, learning_rate=self.learning_rate)
            optimizer.check(payload)
            assert len(payload) <= optimizer.max_payload_bytes

    @pytest.mark.parametrize("cut", [1, 2, 7, 100])
    def test_truncated_and_lengthened_payloads_are_rejected(self, cut: int) -> None:
        """Every byte counts: a shorter or longer payload is invalid."""
        optimizer, payload = self.replica().optimizer, self.payload()
        for bad in (payload[:-cut], payload[:cut], payload + bytes(cut), payload[cut:], payload * (cut + 1)):
            with pytest.raises(PayloadRejected):
                optimizer.check(bad)

    def test_payloads_of_another_model_are_rejected(self) -> None:
        """Payloads of a model with another name, shape or number of parameters."""
        payload = self.payload()
        renamed = {("x" + name if name == "odd.bias" else name): shape for name, shape in TOY_SHAPES.items()}
        turned = {**TOY_SHAPES, "embed.weight": (64, 96)}
        fewer = {name: shape for name, shape in TOY_SHAPES.items() if name != "odd.single"}
        for shapes in (renamed, turned, fewer):
            with pytest.raises(PayloadRejected):
                self.replica(shapes).optimizer.check(payload)

    def test_fuzzed_payloads_are_rejected_or_harmless_in_bounded_memory(self) -> None:
        """Random bytes, flipped bits and overwritten lengths raise PayloadRejected, or leave the masters finite when applied."""
        replica, payload, dice = self.replica(), self.payload(), random.Random(5)
        limit = MEMORY_PER_CHECK * replica.optimizer.max_payload_bytes + 2**20
        survivors = []
        for number in range(FUZZED_PAYLOADS):
            bad = _spoil(payload, number, dice)
            tracemalloc.start()
            try:
                replica.optimizer.check(bad)
                survivors.append(bad)
            except PayloadRejected:
                pass
            finally:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()

            assert peak <= limit

        for good in survivors[:20]:
            replica.optimizer.apply(1, [good], learning_rate=self.learning_rate, own_accepted=False)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in shared(replica.optimizer).values())

    def test_garbage_is_rejected(self) -> None:
        """Zeros, ones and random bytes of many lengths."""
        optimizer, dice = self.replica().optimizer, random.Random(6)
        for length in (0, 1, 5, 22, 100, optimizer.max_payload_bytes, optimizer.max_payload_bytes + 1):
            for filler in (bytes(length), b"\xff" * length, dice.randbytes(length)):
                with pytest.raises(PayloadRejected):
                    optimizer.check(filler)


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


def _spoil(payload: bytes, number: int, dice: random.Random) -> bytes:
    """Damage a payload in one of three ways.

    A bit near the start or anywhere is flipped, or four bytes are overwritten with a value that reads as a huge length.
    """
    spoiled = bytearray(payload)
    at = dice.randrange(min(64, len(payload)) if number % 3 == 0 else len(payload))
    if number % 3 == 2:
        spoiled[at : at + 4] = dice.choice([b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\xff\xff\xff\x7f"])[: len(payload) - at]
    else:
        spoiled[at] ^= 1 << dice.randrange(8)
    return bytes(spoiled)
