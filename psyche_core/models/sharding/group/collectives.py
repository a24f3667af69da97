"""The connections between ranks: implements the interface RankGroup with torch.distributed's default process group.

gloo is used for CPUs and nccl for CUDA devices, with one rank on each device. The timeout of a collective is half an hour,
because one rank may have more to compute than another; `failure_detector` detects dead ranks. Ranks without work wait at the
store, without a timeout. A second group in one process raises ModelError, because torch has only one default group.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # torch does not say that it exports the store
    DistError,
    DistNetworkError,
    DistStoreError,
    PrefixStore,
)
from torch.distributed.device_mesh import init_device_mesh

from psyche_core.errors import ModelError, WireError
from psyche_core.interfaces.sharding import Axes, RankGroup
from psyche_core.models.sharding.commands import MAX_COMMAND_BYTES, Command, decode, encode
from psyche_core.models.sharding.group.rendezvous import GroupSettings, Store

COLLECTIVE_SECONDS: Final = 1800.0
WAIT_SECONDS: Final = 600.0
"""Timeout of one wait for work. After it, the next wait begins."""

_INTERFACE: Final = "GLOO_SOCKET_IFNAME"
_ABORT_SECONDS: Final = 5.0


class TorchGroup(RankGroup):
    """A rank's connections to the others, see the module.

    store: a connection that no other code uses. local: whether all ranks run on this machine; then they use only loopback. Raises
    ModelError if this process already has a group.
    """

    def __init__(self, store: Store, settings: GroupSettings, *, rank: int, device: torch.device, local: bool) -> None:
        if dist.is_initialized():
            message = "this process already has a divided model; torch supports one process group at a time"
            raise ModelError(message)

        self._rank, self._data, self._tensor = rank, settings.world_size, 1
        self._local = local
        self._mesh: Any = None
        self.device = device
        self._store = PrefixStore("work", store)
        self._number = 0
        with _interface(local=local), _same_excepthook():
            dist.init_process_group(
                settings.backend,
                store=PrefixStore(settings.prefix, store),
                rank=rank,
                world_size=settings.world_size,
                timeout=timedelta(seconds=COLLECTIVE_SECONDS),
            )

    def divide(self, *, data: int, tensor: int) -> None:
        """Form data and tensor groups of these sizes, replacing earlier ones. A collective call. Raises ModelError."""
        if data * tensor != dist.get_world_size():
            message = f"{data} times {tensor} ranks were requested, but the group has {dist.get_world_size()}"
            raise ModelError(message)
        self._data, self._tensor = data, tensor
        with _interface(local=self._local):
            self._mesh = init_device_mesh(self.device.type, (data, tensor), mesh_dim_names=("data", "tensor"))

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        return self._rank

    @property
    def data_parallelism(self) -> int:
        """Number of ranks in a data group."""
        return self._data

    @property
    def tensor_parallelism(self) -> int:
        """Number of ranks in a tensor group."""
        return self._tensor

    @property
    def mesh(self) -> Any:
        """The device mesh of all ranks with the dimensions `data` and `tensor`."""
        return self._mesh

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Overwrite the tensor on all ranks with that of rank 0."""
        dist.broadcast(tensor, src=0)

    def scatter(self, pieces: Sequence[torch.Tensor] | None, into: torch.Tensor) -> None:
        """Send one of rank 0's pieces to each rank, which receives it in `into`. pieces: one for each rank, only on rank 0."""
        dist.scatter(into, None if pieces is None else list(pieces), src=0)

    def gather(self, piece: torch.Tensor, *, over: Axes = "both") -> list[torch.Tensor] | None:
        """Return on rank 0 the tensors of all ranks (or of its data or tensor group), None on the other ranks."""
        group = None if over == "both" else self._mesh.get_group(over)
        size = {"both": self.size, "data": self._data, "tensor": self._tensor}[over]
        pieces = [torch.empty_like(piece) for _ in range(size)] if self._rank == 0 else None
        dist.gather(piece, pieces, dst=0, group=group)
        return pieces

    def add_up(self, tensor: torch.Tensor, *, over: Literal["data", "tensor"]) -> None:
        """Replace the tensor by its sum over our data or tensor group."""
        dist.all_reduce(tensor, group=self._mesh.get_group(over))

    def send_to(self, rank: int, tensor: torch.Tensor) -> None:
        """Send a contiguous tensor on our device to another rank, which calls `receive_from`."""
        dist.send(tensor, dst=rank)

    def receive_from(self, rank: int, into: torch.Tensor) -> None:
        """Write the tensor that another rank sends us into a contiguous one of the same shape and dtype on our device."""
        dist.recv(into, src=rank)

    def send(self, command: Command) -> None:
        """Rank 0: wake the other ranks and send them a command."""
        data = encode(command)
        self._store.set(str(self._number), "1")
        if self._number:
            self._store.delete_key(str(self._number - 1))  # all ranks have read it, because its command is done
        self._number += 1
        self.broadcast(torch.tensor([len(data)], dtype=torch.int64, device=self.device))
        self.broadcast(torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device))

    def receive(self) -> Command:
        """Other ranks: wait for the next command without a timeout. Raises WireError if it cannot be decoded."""
        while True:
            try:
                self._store.wait([str(self._number)], timedelta(seconds=WAIT_SECONDS))
                break
            except DistNetworkError:
                raise
            except DistStoreError:
                continue  # timeout without a command
        self._number += 1
        length = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.broadcast(length)
        if not 0 < int(length) <= MAX_COMMAND_BYTES:
            message = f"a command has at most {MAX_COMMAND_BYTES} bytes, got {int(length)}"
            raise WireError(message)
        data = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        self.broadcast(data)
        return decode(bytes(data.cpu().numpy()))

    def close(self) -> None:
        """Close the connections. All ranks must call this."""
        dist.destroy_process_group()

    def abort(self) -> None:
        """Close the connections even if other ranks have ended. Threads that wait in a collective here get an exception."""
        # in a separate thread, because with some backends the call itself waits for ranks that have ended
        abort = threading.Thread(target=_abort, name="abort of the group", daemon=True)
        abort.start()
        abort.join(_ABORT_SECONDS)


def is_lost_connection(error: BaseException) -> bool:
    """Whether an exception means that another rank has ended. The error sentence of that rank then explains the cause."""
    text = str(error)
    marks = ("gloo", "Gloo", "NCCL", "Connection", "connection", "ocket")
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and any(mark in text for mark in marks))


def _abort() -> None:
    try:
        dist.distributed_c10d._abort_process_group()
    except Exception:  # nothing to report: the group has already failed
        return


@contextmanager
def _same_excepthook() -> Iterator[None]:
    """Restore sys.excepthook after the block. Torch replaces it and adds the rank to each line of all later tracebacks."""
    before = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = before


@contextmanager
def _interface(*, local: bool) -> Iterator[None]:
    """Make gloo use loopback inside the block if all ranks run on this machine.

    Gloo reads the interface from an environment variable. Without it, it looks up our own host name.
    """
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if not local or not loopback or _INTERFACE in os.environ:
        yield
        return

    os.environ[_INTERFACE] = loopback[0]
    try:
        yield
    finally:
        del os.environ[_INTERFACE]
