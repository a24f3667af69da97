"""Finds devices by name.

Several devices are always CUDA devices of one machine; the first one in the name owns the weights that are trained.
"""

from __future__ import annotations

import torch

from psyche_core.errors import NoSuchDevice


def pick_devices(name: str) -> tuple[torch.device, ...]:
    """Return the devices for `auto`, `cpu`, `mps`, `cuda`, `cuda:N` or `cuda:X,Y,…`. Raises NoSuchDevice if one is missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, colon, listed = name.partition(":")
    numbers = listed.split(",") if colon else []
    if kind not in ("cpu", "mps", "cuda") or (colon and (kind != "cuda" or not all(map(str.isdecimal, numbers)))):
        message = f"a device is auto, cpu, mps, cuda, cuda:N or cuda:X,Y, got {name!r}"
        raise NoSuchDevice(message)

    if kind == "cuda":
        return _cuda_devices(name, [int(number) for number in numbers])
    if kind == "mps" and not torch.backends.mps.is_available():
        message = f"device mps was asked for, but torch {torch.__version__} finds no Apple GPU; use cpu or auto"
        raise NoSuchDevice(message)
    return (torch.device(name),)


def _cuda_devices(name: str, numbers: list[int]) -> tuple[torch.device, ...]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if max(numbers, default=0) >= count:
        message = f"device {name} was asked for, but torch {torch.__version__} sees {count} CUDA devices; use cpu or auto"
        raise NoSuchDevice(message)
    if len(set(numbers)) < len(numbers):
        message = f"device {name} names a CUDA device twice; name each once"
        raise NoSuchDevice(message)

    return tuple(torch.device("cuda", number) for number in numbers) or (torch.device("cuda"),)
