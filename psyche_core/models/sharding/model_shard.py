"""One rank's part of a divided model. All ranks call their parts in the same way; rank 0's part also has the inputs and outputs.

Order of the collectives of one call: batch, weights (sent for each call, because the optimizer writes them in between), passes,
sums of the losses, gradients, and digests of the gradients that must be equal on all ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import torch

from psyche_core.errors import ModelError
from psyche_core.hookspecs import ShardingContext
from psyche_core.interfaces.sharding import ShardingEngine
from psyche_core.models.hf.batches import Batch
from psyche_core.models.hf.empty_model import build_empty_model, write_buffers
from psyche_core.models.hf.replica import Replica
from psyche_core.models.sharding.batch_split import passes_of
from psyche_core.models.sharding.commands import Build, Work
from psyche_core.models.sharding.devices import on_device
from psyche_core.models.sharding.group.collectives import TorchGroup

_DIGEST_BYTES = 32


class ModelShard:
    """One rank's part, see the module. buffers: of the whole model, by name, on rank 0; None on others. Raises ModelError."""

    def __init__(
        self,
        build: Build,
        group: TorchGroup,
        *,
        create_engine: Callable[[ShardingContext], ShardingEngine],
        buffers: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self._group = group
        with on_device(group.device):
            module, configuration = build_empty_model(
                build.config, attention=build.attention, gradient_checkpointing=build.gradient_checkpointing
            )
            write_buffers(module, self._buffers(module, buffers))
            context = ShardingContext(module=module, model_type=configuration.model_type, group=group, device=group.device)
            self._engine = create_engine(context)
            self._replica = Replica(self._engine.module, device=group.device, dtype=build.dtype)

    @property
    def engine(self) -> ShardingEngine:
        """The engine that divides the model."""
        return self._engine

    def work(self, work: Work, *, batch: Batch | None = None, weights: Mapping[str, torch.Tensor] | None = None) -> float:
        """Do the computation of one call; `gradients` collects the gradients after it. batch, weights: complete, only on rank 0.

        Returns on rank 0 the cross-entropy in nats, summed over the batch, and 0 on the other ranks.
        """
        group = self._group
        with on_device(self._group.device):
            shared = self._share(work, batch)
            self._engine.scatter(weights)
            self._engine.drop_gradients()
            passes = passes_of(
                shared, number=group.data_rank, shares=group.data_parallelism, micro_batch_size=work.micro_batch_size
            )
            if work.train:
                sums = self._replica.accumulate(passes, predictions=work.predictions)
                self._engine.finish()
            else:
                sums = self._replica.measure(passes)
            total = torch.tensor([sum(sums)], dtype=torch.float64, device=group.device)
            gathered = group.gather(total)
        if gathered is None:
            return 0.0
        return sum(float(value) for value in gathered[:: group.tensor_parallelism])  # equal on all ranks of a tensor group

    def gradients(self, into: Mapping[str, torch.nn.Parameter] | None = None) -> None:
        """Collect the complete gradients on rank 0. into: rank 0's parameters, whose `.grad` is set."""
        with on_device(self._group.device):
            for name in self._engine.placements:
                whole = self._engine.gather_full(name)
                if into is not None:
                    into[name].grad = whole

    def check(self) -> None:
        """Compare the gradients that must be equal on all ranks of a tensor group. Rank 0 raises ModelError if they differ."""
        group, names = self._group, self._engine.replicated
        if group.tensor_parallelism == 1 or not names:
            return

        digests = b"".join(_digest(self._engine.local_grad(name)) for name in names)
        with on_device(self._group.device):
            gathered = group.gather(torch.frombuffer(bytearray(digests), dtype=torch.uint8).to(group.device))
        if gathered is None:
            return

        tables = [bytes(digest.cpu().numpy()) for digest in gathered]
        for at, name in enumerate(names):
            found = [table[at * _DIGEST_BYTES : (at + 1) * _DIGEST_BYTES] for table in tables]
            for first in range(0, group.size, group.tensor_parallelism):
                if len(set(found[first : first + group.tensor_parallelism])) > 1:
                    message = (
                        f"the ranks disagree about the gradient of {name}, so this model would be trained wrongly; "
                        "use --data-parallelism in place of --tensor-parallelism, and report it"
                    )
                    raise ModelError(message)

    def drop_gradients(self) -> None:
        """Delete this rank's pieces of the gradients."""
        self._engine.drop_gradients()

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()

    def _buffers(self, module: torch.nn.Module, given: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
        values: dict[str, torch.Tensor] = {}
        for name, buffer in sorted(module.named_buffers()):
            if given is not None and (name not in given or given[name].shape != buffer.shape):
                message = (
                    f"buffer {name} of the model differs from the one that its config.json defines; the model cannot be divided"
                )
                raise ModelError(message)

            value = buffer if given is None else given[name].detach().to(buffer.dtype)
            values[name] = value.to(self._group.device, copy=True)
            self._group.broadcast(values[name])
        return values

    def _share(self, work: Work, batch: Batch | None) -> Batch:
        def shared(given: torch.Tensor | None, length: int) -> torch.Tensor:
            if given is None:
                given = torch.empty(work.rows, length, dtype=torch.int64)
            given = given.to(self._group.device)
            self._group.broadcast(given)
            return given

        ids = shared(None if batch is None else batch.ids, work.length)
        targets = shared(None if batch is None else batch.targets, work.length - 1)
        positions = shared(None if batch is None else batch.positions, work.length) if work.positions else None
        return Batch(ids, targets, positions, work.packed)


def _digest(gradient: torch.Tensor | None) -> bytes:
    if gradient is None:
        return bytes(_DIGEST_BYTES)
    return hashlib.sha256(gradient.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).digest()
