"""Measures free memory and the memory of a computation, and recognises out-of-memory errors.

On the CPU, the memory of a computation is counted from the tensors it makes, not from the process. So the number is the same
every time and does not depend on the allocator. Memory inside kernels is not counted. Free memory is the minimum of what the
machine and the control group of a container report. On systems that do not report free memory, it is a quarter of all memory.
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
"""For cgroup versions 2 and 1: files with limit, use and statistics, and the name of the statistic for reclaimable file cache."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that a device or the machine has no memory left for a tensor."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True

    text = str(error)  # Apple GPUs and the CPU raise plain RuntimeErrors
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def release_cached(device: torch.device) -> None:
    """Return memory to the system that torch keeps for reuse on a device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def free_bytes() -> int | None:
    """Return the number of bytes that new tensors on the CPU may take, or None if the system does not report it."""
    known = [_machine_free(), *(_group_free(_GROUP_FOLDER, *files) for files in _GROUPS)]
    return min((value for value in known if value is not None), default=None)


def peak_tensor_bytes(compute: Callable[[], object], *, without: Callable[[], Iterable[torch.Tensor]] = tuple) -> int:
    """Return the peak number of bytes of the tensors that `compute` makes in this thread.

    without: called after `compute`; the tensors it returns are not counted.
    """
    count = _Count()
    with count:
        compute()
    return count.peak(without={_key(tensor) for tensor in without()})


class _Count(TorchDispatchMode):
    """Records when operations create storages and when these are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._changes: list[tuple[int, int]] = []  # number of a storage, change in bytes
        self._numbers: dict[int, int] = {}  # number of each living storage, by its key
        self._made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(value) for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor) and _key(value) not in given and _key(value) not in self._numbers:
                self._enter(value.untyped_storage())
        return out

    def peak(self, *, without: set[int]) -> int:
        """Return the peak number of bytes, without the storages with these keys that are still alive."""
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
    """Return a key that identifies the storage of a tensor."""
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
    """Return the free bytes of a control group, or None if there is none or it has no limit."""
    try:
        allowed = int((folder / limit).read_text(encoding="ascii"))
        taken = int((folder / used).read_text(encoding="ascii")) - _field(folder / statistics, cached)
    except (OSError, ValueError):  # also "max", which means no limit
        return None

    return max(0, allowed - taken)


def _field(path: Path, name: str) -> int:
    """Return the number after `name` in a text file with one entry per line. Raises OSError, and ValueError if it is missing."""
    for line in path.read_text(encoding="ascii").splitlines():
        first, _, rest = line.partition(" ")
        if first == name:
            return int(rest.split()[0])

    message = f"{path} has no {name}"
    raise ValueError(message)
