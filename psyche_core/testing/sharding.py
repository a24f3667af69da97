"""Conformance of a sharding engine. A plugin's whole test is:

    class TestMyEngine(ShardingConformance):
        sharding = "mine"  # as its entry point says: other processes find it by that name
        create = staticmethod(MyEngine)
        ranks = 2
        models = {"llama": LLAMA}
        refused = {"gpt2": GPT2}

Ranks are real processes on this machine's CPU, started once for a class. The divided model is compared with the whole one. At
these tiny sizes, a gradient that lacks a rank's part is wrong by far more than rounding. Speed is not tested.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from psyche_core.builtin.hf_models import create_auto, divide
from psyche_core.errors import ModelError
from psyche_core.hookspecs import ModelContext, Parallelism, ShardingContext
from psyche_core.interfaces.data import IGNORED_LABEL, Samples
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.sharding import Axes, RankGroup, ShardingEngine
from psyche_core.models.sharding.controller import RankController
from psyche_core.models.sharding.model import ShardedModel
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.contracts import CONTRACTS, Contract
from psyche_core.testing.model import ModelConformance, gradients_of
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.one_rank import Alone as Alone
from psyche_core.testing.one_rank import context_of as context_of
from psyche_core.testing.sentences import raises, shown

Degree = tuple[int, int]
"""Number of data-parallel and of tensor-parallel ranks."""

TOLERANCE = 1e-6
"""Absolute tolerance for losses in nats and for gradients.

