"""The sharding engine `deepspeed`: AutoTP of DeepSpeed over the tensor group; ranks of a data group hold the same.

Decided here:
- Of DeepSpeed only the cutting of linear maps is used. Gradients are taken from `.grad` after torch's own backward pass, since
  DeepSpeed's adds nothing without its optimizers; data groups are summed here, and no step of DeepSpeed is ever taken.
- How a parameter lies is read from the note that AutoTP leaves at it (`DS_AUTOTP_UC_META`), never guessed.
- The groups that it keeps in globals are dropped before each model, since a client may build its model anew.
- Its extension for CPU collectives is switched off: it would be compiled for a minute, by a compiler that may not be there.

Refuses what AutoTP gets wrong: of DeepSeek-V3 it divides the feed-forward only, and its plan for the rest leaves ranks with
different gradients (2e-4 on a tiny model), so this engine takes Llama, Qwen2 and Qwen3, and names `dtensor` for DeepSeek.
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

RIGHT: Final = ("llama", "qwen2", "qwen3")
"""Model types whose gradients were compared with those of the undivided model, rank by rank."""

_NOTE: Final = "ds_autotp_universal_checkpoint_meta"


class DeepSpeedEngine(ShardingEngine):
    """See the module. Raises ModelError for models that AutoTP does not divide rightly."""

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
        """The module with AutoTP's layers in it."""
        return self._module

    @property
    def placements(self) -> Mapping[str, Placement]:
        """By name, ascending."""
        return MappingProxyType(self._placements)

    def weight(self, name: str) -> torch.Tensor:
        """This rank's piece."""
        return self._parameters[name].data

    def local_grad(self, name: str) -> torch.Tensor | None:
        """This rank's piece."""
        return self._parameters[name].grad

    def drop_gradients(self) -> None:
        """Forget all gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def finish(self) -> None:
        """Sum over the data group; a parameter that no pass of ours used counts as zero."""
        if self._group.data_parallelism == 1:
            return
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._group.add_up(parameter.grad, over="data")

    def close(self) -> None:
        """Let DeepSpeed go; torch's process group is its owner's."""
        engine, self._engine = self._engine, None
        if engine is not None:
            with _quiet():
                engine.destroy()


def _check(context: ShardingContext) -> None:
    if context.model_type not in RIGHT:
        message = (
            f"DeepSpeed's AutoTP does not divide model_type {context.model_type!r} rightly (it does {', '.join(RIGHT)}); "
            "use --sharding dtensor"
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
    """DeepSpeed's engine around the divided module."""
    try:
        with warnings.catch_warnings():
            # what it and its dependencies deprecate while they are imported is theirs to mend
            warnings.simplefilter("ignore")
            import deepspeed
            import deepspeed.comm
    except ImportError as error:
        message = "--sharding deepspeed needs DeepSpeed; pip install 'psyche-optim-distro[deepspeed]'"
        raise ModelError(message) from error

    # in every pass it calls what torch has renamed; only it can mend that, and nobody who trains can
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
            warnings.simplefilter("ignore")  # it warns of settings that it makes itself
            # it keeps groups for the life of the process: those of a model that was built and closed before would be used here
            deepspeed.utils.groups._release_process_group_references(group=None)
            deepspeed.init_distributed(dist_backend=dist.get_backend(), dist_init_required=False, auto_mpi_discovery=False)
            engine, *_ = deepspeed.initialize(model=context.module, config=config, dist_init_required=False)
    except (ValueError, AssertionError, NotImplementedError) as error:
        message = f"DeepSpeed does not divide this model: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        raise ModelError(message) from error
    engine.module.to(context.device)
    return engine


def _placement(name: str, parameter: torch.Tensor, shape: tuple[int, ...], tensor_rank: int) -> Placement:
    note: dict[str, Any] = getattr(parameter, _NOTE, None) or {}
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
    """DeepSpeed takes the number of its CUDA device from the environment alone."""
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
    """DeepSpeed tells its settings, line by line, in every process."""
    logger = logging.getLogger("DeepSpeed")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123 - os.devnull is a name
        try:
            yield
        finally:
            logger.setLevel(level)
