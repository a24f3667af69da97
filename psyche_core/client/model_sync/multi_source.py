"""Fetches many blobs from several sources at once, and chooses which source is asked for which blob.

Each blob is requested from the source that is expected to deliver it first, according to how long its last blobs took and how
many it is sending. So a fast source delivers more, and a source that does not answer is soon no longer asked. If a source fails,
the transport asks the others, and sources of wrong bytes last. A blob that could not be fetched is requested again after all
others. Each member uses its own order of the blobs, so members that fetch the same model soon have different parts and can help
each other. Blobs are not kept here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import anyio

from psyche_core.errors import TransportError
from psyche_core.interfaces import Transport

FLOOR_BYTES_PER_SECOND = 64 * 1024
"""The timeout allows this rate: a slower blob is given up."""

GRACE_SECONDS = 20.0
"""Added to the timeout of every blob: for finding a source, and for asking another one when one stops sending."""

MOST_PER_SOURCE = 3
"""Most blobs requested from one source at once while other sources are free: enough to fill any connection. The source keeps them
in memory."""

SLOW_SECONDS = 2.0
"""A source that takes longer than this, and longer than usual, is asked after all others."""

ATTEMPTS = 2
"""How often a blob is requested."""

_LEAST_BYTES = 256 * 1024
"""Smaller blobs count as this many bytes, because the round trip takes most of their time."""

_MEMORY = 0.5
"""Weight of the newest blob in a source's expected speed."""


def fetch_timeout(size: int) -> float:
    """Seconds to wait for a blob of that many bytes."""
    return GRACE_SECONDS + size / FLOOR_BYTES_PER_SECOND


@dataclass(slots=True)
class Source:
    """A source. seconds: recent time per byte, 0 before the first. begun: when each outstanding blob was requested."""

    peer: bytes
    seconds: float = 0.0
    begun: list[float] = field(default_factory=list)

    def waited(self, now: float) -> float:
        """Return the seconds since the oldest outstanding blob was requested."""
        return max((now - began for began in self.begun), default=0.0)

    def expected(self, size: int, now: float) -> float:
        """Return the expected seconds until it delivers another blob of that size. Time without an answer counts against it."""
        return max(self.seconds * max(size, _LEAST_BYTES), self.waited(now)) * (len(self.begun) + 1)

    def took(self, size: int, seconds: float) -> None:
        """Note that it delivered a blob, or failed to, after this time."""
        per_byte = seconds / max(size, _LEAST_BYTES)
        self.seconds = per_byte if not self.seconds else (1 - _MEMORY) * self.seconds + _MEMORY * per_byte


class Sources:
    """The sources of one fetch. peers: p2p keys known to have everything; empty if only other members can help."""

    def __init__(self, peers: Sequence[bytes]) -> None:
        self._all = [Source(peer) for peer in dict.fromkeys(peers)] or [Source(b"")]

    def __len__(self) -> int:
        return len(self._all)

    def ranked(self, size: int, now: float) -> list[Source]:
        """Return the sources in the order in which to ask them for a blob of that size."""

        def rank(source: Source) -> tuple[bool, bool, float, int]:
            busy = len(source.begun)
            slow = source.waited(now) > max(SLOW_SECONDS, 2 * source.seconds * size)
            return slow, busy >= MOST_PER_SOURCE, source.expected(size, now), busy

        return sorted(self._all, key=rank)


Keep = Callable[[bytes, bytes], Awaitable[None]]
"""Takes a hash and its blob."""


async def gather(
    transport: Transport, wanted: Mapping[bytes, int], *, sources: Sequence[bytes], at_once: int, tag: int, keep: Keep
) -> None:
    """Fetch blobs and pass each to `keep` as it arrives.

    wanted: size in bytes by hash. at_once: most fetched at the same time. Raises TransportError if some could not be fetched:
    after all others, or after so many failures in a row that going on is useless. An exception of `keep` ends the fetch at once.
    """
    known = Sources(sources)
    hashes = sorted(wanted)
    Random(transport.peer_id).shuffle(hashes)
    pending = deque(hashes)
    failures: dict[bytes, list[TransportError]] = {}
    in_a_row, hopeless = 0, max(min(at_once, len(hashes)), ATTEMPTS)
    broken: Exception | None = None

    async def fetch(blob_hash: bytes) -> bytes:
        size, began = wanted[blob_hash], anyio.current_time()
        order = known.ranked(size, began)
        first = order[0]
        first.begun.append(began)
        try:
            return await transport.fetch(
                blob_hash,
                sources=[source.peer for source in order if source.peer],
                max_bytes=size,
                timeout=fetch_timeout(size),
                tag=tag,
                keep=False,
            )
        finally:
            first.begun.remove(began)
            first.took(size, anyio.current_time() - began)

    async def work_off(scope: anyio.CancelScope) -> None:
        nonlocal in_a_row, broken
        while pending:
            blob_hash = pending.popleft()
            try:
                blob = await fetch(blob_hash)
            except TransportError as error:
                failed = failures.setdefault(blob_hash, [])
                failed.append(error)
                if len(failed) < ATTEMPTS:
                    pending.append(blob_hash)
                in_a_row += 1
                if in_a_row >= hopeless:
                    scope.cancel()
                continue

            in_a_row = 0
            failures.pop(blob_hash, None)
            try:
                await keep(blob_hash, blob)
            except Exception as error:  # raised unchanged later, not in a group with errors of other tasks
                broken = error
                scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(min(at_once, MOST_PER_SOURCE * len(known))):
            tasks.start_soon(work_off, tasks.cancel_scope)
    for errors in failures.values():
        raise broken or errors[0]
    if broken is not None:
        raise broken
