"""How much memory there is, how much a computation takes, and how to recognise that it ran out.

On the CPU, a computation's memory is counted from the tensors it makes, not from the process: the same number every time,
whatever the allocator keeps. Memory inside kernels is not counted. Free memory is the least of what the machine and the control
group of a container report; a quarter of all memory on systems that do not report what is free.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_MEMINFO: Final = Path("/proc/meminfo")
_GROUP_FOLDER: Final = Path("/sys/fs/cgroup")
_GROUPS: Final = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Version 2 and 1: files with limit and use, and what of the use is cached files that go when memory is needed."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that a device or the machine has no memory left for a tensor."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True

    text = str(error)  # Apple GPUs and the CPU raise plain RuntimeErrors
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def release_cached(device: torch.device) -> None:
    """Give memory back that torch keeps for reuse."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def free_bytes() -> int | None:
    """Memory that new tensors on the CPU may take, in bytes; None where the system does not say."""
    known = [_machine_free(), *(_group_free(_GROUP_FOLDER, *files) for files in _GROUPS)]
    return min((value for value in known if value is not None), default=None)


def peak_tensor_bytes(compute: Callable[[], object], *, without: Callable[[], Iterable[torch.Tensor]] = tuple) -> int:
    """The most bytes held at once in tensors that `compute` makes in this thread.

    without: called when it is done; the tensors it gives are left out, as if they had been there before.
    """
    count = _Count()
    with count:
        compute()
    return count.peak(without={_key(tensor) for tensor in without()})


class _Count(TorchDispatchMode):
    """Notes each storage when an operation makes it and when it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._changes: list[tuple[int, int]] = []  # number of a storage, bytes more or less
        self._numbers: dict[int, int] = {}  # of the storages alive
        self._made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(value) for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor) and _key(value) not in given and _key(value) not in self._numbers:
                self._enter(value.untyped_storage())
        return out

    def peak(self, *, without: set[int]) -> int:
        """The most bytes at once, leaving out the storages with these keys that are alive now."""
        left_out = {number for key, number in self._numbers.items() if key in without}
        return max(accumulate((size for number, size in self._changes if number not in left_out), initial=0))

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key, number, size = storage._cdata, self._made, storage.nbytes()
        self._made += 1
        self._numbers[key] = number
        self._changes.append((number, size))
        weakref.finalize(storage, self._leave, key, number, size).atexit = False

    def _leave(self, key: int, number: int, size: int) -> None:
        self._numbers.pop(key, None)
        self._changes.append((number, -size))


def _key(tensor: torch.Tensor) -> int:
    """Which storage a tensor looks at."""
    return int(tensor.untyped_storage()._cdata)


def _machine_free() -> int | None:
    try:
        return 1024 * _field(_MEMINFO, "MemAvailable:")  # in kB
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    except (AttributeError, ValueError, OSError):
        return None


def _group_free(folder: Path, limit: str, used: str, statistics: str, cached: str) -> int | None:
    """What a control group leaves free; None where there is none or it sets no limit."""
    try:
        allowed = int((folder / limit).read_text(encoding="ascii"))
        taken = int((folder / used).read_text(encoding="ascii")) - _field(folder / statistics, cached)
    except (OSError, ValueError):  # also "max", which means no limit
        return None

    return max(0, allowed - taken)


def _field(path: Path, name: str) -> int:
    """The number after `name` in a file of lines. Raises OSError, ValueError where it is not there."""
    for line in path.read_text(encoding="ascii").splitlines():
        first, _, rest = line.partition(" ")
        if first == name:
            return int(rest.split()[0])

    message = f"{path} has no {name}"
    raise ValueError(message)
