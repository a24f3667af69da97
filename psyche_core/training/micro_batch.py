"""How many sequences one forward and backward pass takes: found by trying, and made smaller when memory runs out later.

More sequences in a pass change memory and speed but, beyond rounding, no result. So when memory runs out, the share is computed
again with half as many instead of being lost. On a GPU the number is doubled until memory runs out. On the CPU, where running out
kills the process, it is computed from what a pass over one sequence takes and half of the free memory.
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
"""More sequences at once make a CPU no faster."""

GPU_LIMIT: Final = 128

_CPU_SHARE_OF_FREE: Final = 0.5

NO_AUTO: Final = (
    "--micro-batch-size auto is found by running out of memory, which ends the other processes of a divided model; give a number"
)
"""Why a divided model's size has to be said."""

Notice = Callable[[str], None]
"""Takes a sentence that people should read."""


class MicroBatch:
    """The size in use, from `size` sequences down. notice: told of each time it becomes smaller."""

    def __init__(self, model: Model, *, size: int, notice: Notice = lambda _: None) -> None:
        if size < 1:
            message = f"micro_batch_size must be at least 1, got {size}"
            raise ValueError(message)
        self._model = model
        self._size = size
        self._notice = notice

    @property
    def size(self) -> int:
        """Sequences per pass."""
        return self._size

    def gradients(self, samples: Samples) -> float:
        """As `Model.gradients`. Raises ModelError also where not even one sequence fits into memory."""
        return self._smaller_until_it_fits(self._model.gradients, samples)

    def loss(self, samples: Samples) -> float:
        """As `Model.loss`, likewise."""
        return self._smaller_until_it_fits(self._model.loss, samples)

    def _smaller_until_it_fits(self, compute: Callable[..., float], samples: Samples) -> float:
        while True:
            loss = _unless_out_of_memory(self._model, compute, samples, self._size)
            if loss is not None:
                return loss
            if self._size == 1:
                raise ModelError(_too_large(self._model, samples.sequence_length))

            tried, self._size = self._size, (min(self._size, samples.count) + 1) // 2
            self._notice(f"memory ran out with a micro-batch of {tried} sequences; going on with {self._size}")


def find_micro_batch_size(model: Model, *, sequence_length: int) -> int:
    """The most sequences of the run's length, a power of two, that a pass has memory for. Leaves no gradient.

    Called when everything else that training holds (masters, optimizer state) is there. Raises ModelError where not even one
    sequence fits.
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
    """Gradients are the same for any number of sequences; all else is taken to grow with it, which is never too little."""
    free = free_bytes()
    parameters = model.parameters.values()
    samples = _made_up(1, sequence_length)
    each = peak_tensor_bytes(
        lambda: model.gradients(samples, micro_batch_size=1),
        without=lambda: [parameter.grad for parameter in parameters if parameter.grad is not None],
    )
    gradients = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    room = 0 if free is None else free * _CPU_SHARE_OF_FREE - gradients
    size = 1
    while 2 * size <= CPU_LIMIT and 2 * size * each <= room:
        size *= 2
    return size


def _made_up(count: int, sequence_length: int) -> Samples:
    """Sequences of token 0: what a pass takes does not depend on which tokens it sees."""
    return Samples(bytes(2 * count * sequence_length), count, sequence_length, 2)


def _unless_out_of_memory(model: Model, compute: Callable[..., float], samples: Samples, size: int) -> float | None:
    """What `compute` gives, None where memory ran out; then all that it held is given back."""
    try:
        return compute(samples, micro_batch_size=size)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise

    gc.collect()  # and out of the except block: frames of its traceback kept the tensors of the pass alive
    release_cached(_device(model))
    return None


def _device(model: Model) -> Any:
    return next(iter(model.parameters.values())).device


def _too_large(model: Model, sequence_length: int) -> str:
    return (
        f"one sequence of {sequence_length} tokens does not fit into the memory of {_device(model)}; "
        "try --gradient-checkpointing, --compute-dtype bfloat16 or another device"
    )
