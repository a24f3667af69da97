"""Rank 0's model: the optimizer uses the complete model, but its computation is divided among the ranks.

`parameters` are complete float32 tensors on rank 0, with complete gradients. So payloads, digests, checkpoints and model sharing
do not depend on the number of ranks; results differ only by rounding. An optimizer may have its parts on the ranks, too. HfModel
reads and checks samples and saves the model. At the first call of `gradients`, digests of all ranks are compared, so that a
wrongly divided model is not trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from psyche_core.errors import ModelError
from psyche_core.hookspecs import ModelContext, PartContext
from psyche_core.interfaces.optimizer_parts import OptimizerPart, OptimizerParts
from psyche_core.models.hf.batches import Batch
from psyche_core.models.hf.configuration import CONFIG_FILE, Configuration
from psyche_core.models.hf.model import HfModel
from psyche_core.models.sharding.commands import Build, Divide, Work
from psyche_core.models.sharding.controller import RankController
from psyche_core.models.sharding.devices import rank_device
from psyche_core.models.sharding.parts import RankParts


class ShardedModel(HfModel):
    """A transformers causal LM divided among several processes.

    module, configuration: as for HfModel. context: its `parallelism` and `create_engine` must not be None. controller: existing
    ranks, which are not ended by `close`; None starts new ones. Raises ModelError, and ValueError for an incomplete context.
    """

    def __init__(
        self, module: Any, *, configuration: Configuration, context: ModelContext, controller: RankController | None = None
    ) -> None:
        parallelism, create_engine = context.parallelism, context.create_engine
        if parallelism is None or create_engine is None:
            message = "a divided model needs the context's parallelism and create_engine"
            raise ValueError(message)
        device = rank_device(context.device, 0)
        super().__init__(
            module, configuration=configuration, devices=(device,), dtype=context.dtype, max_seq_len=context.max_seq_len
        )
        self.check_every_time = False
        self._checked = False
        build = Build(
            config=self.description[CONFIG_FILE],
            sharding=parallelism.sharding,
            data=parallelism.data,
            tensor=parallelism.tensor,
            dtype=context.dtype,
            attention=context.attention,
            gradient_checkpointing=context.gradient_checkpointing,
        )
        self._ranks = parallelism.ranks
        self._own_controller = controller is None
        self._controller = controller or RankController(parallelism, device_name=context.device)
        try:
            shard = self._controller.build(build, create_engine=create_engine, buffers=dict(module.named_buffers()))
            shapes = {name: placement.shape for name, placement in shard.engine.placements.items()}
            if shapes != {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}:
                message = "the divided model has other parameters than the whole one"
                raise ModelError(message)
        except BaseException:
            self.close()
            raise

    @property
    def inference_module(self) -> None:
        """None: the computation is divided among processes."""
        return

    @property
    def controller(self) -> RankController:
        """The group of ranks, for code that manages processes."""
        return self._controller

    def optimizer_parts(
        self, optimizer: str, *, settings: Any, create_part: Callable[[PartContext], OptimizerPart]
    ) -> OptimizerParts:
        """Make a part of an optimizer on each rank, see `Model.optimizer_parts`. settings: a pydantic model."""
        given = settings.model_dump_json(exclude_unset=True).encode()
        divide = Divide(optimizer=optimizer, settings=given)
        number = self._controller.divide_optimizer(divide, settings=settings, create_part=create_part)
        return RankParts(self._controller, number=number, count=self._ranks)

    def close(self) -> None:
        """End the other ranks if this model started them. Idempotent."""
        if self._own_controller:
            self._controller.close()

    def _accumulate(self, batch: Batch, micro_batch_size: int) -> float:
        total = self._compute(batch, micro_batch_size, train=True)
        self._checked = True
        return total

    def _measure(self, batch: Batch, micro_batch_size: int) -> float:
        return self._compute(batch, micro_batch_size, train=False)

    def _compute(self, batch: Batch, micro_batch_size: int, *, train: bool) -> float:
        work = Work(
            train=train,
            check=train and (self.check_every_time or not self._checked),
            rows=batch.count,
            length=int(batch.ids.shape[1]),
            positions=batch.positions is not None,
            packed=batch.packed,
            micro_batch_size=micro_batch_size,
            predictions=batch.predictions,
        )
        weights: dict[str, torch.Tensor] = {name: parameter.detach() for name, parameter in self.parameters.items()}
        return self._controller.compute(work, batch=batch, weights=weights, into=self._first.parameters if train else None)