Rounding errors are about 1e-8 at these sizes, a missing part changes 1e-4 or more.
"""


class ShardingConformance(Conformance):
    """The requirements for every `ShardingEngine`. Subclass it; override the attributes below.

    Attributes:
        sharding: the engine's plugin name.
        create: its factory.
        ranks: number of processes, this one included.
        degrees: (data, tensor) pairs to test; None for all pairs of powers of two.
        models: configurations that the engine divides over every tensor group of these ranks.
        refused: configurations that it rejects for tensor parallelism.
    """

    contract: ClassVar[Contract] = CONTRACTS["sharding"]
    sharding: ClassVar[str]
    ranks: ClassVar[int] = 2
    degrees: ClassVar[tuple[Degree, ...] | None] = None
    models: ClassVar[Mapping[str, Mapping[str, Any]]]
    refused: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @staticmethod
    def create(context: ShardingContext) -> ShardingEngine:
        """The factory under test; write `create = staticmethod(your_factory)`."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrise the tests with every model and every degree."""
        if "degree" in metafunc.fixturenames:
            degrees = self.degrees or tuple((self.ranks // tensor, tensor) for tensor in (1, 2, 4, 8) if tensor <= self.ranks)
            metafunc.parametrize("degree", degrees, ids=[f"{data}x{tensor}" for data, tensor in degrees])
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", self.models)

    @pytest.fixture(scope="class")
    @classmethod
    def controller(cls) -> Iterator[RankController]:
        """The running ranks."""
        torch.set_num_threads(1)
        controller = RankController(Parallelism(data=cls.ranks, sharding=cls.sharding), device_name="cpu")
        yield controller
        controller.close()

    def pair(
        self, controller: RankController, folder: Path, name: str, degree: Degree, **changes: Any
    ) -> tuple[Model, ShardedModel]:
        """The whole and the divided model."""
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(dict(self.models[name])), encoding="utf-8")
        context = ModelContext(**{"source": folder, "max_seq_len": 16, "seed": bytes(32), "device": "cpu", **changes})
        data, tensor = degree
        parallelism = Parallelism(data=data, tensor=tensor, sharding=self.sharding)
        divided = divide(replace(context, parallelism=parallelism, create_engine=self.create), controller=controller)
        divided.check_every_time = True
        return create_auto(context), divided

    def assert_same_slope(self, whole: Model, divided: Model, samples: Samples, *, tolerance: float = TOLERANCE) -> None:
        """Check that loss and gradients are those of the whole model."""
        for size in sorted({samples.count, min(samples.count, 2)}):
            expected = whole.gradients(samples, micro_batch_size=size)
            came = divided.gradients(samples, micro_batch_size=size)
            assert came == pytest.approx(expected, abs=tolerance), (
                f"the divided model's loss must be the whole model's, {shown(expected)} up to {tolerance:g}, got {shown(came)} "
                f"from gradients with {samples.count} rows in micro batches of {size}"
            )
            wanted = gradients_of(whole)
            for name, gradient in gradients_of(divided).items():
                apart = float((gradient - wanted[name]).abs().max())
                assert apart <= tolerance, (
                    f"gathered gradients must be the whole model's up to {tolerance:g}, got one {apart:.3g} away in {name}, with "
                    f"{samples.count} rows; does finish add up all ranks' rows?"
                )
            came = divided.loss(samples, micro_batch_size=size)
            assert came == pytest.approx(expected, abs=tolerance), (
                f"the divided model's loss must be the whole model's, {shown(expected)} up to {tolerance:g}, got "
                f"{shown(came)} from loss"
            )

    def test_loss_and_gradients_are_the_whole_models_and_ranks_agree(
        self, controller: RankController, name: str, degree: Degree, tmp_path: Path
    ) -> None:
        """With five rows and with one, some ranks have fewer rows than others, or none.

        Gradients of replicated parameters are compared bit for bit.
        """
        whole, divided = self.pair(controller, tmp_path, name, degree)
        for count in (5, 1):
            self.assert_same_slope(whole, divided, ModelConformance().samples(whole, count=count))

    def test_labels_and_packed_texts_are_the_whole_models(
        self, controller: RankController, name: str, degree: Degree, tmp_path: Path
    ) -> None:
        """Rows differ in their number of predicted tokens, so the sum must be divided by the number in all rows together."""
        whole, divided = self.pair(controller, tmp_path, name, degree)
        self.assert_same_slope(whole, divided, packed(ModelConformance().samples(whole, count=5)))

    def test_weights_are_sent_anew_for_every_call(self, controller: RankController, degree: Degree, tmp_path: Path) -> None:
        """The optimizer changes the weights on rank 0 between calls, and `loss` is called between two calls of `gradients`."""
        whole, divided = self.pair(controller, tmp_path, next(iter(self.models)), degree)
        samples = ModelConformance().samples(whole, count=3)
        generator = torch.Generator().manual_seed(1)
        for _ in range(2):
            for key, tensor in whole.parameters.items():
                change = 0.05 * torch.randn(tensor.shape, generator=generator)
                tensor.data.add_(change)
                divided.parameters[key].data.add_(change)
            expected = whole.gradients(samples, micro_batch_size=3)
            came = divided.loss(samples, micro_batch_size=3)
            assert came == pytest.approx(expected, abs=TOLERANCE), (
                f"the weights of rank 0 change between calls and must be scattered anew for each; loss must be {shown(expected)} "
                f"up to {TOLERANCE:g}, got {shown(came)}"
            )
            self.assert_same_slope(whole, divided, samples)

    def test_memory_savers_change_nothing(self, controller: RankController, degree: Degree, tmp_path: Path) -> None:
        """Gradient checkpointing gives the whole model's gradients; bfloat16 gives them within a larger tolerance."""
        name = next(iter(self.models))
        whole, divided = self.pair(controller, tmp_path / "checkpointed", name, degree, gradient_checkpointing=True)
        self.assert_same_slope(whole, divided, ModelConformance().samples(whole, count=3))
        whole, divided = self.pair(controller, tmp_path / "rounded", name, degree, dtype="bfloat16")
        self.assert_same_slope(whole, divided, ModelConformance().samples(whole, count=3), tolerance=0.02)

    def test_what_is_divided_wrongly_is_refused_by_name(self, tmp_path: Path) -> None:
        """The error is one sentence that names the architecture, raised before anything is computed."""
        for name, config in self.refused.items():
            context = context_of(tmp_path, config, _Nobody())
            wanted = f"create must raise ModelError for {name}, which it does not divide correctly, and name the architecture"
            with raises(ModelError, wanted, match=context.model_type) as raised:
                self.create(context)
            assert "\n" not in str(raised.value), (
                f"the ModelError for {name} must be one sentence, got {shown(str(raised.value))}"
            )


class _Nobody(RankGroup):
    """Two ranks that share weights, without a connection between them."""

    rank = 0
    data_parallelism = 1
    tensor_parallelism = 2
    mesh = None

    def broadcast(self, tensor: Any) -> None:
        raise NotImplementedError

    def scatter(self, pieces: Any, into: Any) -> None:
        raise NotImplementedError

    def gather(self, piece: Any, *, over: Axes = "both") -> list[Any] | None:
        raise NotImplementedError

    def add_up(self, tensor: Any, *, over: str) -> None:
        raise NotImplementedError


def packed(samples: Samples) -> Samples:
    """Five rows of 12 tokens. Each has one or more texts and perhaps padding after them; some labels are ignored."""
    labels = list(struct.unpack("<60i", samples.tokens))
    labels[::7] = [IGNORED_LABEL] * len(labels[::7])
    lengths = ((5, 4, 2), (12,), (1, 1, 10), (3, 3, 3), (2, 9, 1))
    return replace(samples, labels=struct.pack("<60i", *labels), sequence_lengths=lengths)
