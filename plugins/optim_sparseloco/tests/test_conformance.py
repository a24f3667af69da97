"""The contract of every optimizer, for SparseLoCo with several inner steps, with one, and with rate groups."""

from __future__ import annotations

from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.testing.optimizer import OptimizerConformance
from psyche_optim_sparseloco.optimizer import SparseLoCo
from psyche_optim_sparseloco.settings import SparseLoCoSettings


class TestSparseLoCo(OptimizerConformance):
    capabilities = frozenset({"exact", "inner-steps"})

    def make_optimizer(self, model: Model) -> Optimizer:
        settings = SparseLoCoSettings(inner_steps=4, topk=16, chunk_size=512, weight_decay=0.1, clip_grad_norm=1.0)
        return SparseLoCo(settings, model)


class TestSparseLoCoWithOneInnerStep(OptimizerConformance):
    def make_optimizer(self, model: Model) -> Optimizer:
        return SparseLoCo(SparseLoCoSettings(inner_steps=1, topk=8, chunk_size=100, error_decay=0.5), model)


class TestSparseLoCoWithRateGroups(OptimizerConformance):
    def make_optimizer(self, model: Model) -> Optimizer:
        rates = {"embedding": 6.25, "norm": 0.5, "weight_decay": {"norm": 0}, "by_name": [{"pattern": "layers.2.*", "rate": 3}]}
        given = {"inner_steps": 2, "topk": 16, "chunk_size": 64, "weight_decay": 0.1, "rates": rates}
        return SparseLoCo(SparseLoCoSettings.model_validate(given), model)
