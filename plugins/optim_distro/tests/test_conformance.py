"""The contract of every optimizer, for DisTrO with signs, compiled where that can be had and plain, and with values."""

from __future__ import annotations

import pytest

from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.testing.optimizer import OptimizerConformance
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings


class TestDistroOneBit(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> Optimizer:
        return DistroOptimizer(
            DistroSettings(compression_topk=4, quantize_1bit=True, weight_decay=0.1, clip_grad_norm=1.0), model
        )


class TestDistroOneBitInPlainTorch(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> Optimizer:
        settings = DistroSettings(compression_topk=4, quantize_1bit=True, weight_decay=0.1, clip_grad_norm=1.0)
        return DistroOptimizer(settings, model, compiled=False)


class TestDistroValues(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> Optimizer:
        return DistroOptimizer(DistroSettings(compression_topk=4, compression_chunk=32), model)


class TestDistroWithASecondStage(OptimizerConformance):
    capabilities = frozenset({"exact", "public-state"})

    def make_optimizer(self, model: Model) -> Optimizer:
        settings = DistroSettings(compression_topk=4, quantize_1bit=True, weight_decay=0.1, second_stage="rmsprop")
        return DistroOptimizer(settings, model)


class TestDistroPreconditioned(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> Optimizer:
        settings = DistroSettings(
            compression_topk=4,
            quantize_1bit=True,
            weight_decay=0.1,
            clip_grad_norm=1.0,
            gradient_beta2=0.9,
            compression_subtract=0.6,
        )
        return DistroOptimizer(settings, model)


class TestDistroClipped(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> Optimizer:
        settings = DistroSettings(compression_topk=4, quantize_1bit=True, weight_decay=0.1, second_stage="clip")
        return DistroOptimizer(settings, model)


class TestDistroValuesClipped(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> Optimizer:
        return DistroOptimizer(DistroSettings(compression_topk=4, compression_chunk=32, second_stage="clip"), model)


class TestDistroOrthogonal(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> Optimizer:
        settings = DistroSettings(
            compression_topk=4, quantize_1bit=True, weight_decay=0.1, clip_grad_norm=1.0, second_stage="orthogonal"
        )
        return DistroOptimizer(settings, model)


class TestDistroAheadByPayload(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> Optimizer:
        settings = DistroSettings(
            compression_topk=4,
            quantize_1bit=True,
            weight_decay=0.1,
            clip_grad_norm=1.0,
            gradient_beta2=0.9,
            compression_subtract=0.6,
            lookahead="payload",
        )
        return DistroOptimizer(settings, model)


RATES = {"embedding": 6.25, "norm": 0.5, "weight_decay": {"norm": 0}, "by_name": [{"pattern": "layers.2.*", "rate": 3}]}


class TestDistroWithRateGroups(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> Optimizer:
        given = {"compression_topk": 4, "quantize_1bit": True, "weight_decay": 0.1, "clip_grad_norm": 1.0, "rates": RATES}
        return DistroOptimizer(DistroSettings.model_validate(given), model)


class TestDistroValuesWithRateGroups(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> Optimizer:
        given = {"compression_topk": 4, "compression_chunk": 32, "weight_decay": 0.1, "rates": RATES}
        return DistroOptimizer(DistroSettings.model_validate(given), model)


def test_the_conformance_class_is_not_collected_without_an_optimizer() -> None:
    with pytest.raises(NotImplementedError):
        OptimizerConformance().replica()
