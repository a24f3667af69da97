"""Chooses the device of a rank.

Each rank has one device. Ranks of one machine use the CUDA devices in order, or those in the device name. Any number of ranks may
share CPUs. Apple GPUs cannot be used by several processes together.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from psyche_core.errors import NoSuchDevice
from psyche_core.models.hf.devices import pick_devices


def rank_device(name: str, number: int) -> torch.device:
    """Return the device of rank `number` (from 0) of this machine. name: as given by the user. Raises NoSuchDevice."""
    if name in ("auto", "cuda"):
        name = "cpu" if name == "auto" and not torch.cuda.is_available() else f"cuda:{number}"
        return pick_devices(name)[0]

    devices = pick_devices(name)
    if devices[0].type == "mps":
        message = "device mps cannot be used by several processes together; use cpu"
        raise NoSuchDevice(message)
    if devices[0].type == "cpu":
        return devices[0]
    if number >= len(devices):
        message = f"device {name} names {len(devices)} devices, but this machine has a rank {number}; name one for each"
        raise NoSuchDevice(message)
    return devices[number]


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a CUDA device the current one. Needed in each call: it is set per thread, and the client's threads change."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
