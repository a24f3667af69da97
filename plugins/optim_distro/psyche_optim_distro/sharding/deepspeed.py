"""The sharding engine `deepspeed`: DeepSpeed's AutoTP over the tensor group. Ranks of a data group hold the same weights.

- Only AutoTP's sharding of linear layers is used. Gradients come from `.grad` after torch's own backward pass, since DeepSpeed's
  backward pass adds nothing without its optimizers. Sums over data groups are computed here. DeepSpeed takes no optimizer step.
- The placement of a parameter is read from the attribute that AutoTP sets on it (`DS_AUTOTP_UC_META`).
- Process groups that DeepSpeed keeps in globals are released before each model, since a client may build its model again.
- DeepSpeed's extension for CPU collectives is disabled. Compiling it takes a minute, and the compiler may be missing.

Models that AutoTP shards wrongly are rejected. Of DeepSeek-V3 it shards the feed-forward layers only, and its plan for the rest
leaves ranks with different gradients (2e-4 on a tiny model). So this engine supports Llama, Qwen2 and Qwen3, and its error names
`dtensor` for DeepSeek.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.distributed as dist

from psyche_core.errors import ModelError
from psyche_core.hookspecs import ShardingContext
from psyche_core.interfaces.sharding import Placement, ShardingEngine

SUPPORTED: Final = ("llama", "qwen2", "qwen3")
"""Supported model types: their gradients were compared with those of the unsharded model, rank by rank."""

_ATTRIBUTE: Final = "ds_autotp_universal_checkpoint_meta"


class DeepSpeedEngine(ShardingEngine):
    """Shards `context.module` with AutoTP. Raises ModelError for models that AutoTP does not shard correctly."""

    def __init__(self, context: ShardingContext) -> None:
        super().__init__(context.group)
        _check(context)
        module = context.module
        shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        with _quiet():
            self._engine: Any = _divide(context)
        self._module: torch.nn.Module = self._engine.module
        self._parameters: dict[str, torch.nn.Parameter] = dict(sorted(self._module.named_parameters()))
        self._placements = {
            name: _placement(name, parameter, shapes[name], context.group.tensor_rank)
            for name, parameter in self._parameters.items()
        }
        if all(placement.replicated for placement in self._placements.values()):
            message = f"DeepSpeed divided nothing of a {context.model_type} model; use --sharding dtensor"
            raise ModelError(message)

    @property
    def module(self) -> torch.nn.Module:
        """The module with AutoTP's layers."""
        return self._module

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Placements by parameter name, ascending."""
        return MappingProxyType(self._placements)

    def weight(self, name: str) -> torch.Tensor:
        """Return this rank's shard of a weight."""
        return self._parameters[name].data

    def local_grad(self, name: str) -> torch.Tensor | None:
        """Return this rank's shard of a gradient; None if there is none."""
        return self._parameters[name].grad

    def drop_gradients(self) -> None:
        """Forget all gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def finish(self) -> None:
        """Sum gradients over the data group. A parameter without a gradient counts as zero."""
        if self._group.data_parallelism == 1:
            return
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._group.add_up(parameter.grad, over="data")

    def close(self) -> None:
        """Release DeepSpeed. Torch's process group stays open, because its owner closes it."""
        engine, self._engine = self._engine, None
        if engine is not None:
            with _quiet():
                engine.destroy()


def _check(context: ShardingContext) -> None:
    if context.model_type not in SUPPORTED:
        message = (
            f"DeepSpeed's AutoTP does not divide model_type {context.model_type!r} correctly "
            f"(supported: {', '.join(SUPPORTED)}); use --sharding dtensor"
        )
        raise ModelError(message)
    parts = context.group.tensor_parallelism
    if parts == 1:
        message = "--sharding deepspeed divides weights only: give --tensor-parallelism 2 or more, or use --sharding dtensor"
        raise ModelError(message)

    config = context.module.config.get_text_config()
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        value = getattr(config, name)
        if value % parts:  # AutoTP would give ranks unequal parts, or none
            message = f"{name} of the model is {value}, which --tensor-parallelism {parts} does not divide"
            raise ModelError(message)


def _divide(context: ShardingContext) -> Any:
    """Return DeepSpeed's engine around the sharded module."""
    try:
        with warnings.catch_warnings():
            # DeepSpeed and its dependencies warn of deprecations at import; we cannot fix them
            warnings.simplefilter("ignore")
            import deepspeed
            import deepspeed.comm
    except ImportError as error:
        message = "--sharding deepspeed needs DeepSpeed; pip install 'psyche-optim-distro[deepspeed]'"
        raise ModelError(message) from error

    # in every pass it calls functions that torch has renamed; only DeepSpeed can fix that
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    if context.device.type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 0},
        "tensor_parallel": {"autotp_size": context.group.tensor_parallelism, "vocab_parallel_lm_head": False},
    }
    try:
        with _local_rank(context), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DeepSpeed warns of settings that it makes itself
            # DeepSpeed keeps groups for the life of the process; those of an earlier model would be used here
            deepspeed.utils.groups._release_process_group_references(group=None)
            deepspeed.init_distributed(dist_backend=dist.get_backend(), dist_init_required=False, auto_mpi_discovery=False)
            engine, *_ = deepspeed.initialize(model=context.module, config=config, dist_init_required=False)
    except (ValueError, AssertionError, NotImplementedError) as error:
        message = f"DeepSpeed does not divide this model: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        raise ModelError(message) from error
    engine.module.to(context.device)
    return engine


def _placement(name: str, parameter: torch.Tensor, shape: tuple[int, ...], tensor_rank: int) -> Placement:
    note: dict[str, Any] = getattr(parameter, _ATTRIBUTE, None) or {}
    dim: int = note.get("partition_dim", -1)
    lengths: tuple[int, ...] = tuple(note.get("partition_sizes") or ())
    if tuple(parameter.shape) == shape:
        return Placement(shape=shape)

    known = dim >= 0 and sum(lengths) == shape[dim]
    if not known or list(parameter.shape) != [*shape[:dim], lengths[tensor_rank], *shape[dim + 1 :]]:
        message = f"DeepSpeed divided {name} in a way that is not known here; use --sharding dtensor"
        raise ModelError(message)
    return Placement(shape=shape, tensor_dim=dim, lengths=lengths)


@contextlib.contextmanager
def _local_rank(context: ShardingContext) -> Iterator[None]:
    """Set the environment variables from which DeepSpeed reads its CUDA device; there is no other way."""
    names = {"LOCAL_RANK": str(context.device.index or 0), "RANK": str(context.group.rank), "WORLD_SIZE": str(context.group.size)}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress DeepSpeed's output; it prints its settings line by line in every process."""
    logger = logging.getLogger("DeepSpeed")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123 - os.devnull is a name
        try:
            yield
        finally:
            logger.setLevel(level)
