"""How the ranks of a group find each other: with a key-value store that rank 0 serves (torch's TCPStore). Its keys are:

    hello            rank 0: protocol, torch's version, number of ranks, backend, a nonce
    join/R           rank R: where it runs, a proof that it knows the secret, and a random number
    answer/R         rank 0: accepted or rejected, and its own proof
    beat/R, failure  see `failure_detector`; commands to ranks: see `commands` and `collectives`

The secret is never sent, only HMAC-SHA256 of a nonce with the secret as key. The key prefix under which ranks set up their
connections also depends on the secret, so a process without the secret does not find it. Ranks with another version of torch are
rejected, because collectives have no versions. Not protected: anyone who can reach the port can read and overwrite the store, and
traffic between ranks is neither encrypted nor signed. Use ranks only in one trusted network; by default the store listens on
loopback.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

import torch
from torch.distributed import (  # type: ignore[attr-defined]  # torch does not say that it exports the store
    DistError,
    TCPStore,
)

from psyche_core.errors import ModelError, WireError
from psyche_core.models.sharding.group.secret import SIDECAR_PORT
from psyche_core.wire.codec import decode, encode

Store: TypeAlias = TCPStore
"""A connection to the store. Threads that wait must not share one."""

PROTOCOL: Final = 1
MAX_BYTES: Final = 4096
CONNECT_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.05
LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings that are equal on all ranks of a group.

    backend: gloo or nccl. prefix: key prefix in the store under which ranks set up their connections.
    """

    world_size: int
    backend: str
    prefix: str


def split_address(address: str) -> tuple[str, int]:
    """Split `HOST:PORT`, or `HOST` for the port SIDECAR_PORT, into its two parts. Raises ModelError."""
    if address and ":" not in address:
        return address, SIDECAR_PORT
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        message = f"{address!r} is not an address; expected HOST:PORT, for instance 192.168.1.10:29400"
        raise ModelError(message)
    return host.strip("[]"), int(port)


def serve_store(address: str | None) -> tuple[Store, str, int]:
    """Start the store. Returns it and the host and port at which other ranks reach it. Raises ModelError.

    address: `HOST:PORT` to listen on; None for a free port on loopback.
    """
    host, port = split_address(address) if address else (LOOPBACK, 0)
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(128)
    except OSError as error:
        message = f"cannot listen for sidecars on {host}:{port}: {error.strerror or error}; choose another --sidecar-bind"
        raise ModelError(message) from error

    port = int(listener.getsockname()[1])
    # we make the listener, because torch's own listens on every interface; the store then owns the descriptor and closes it
    reach = LOOPBACK if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
    store = Store(reach, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, reach, port


def reach_store(host: str, port: int, *, seconds: float = CONNECT_SECONDS) -> Store:
    """Connect to rank 0's store; try for `seconds`. Raises ModelError."""
    end = time.monotonic() + seconds
    while True:  # torch's own retries log a warning for each attempt
        try:
            with socket.create_connection((host, port), timeout=5.0):
                break
        except OSError as error:
            if time.monotonic() > end:
                message = (
                    f"nobody answers at {host}:{port} ({error.strerror or error}); is the client running, and --main-host right?"
                )
                raise ModelError(message) from error
            time.sleep(0.2)
    try:
        return Store(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=seconds))
    except DistError as error:
        why = str(error).splitlines()[0]
        message = f"{host}:{port} does not answer as the client's store: {why}; check --main-host against --sidecar-bind"
        raise ModelError(message) from error


