"""A model handed from member to member: masters out as blobs, masters in from blobs (protocol section 5).

Out: each piece is published, then the manifest that names them, so who has the manifest can have the rest. In: the manifest is
read against our own parameter table, only pieces in which our masters differ are fetched, a few at once and from all sources in
turn, and the masters are replaced when every piece is there, never before.

Decided here: what we offer at one time is bounded, so that our model never drives our results out of the transport's store; a
piece may take as long as its length at a floor rate. What was fetched for a manifest is kept until that manifest is done with or
another is asked for, so a second attempt begins where the first ended. Refuses to judge whose masters are the right ones: the
machine does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import anyio
import anyio.to_thread

from psyche_core.client import report
from psyche_core.client.events import FetchModel, ModelFetched, ModelFetchFailed, SnapshotFailed, SnapshotTaken, TakeSnapshot
from psyche_core.errors import ModelError, TransportError, WireError
from psyche_core.interfaces import Transport
from psyche_core.wire.manifest import Manifest, Piece, Table, cut, decode, encode, max_manifest_bytes

PIECES_AT_ONCE = 4
"""Pieces being fetched at the same time: enough to fill a line, few enough that a slow one is not starved by the others."""

FLOOR_BYTES_PER_SECOND = 64 * 1024
"""A piece that comes slower than this is given up."""

GRACE_SECONDS = 20.0
"""Added to the time of every blob: finding a source, and asking another when one falls silent."""

MAX_OFFERED_BYTES = 3 * 2**29
MAX_OFFERED_PIECES = 8192
"""Most that is offered at a time; well below what transports keep, where our own results must have their place."""


class ModelHolder(Protocol):
    """What is needed of a trainer to hand its masters over."""

    @property
    def table(self) -> Table:
        """Names and shapes of the masters."""

    def read_piece(self, piece: Piece) -> bytes:
        """The bytes of one piece of the masters."""

    def differing(self, manifest: Manifest) -> Sequence[int]:
        """Numbers of the pieces in which the masters differ from a manifest. Raises ModelError."""

    def install(self, manifest: Manifest, pieces: Mapping[int, bytes]) -> None:
        """Replace the masters by a manifest's and forget all else; change nothing and raise ModelError when that cannot be."""

    def full_digest(self) -> bytes:
        """SHA-256 over all masters."""


