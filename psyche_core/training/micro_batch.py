"""The micro-batch size: how many sequences one forward and backward pass takes. It is reduced when memory runs out.

The size changes memory and speed but not the result, except for rounding. So when memory runs out, the share is computed again
with half as many sequences and is not lost. The option `auto` finds a size. On a GPU it doubles the size until memory runs out.
On the CPU, where running out of memory kills the process, it computes the size from the memory that a pass over one sequence
needs and from half of the free memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final

from psyche_core.errors import ModelError
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from psyche_core.models.memory import free_bytes, is_out_of_memory, peak_tensor_bytes, release_cached

CPU_LIMIT: Final = 16
"""Upper limit of `auto` on a CPU: more sequences at once are not faster there."""

GPU_LIMIT: Final = 128

_CPU_SHARE_OF_FREE: Final = 0.5

NO_AUTO: Final = (
    "--micro-batch-size auto is not supported for a divided model: finding the limit would end its other processes; give a number"
)
"""Why a divided model needs an explicit micro-batch size."""

Notice = Callable[[str], None]
"""Function that shows a sentence to the user."""


class MicroBatch:
    """The micro-batch size in use. It starts at `size` sequences. notice: called with a sentence when it becomes smaller."""

    def __init__(self, model: Model, *, size: int, notice: Notice = lambda _: None) -> None:
        if size < 1:
            message = f"micro_batch_size must be at least 1, got {size}"
            raise ValueError(message)
        self._model = model
        self._size = size
        self._notice = notice

    @property
    def size(self) -> int:
        """Present number of sequences per pass."""
        return self._size

    def gradients(self, samples: Samples) -> float:
        """Same as `Model.gradients`, with this size. Raises ModelError also if not even one sequence fits into memory."""
        return self._smaller_until_it_fits(self._model.gradients, samples)

    def loss(self, samples: Samples) -> float:
        """Same as `Model.loss`, with this size. Raises ModelError also if not even one sequence fits into memory."""
        return self._smaller_until_it_fits(self._model.loss, samples)

    def _smaller_until_it_fits(self, compute: Callable[..., float], samples: Samples) -> float:
        while True:
            loss = _unless_out_of_memory(self._model, compute, samples, self._size)
            if loss is not None:
                return loss
            if self._size == 1:
                raise ModelError(_too_large(self._model, samples.sequence_length))

            tried, self._size = self._size, (min(self._size, samples.count) + 1) // 2
            self._notice(f"out of memory with a micro-batch of {tried} sequences; continuing with {self._size}")


def find_micro_batch_size(model: Model, *, sequence_length: int) -> int:
    """Return the largest power of two of sequences for which a pass has enough memory. Leaves no gradients.

    sequence_length: the run's, in tokens. Call this when everything else that training needs (masters, optimizer state) is in
    memory. Raises ModelError if not even one sequence fits.
    """
    device = next(iter(model.parameters.values())).device
    try:
        if device.type == "cpu":
            return _worked_out(model, sequence_length)
        return _tried_out(model, sequence_length)
    finally:
        for parameter in model.parameters.values():
            parameter.grad = None
        release_cached(device)


def _tried_out(model: Model, sequence_length: int) -> int:
    size = 0
    while size < GPU_LIMIT:
        larger = 2 * size or 1
        if _unless_out_of_memory(model, model.gradients, _made_up(larger, sequence_length), larger) is None:
            break
        size = larger
    if size == 0:
        raise ModelError(_too_large(model, sequence_length))

    return size


def _worked_out(model: Model, sequence_length: int) -> int:
    """Compute the size for a CPU.

    The memory of gradients does not depend on the number of sequences. All other memory is assumed to be proportional to it, so
    the estimate is never too low.
    """
    free = free_bytes()
    parameters = model.parameters.values()
    samples = _made_up(1, sequence_length)
    each = peak_tensor_bytes(
        lambda: model.gradients(samples, micro_batch_size=1),
        without=lambda: [parameter.grad for parameter in parameters if parameter.grad is not None],
    )
    gradients = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    budget = 0 if free is None else free * _CPU_SHARE_OF_FREE - gradients
    size = 1
    while 2 * size <= CPU_LIMIT and 2 * size * each <= budget:
        size *= 2
    return size


def _made_up(count: int, sequence_length: int) -> Samples:
    """Return sequences of token 0. The memory of a pass does not depend on the tokens."""
    return Samples(bytes(2 * count * sequence_length), count, sequence_length, 2)


def _unless_out_of_memory(model: Model, compute: Callable[..., float], samples: Samples, size: int) -> float | None:
    """Return the result of `compute`, or None if memory ran out. In this case its memory is released."""
    try:
        return compute(samples, micro_batch_size=size)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise

    gc.collect()  # outside the except block, because the traceback's frames keep the tensors of the pass alive there
    release_cached(_device(model))
    return None


def _device(model: Model) -> Any:
    return next(iter(model.parameters.values())).device


def _too_large(model: Model, sequence_length: int) -> str:
    return (
        f"one sequence of {sequence_length} tokens does not fit into the memory of {_device(model)}; "
        "try --gradient-checkpointing, --compute-dtype bfloat16 or another device"
    )