def invite(
    store: Store,
    *,
    world_size: int,
    backend: str,
    secret: bytes,
    seconds: float,
    problem: Callable[[], str | None],
    joined: Callable[[int, str], None] = lambda _rank, _where: None,
) -> GroupSettings:
    """Rank 0: wait until all other ranks have joined. Raises ModelError.

    seconds: timeout. problem: returns a sentence if a rank has failed and waiting is useless, else None. joined: called with each
    rank and the place where it runs.
    """
    nonce = secrets.token_bytes(16)
    _put(store, "hello", [PROTOCOL, torch.__version__, world_size, backend, nonce])
    missing, refused, end = set(range(1, world_size)), 0, time.monotonic() + seconds
    while missing:
        for rank in sorted(missing):
            if not store.check([f"join/{rank}"]):
                continue

            where = _where(store.get(f"join/{rank}"), _proof(secret, nonce, "join", rank))
            if where is None:
                refused += 1
                store.delete_key(f"join/{rank}")  # so that the right process can still join
                _put(store, f"answer/{rank}", [False, b""])
                continue

            _put(store, f"answer/{rank}", [True, _proof(secret, nonce, "answer", rank)])
            joined(rank, where)
            missing.discard(rank)
        said = problem()
        if said is not None:
            raise ModelError(said)
        if time.monotonic() > end:
            raise ModelError(_absent(missing, refused, seconds))
        time.sleep(POLL_SECONDS)
    return GroupSettings(world_size=world_size, backend=backend, prefix=_proof(secret, nonce, "group", 0).hex())


def join(store: Store, *, rank: int, world_size: int, secret: bytes, seconds: float) -> GroupSettings:
    """Other ranks: join the group. seconds: timeout. Raises ModelError."""
    try:
        store.wait(["hello"], timedelta(seconds=seconds))
        fields = _read(store.get("hello"))
        match fields:
            case [int(protocol), str(version), int(size), str(backend), bytes(nonce)]:
                pass
            case _:
                message = "the program at this address is not a client that waits for sidecars; check --main-host"
                raise ModelError(message)
        if (protocol, version) != (PROTOCOL, torch.__version__):
            message = f"the client has protocol {protocol} and torch {version}, this machine {PROTOCOL} and {torch.__version__}"
            raise ModelError(f"{message}; install the same versions on both")
        if size != world_size or not 0 < rank < size:
            message = f"the client's group has ranks 1 to {size - 1} besides its own, got rank {rank} of {world_size}"
            raise ModelError(f"{message}; check --world-size and --start-rank")

        key, answer = f"join/{rank}", f"answer/{rank}"
        where = f"{socket.gethostname()}, process {os.getpid()}"
        mine = encode([where, _proof(secret, nonce, "join", rank), secrets.token_bytes(8)]).hex()  # random bytes make it unique
        if bytes(store.compare_set(key, "", mine)) != mine.encode():
            message = f"rank {rank} has joined already; give each machine a different --start-rank"
            raise ModelError(message)
        store.wait([answer], timedelta(seconds=seconds))
        given = _read(store.get(answer))
    except DistError as error:
        message = f"the client did not answer within {seconds:g} s; is it still running?"
        raise ModelError(message) from error
    except WireError as error:
        message = f"the client's store contains no valid greeting: {error}"
        raise ModelError(message) from error

    if given != [True, _proof(secret, nonce, "answer", rank)]:
        store.delete_key(answer)
        message = f"rank {rank} was rejected: its secret differs from the client's; use the same secret file for both"
        raise ModelError(message)
    return GroupSettings(world_size=size, backend=backend, prefix=_proof(secret, nonce, "group", 0).hex())


def _put(store: Store, key: str, fields: list[object]) -> None:
    store.set(key, encode(fields).hex())  # the store's values are text


def _read(value: bytes) -> object:
    """Decode a value of the store. Raises WireError."""
    try:
        data = bytes.fromhex(value.decode())
    except ValueError as error:
        message = "a value in the store is not hexadecimal"
        raise WireError(message) from error
    return decode(data, max_bytes=MAX_BYTES)


def _proof(secret: bytes, nonce: bytes, what: str, rank: int) -> bytes:
    return hmac.digest(secret, b"psyche sidecar/" + nonce + f"/{what}/{rank}".encode(), hashlib.sha256)


def _where(answer: bytes, proof: bytes) -> str | None:
    """Return where the joining rank runs, or None if it does not know the secret."""
    try:
        match _read(answer):
            case [str(where), bytes(given), bytes()] if hmac.compare_digest(given, proof):
                return where
    except WireError:
        pass
    return None


def _absent(missing: Collection[int], refused: int, seconds: float) -> str:
    who = ", ".join(map(str, sorted(missing)))
    wrong = f" ({refused} came with a wrong secret)" if refused else ""
    return (
        f"rank {who} did not join within {seconds:g} s{wrong}; start it with `psyche sidecar`, "
        "or use fewer of --data-parallelism and --tensor-parallelism"
    )