class ModelExchange:
    """One client's side of it. tell: where progress and problems go. Works for one caller at a time."""

    def __init__(self, transport: Transport, *, tell: Callable[[report.Event], None]) -> None:
        self._transport = transport
        self._tell = tell
        self._offered: list[tuple[int, int, int]] = []  # tag, pieces, bytes
        self._wanted = b""  # hash of the manifest we fetch
        self._kept: dict[bytes, bytes] = {}  # its pieces, by hash

    # -------------------------------------------------------------------------------------------- out

    async def offer(self, holder: ModelHolder, work: TakeSnapshot, *, run_id: str) -> SnapshotTaken | SnapshotFailed:
        """Publish the masters and their manifest under the work's tag. What prevents it is told to people too."""
        table = holder.table
        pieces = cut(table)
        total = sum(piece.byte_count for piece in pieces)
        try:
            self._make_room(len(pieces), total)
            self._offered.append((work.tag, len(pieces), total))
            hashes = []
            for piece in pieces:
                data = await anyio.to_thread.run_sync(holder.read_piece, piece)
                hashes.append(await self._transport.publish(data, tag=work.tag))
            encoded = encode(Manifest(run_id, work.step, table, tuple(hashes)))
            manifest_hash = await self._transport.publish(encoded, tag=work.tag)
        except (TransportError, ModelError) as error:
            reason = f"the model after step {work.step} cannot be offered to others: {error}"
            self._tell(report.Problem("warning", reason))
            return SnapshotFailed(work.step, reason)

        return SnapshotTaken(work.step, manifest_hash, len(encoded))

    def _make_room(self, pieces: int, total: int) -> None:
        """Raises ModelError where the transport could not keep another snapshot beside our results."""
        pieces += sum(count for _, count, _ in self._offered)
        total += sum(size for _, _, size in self._offered)
        if pieces > MAX_OFFERED_PIECES or total > MAX_OFFERED_BYTES:
            message = (
                f"with it we would offer {total} bytes in {pieces} pieces, "
                f"and at most {MAX_OFFERED_BYTES} bytes in {MAX_OFFERED_PIECES} pieces are kept at a time"
            )
            raise ModelError(message)

    def expire(self, before: int) -> None:
        """What was offered under older tags is gone."""
        self._offered = [offer for offer in self._offered if offer[0] >= before]

    # -------------------------------------------------------------------------------------------- in

    async def fetch(self, holder: ModelHolder, work: FetchModel, *, run_id: str) -> ModelFetched | ModelFetchFailed:
        """Replace the masters by those of the work's manifest, or change nothing and say why."""
        if work.manifest_hash != self._wanted:
            self._wanted, self._kept = work.manifest_hash, {}
        try:
            manifest = await self._manifest(holder.table, work, run_id=run_id)
            differing = await anyio.to_thread.run_sync(holder.differing, manifest)
            pieces = await self._pieces(manifest, frozenset(differing), work)
            await anyio.to_thread.run_sync(holder.install, manifest, pieces)
        except (TransportError, WireError, ModelError, TimeoutError) as error:
            why = str(error) or "a time-out"
            return ModelFetchFailed(work.step, f"the model after step {work.step} could not be had from others: {why}")

        self._wanted, self._kept = b"", {}
        return ModelFetched(work.step, await anyio.to_thread.run_sync(holder.full_digest))

    async def _manifest(self, table: Table, work: FetchModel, *, run_id: str) -> Manifest:
        """The manifest, read against our own table. Raises TransportError and WireError."""
        limit = max_manifest_bytes(table)
        if work.manifest_bytes > limit:
            message = f"its manifest is said to have {work.manifest_bytes} bytes, ours has at most {limit}"
            raise WireError(message)

        data = await self._blob(work.manifest_hash, limit, work.sources, tag=work.tag)
        manifest = await anyio.to_thread.run_sync(lambda: decode(data, expected=table))
        if (manifest.run_id, manifest.step) != (run_id, work.step):
            message = f"its manifest is of step {manifest.step} of run {manifest.run_id!r}"
            raise WireError(message)

        return manifest

    async def _pieces(self, manifest: Manifest, differing: frozenset[int], work: FetchModel) -> dict[int, bytes]:
        """The bytes of the pieces with these numbers. Raises TransportError for the first that cannot be had."""
        wanted = [piece for piece in cut(manifest.table) if piece.number in differing]
        sizes = {manifest.hashes[piece.number]: piece.byte_count for piece in wanted}  # equal pieces are fetched once
        pending = iter([(place, digest) for place, digest in enumerate(sizes) if digest not in self._kept])
        progress = _Progress(work.step, len(sizes), self._tell)
        progress.add([size for digest, size in sizes.items() if digest in self._kept])
        failures: list[TransportError] = []

        async def work_off(scope: anyio.CancelScope) -> None:
            for place, digest in pending:
                turn = place % len(work.sources) if work.sources else 0
                try:
                    blob = await self._blob(digest, sizes[digest], work.sources[turn:] + work.sources[:turn], tag=work.tag)
                except TransportError as error:
                    failures.append(error)
                    scope.cancel()
                    return

                self._kept[digest] = blob
                progress.add([len(blob)])

        async with anyio.create_task_group() as tasks:
            for _ in range(PIECES_AT_ONCE):
                tasks.start_soon(work_off, tasks.cancel_scope)
        if failures:
            raise failures[0]

        return {piece.number: self._kept[manifest.hashes[piece.number]] for piece in wanted}

    async def _blob(self, blob_hash: bytes, max_bytes: int, sources: Sequence[bytes], *, tag: int) -> bytes:
        timeout = GRACE_SECONDS + max_bytes / FLOOR_BYTES_PER_SECOND
        return await self._transport.fetch(blob_hash, sources=sources, max_bytes=max_bytes, timeout=timeout, tag=tag)


class _Progress:
    """Tells how far a fetch is, about a hundred times at most. total: pieces to get."""

    def __init__(self, step: int, total: int, tell: Callable[[report.Event], None]) -> None:
        self._step = step
        self._total = total
        self._tell = tell
        self._done = 0
        self._bytes = 0
        self._percent = -1

    def add(self, sizes: Sequence[int]) -> None:
        """Note pieces of these lengths, and tell when another hundredth is done."""
        self._done += len(sizes)
        self._bytes += sum(sizes)
        percent = 100 * self._done // self._total if self._total else 100
        if percent != self._percent:
            self._percent = percent
            self._tell(report.ModelSync(self._step, self._done, self._total, self._bytes))
