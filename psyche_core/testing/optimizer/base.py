"""What the conformance classes of optimizers share: how an optimizer is made, and members that use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch

from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.contracts import CONTRACTS, Contract
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.optimizer.replicas import Replica, digest, shared
from psyche_core.testing.sentences import assert_close, differences
from psyche_core.testing.toy_model import TOY_SHAPES, ToyModel


class OptimizerTests(Conformance):
    """Tests of an optimizer, which a subclass makes; attributes as for `OptimizerConformance`."""

    contract: ClassVar[Contract] = CONTRACTS["optimizer"]
    optional: ClassVar[Mapping[str, str]] = {
        "exact": "all members get the same bits, whatever their machines",
        "public-state": "state that follows from accepted payloads, which members share",
        "inner-steps": "several steps on local weights for each result",
    }
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
                assert digest(shared(other)) == digest(shared(first)), (
                    "masters and public state must be equal on all replicas after the same payloads, bit for bit, since exact is "
                    f"True; on one of them {differences(shared(first), shared(other))}"
                )
            else:
                for name, tensor in shared(first).items():
                    wanted = (
                        f"masters and public state must be nearly equal after the same payloads on all replicas, {name} is not"
                    )
                    assert_close(shared(other)[name], tensor, wanted, rtol=1e-4, atol=self.learning_rate / 10)
