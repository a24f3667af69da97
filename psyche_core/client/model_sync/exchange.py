"""Transfers a whole model from member to member as blobs (protocol section 5).

To offer a model, its master weights are written piece by piece to a scratch file and each piece is offered from there. Then the
manifest that names the pieces is published, so whoever has the manifest can get the rest. To fetch a model, the manifest is
checked against our own parameter table. Only pieces that differ from our master weights are fetched, many at once and from all
sources, into a scratch file; each is offered to others as soon as it is there. The master weights are replaced when every piece
is there and verified, never before.

What is offered or fetched is on disk, so a model needs little more memory than its master weights, and the disk is the limit;
only a few models are offered at a time. What was fetched for a manifest is kept until another manifest is asked for, even if the
process is killed, so a second attempt continues the first. A piece that cannot be read back is fetched once more. The machine
decides which master weights are the right ones.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread

from psyche_core.client.machine.actions import FetchModel, TakeSnapshot
from psyche_core.client.machine.events import ModelFetched, ModelFetchFailed, SnapshotFailed, SnapshotTaken
from psyche_core.client.model_sync.multi_source import fetch_timeout, gather
from psyche_core.errors import ModelError, ModelHalfReplaced, TransportError, WireError
from psyche_core.interfaces import Transport
from psyche_core.p2p.manifest import Manifest, Piece, Table, cut, decode, encode, max_manifest_bytes
from psyche_core.storage.scratch import Scratch, ScratchFile
from psyche_core.telemetry import events as telemetry
from psyche_core.training.malloc_tuning import give_back_memory
from psyche_core.training.piece_file import PieceFile, PiecesOnDisk

PIECES_AT_ONCE = 8
"""Default number of pieces fetched at the same time."""

PIECES_PER_TURN = 16
"""Pieces that a worker thread reads, hashes or writes before it checks for cancellation."""

MOST_OFFERED = 8
"""Most models, ours and fetched ones, that are offered and on our disk at a time. The client machine stays below it, and says
which ones to remove (`client.machine.replica.snapshot_offers`)."""

INSTALLATIONS = 2
"""Attempts to replace the master weights with fetched ones. Before the second, pieces damaged on disk are fetched again."""


class ModelHolder(Protocol):
    """Interface of a trainer whose master weights are transferred."""

    @property
    def table(self) -> Table:
        """Names and shapes of the master weights."""

    def read_piece(self, piece: Piece) -> bytes:
        """Return the bytes of one piece of the master weights."""

    def differing(self, manifest: Manifest) -> Sequence[int]:
        """Return the numbers of the pieces in which the master weights differ from a manifest. Raises ModelError."""

    def install(self, manifest: Manifest, pieces: Mapping[int, bytes | memoryview]) -> None:
        """Replace the master weights by a manifest's and forget everything else.

        pieces: read one at a time; reading may raise OSError. Raises ModelError, with nothing changed, if that is impossible, and
        ModelHalfReplaced if it failed half way.
        """

    def full_digest(self) -> bytes:
        """Return the SHA-256 over all master weights."""


@dataclass(slots=True)
class _Incoming:
    """The fetched part of a manifest's model. have: numbers of the pieces whose verified bytes are in the file."""

    manifest_hash: bytes
    file: PieceFile
    have: set[int] = field(default_factory=set)


class ModelExchange:
    """Transfers models for one client, for one caller at a time.

    report: takes progress and problems. scratch: where files are put; None for a private folder. at_once: pieces to fetch at the
    same time.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        report: Callable[[telemetry.Event], None],
        scratch: Scratch | None = None,
        at_once: int = PIECES_AT_ONCE,
    ) -> None:
        self._transport = transport
        self._report = report
        self._scratch = scratch
        self._own_scratch: Scratch | None = None
        self._at_once = at_once
        self._offered: list[tuple[int, PieceFile]] = []  # by tag
        self._incoming: _Incoming | None = None
        self._unusable = ""

    def check_usable(self) -> None:
        """Raise ModelError after a replacement failed half way, because the master weights are then a mix of two models."""
        if self._unusable:
            raise ModelError(self._unusable)

    def model_replaced(self) -> None:
        """Note that the master weights were loaded from elsewhere, so an earlier failure no longer matters."""
        self._unusable = ""

    async def expire(self, before: int) -> None:
        """Remove what was offered under older tags, with its files."""
        await self._remove(lambda tag: tag < before)

    async def _remove(self, outlived: Callable[[int], bool]) -> None:
        """Remove offered files by tag. The transport reads pieces from the files, so it no longer serves these pieces either."""
        removed = [file for tag, file in self._offered if outlived(tag)]
        self._offered = [(tag, file) for tag, file in self._offered if not outlived(tag)]
        for file in removed:
            await anyio.to_thread.run_sync(file.remove)

    async def aclose(self) -> None:
        """Remove the files of our private folder; the owner of a given scratch closes it. Idempotent."""
        if self._own_scratch is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._own_scratch.close)

    # -------------------------------------------------------------------------------------------- out

    async def offer(self, holder: ModelHolder, work: TakeSnapshot, *, run_id: str) -> SnapshotTaken | SnapshotFailed:
        """Write the master weights to disk, then offer them and their manifest under the work's tag. Failures are reported."""
        try:
            await self._remove(lambda tag: tag in work.withdrawn)
            self.check_usable()
            if len(self._offered) >= MOST_OFFERED:
                message = f"{len(self._offered)} are being offered already, as many as are kept on disk at a time"
                raise ModelError(message)

            table = holder.table
            file = await anyio.to_thread.run_sync(self._snapshot_file, cut(table))
            self._offered.append((work.tag, file))
            try:
                hashes = await self._write_down(holder, file, cut(table))
                await self._offer(file, dict(enumerate(hashes)), cut(table), tag=work.tag)
                encoded = encode(Manifest(run_id, work.step, table, hashes))
                manifest_hash = await self._transport.publish(encoded, tag=work.tag)
                await anyio.to_thread.run_sync(give_back_memory)
            except BaseException:
                self._offered = [known for known in self._offered if known[1] is not file]
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(file.remove)
                raise
        except (TransportError, ModelError, OSError) as error:
            reason = f"the model after step {work.step} cannot be offered to others: {_sentence(error)}"
            self._report(telemetry.Problem("warning", reason))
            return SnapshotFailed(work.step, reason)

        return SnapshotTaken(work.step, manifest_hash, len(encoded))

    def _snapshot_file(self, pieces: tuple[Piece, ...]) -> PieceFile:
        """Return an empty file with space for a whole model. Raises OSError."""
        file = PieceFile(self._folder().create("snapshot"), pieces)
        _or_removed(file, partial(file.reserve, range(len(pieces))))
        return file

    async def _write_down(self, holder: ModelHolder, file: PieceFile, pieces: tuple[Piece, ...]) -> tuple[bytes, ...]:
        """Copy all master weights into a file; return the hashes of the pieces."""

        def write(turn: Sequence[Piece]) -> list[bytes]:
            found = []
            for piece in turn:
                data = holder.read_piece(piece)
                file.write(piece.number, data)
                found.append(hashlib.sha256(data).digest())
            return found

        hashes: list[bytes] = []
        for turn in _turns(pieces):
            hashes += await anyio.to_thread.run_sync(write, turn)
        return tuple(hashes)

    async def _offer(self, file: PieceFile, hashes: Mapping[int, bytes], pieces: tuple[Piece, ...], *, tag: int) -> None:
        """Offer pieces of a file. hashes: by number."""
        for number, digest in hashes.items():
            size, read = pieces[number].byte_count, partial(file.read, number)
            await self._transport.offer(digest, size=size, read=read, tag=tag, stamp=file.stamp)

    def _folder(self) -> Scratch:
        if self._scratch is None:
            self._scratch = self._own_scratch = Scratch()
        return self._scratch

    # -------------------------------------------------------------------------------------------- in

    async def fetch(self, holder: ModelHolder, work: FetchModel, *, run_id: str) -> ModelFetched | ModelFetchFailed:
        """Replace the master weights by those of the work's manifest, or change nothing and return why.

        The master weights are lost only if the replacement itself fails half way; `check_usable` then raises until a fetch
        succeeds.
        """
        try:
            manifest = await self._manifest(holder.table, work, run_id=run_id)
            incoming = await self._resumed(manifest, work)
            for attempt in range(1, INSTALLATIONS + 1):
                wanted = frozenset(await anyio.to_thread.run_sync(holder.differing, manifest))
                await self._fill(incoming, manifest, wanted, work)
                await anyio.to_thread.run_sync(give_back_memory)
                try:
                    await anyio.to_thread.run_sync(holder.install, manifest, PiecesOnDisk(incoming.file, wanted))
                    break
                except ModelError as error:
                    half = isinstance(error, ModelHalfReplaced)
                    if half:
                        self._unusable = str(error)
                    gone = wanted - await self._held(incoming.file, manifest, wanted)
                    incoming.have -= gone
                    if attempt == INSTALLATIONS or not (gone or half):
                        raise

        except (TransportError, WireError, ModelError, TimeoutError, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                await self._drop_incoming()  # the file may be damaged: the next attempt uses a new one
            reason = f"the model after step {work.step} could not be had from others: {_sentence(error)}"
            if self._unusable not in reason:
                reason += f"; {self._unusable}"
            return ModelFetchFailed(work.step, reason)

        self._unusable = ""
        self._incoming = None
        incoming.file.resumable = False
        self._offered.append((work.tag, incoming.file))
        return ModelFetched(work.step, await anyio.to_thread.run_sync(holder.full_digest))

    async def _manifest(self, table: Table, work: FetchModel, *, run_id: str) -> Manifest:
        """Return the manifest, checked against our own table. Raises TransportError and WireError."""
        limit = max_manifest_bytes(table)
        if work.manifest_bytes > limit:
            message = f"its manifest is said to have {work.manifest_bytes} bytes, ours has at most {limit}"
            raise WireError(message)

        data = await self._transport.fetch(
            work.manifest_hash, sources=work.sources, max_bytes=limit, timeout=fetch_timeout(limit), tag=work.tag
        )
        manifest = await anyio.to_thread.run_sync(lambda: decode(data, expected=table))
        if (manifest.run_id, manifest.step) != (run_id, work.step):
            message = f"its manifest is of step {manifest.step} of run {manifest.run_id!r}"
            raise WireError(message)

        return manifest

    async def _resumed(self, manifest: Manifest, work: FetchModel) -> _Incoming:
        """Return what we have of this manifest's model: from our last attempt, from a killed process, or nothing yet."""
        if self._incoming is not None and self._incoming.manifest_hash == work.manifest_hash:
            return self._incoming

        def find() -> tuple[ScratchFile, bool]:
            key = f"{work.manifest_hash.hex()} of {manifest.run_id}"
            left = self._folder().adopt("model", key)
            return (left, True) if left is not None else (self._folder().create("model", key, resumable=True), False)

        await self._drop_incoming()
        pieces = cut(manifest.table)
        found, left_behind = await anyio.to_thread.run_sync(find)
        self._incoming = incoming = _Incoming(work.manifest_hash, PieceFile(found, pieces))
        if left_behind:
            incoming.have = await self._held(incoming.file, manifest, range(len(pieces)))
        return incoming

    async def _drop_incoming(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            await anyio.to_thread.run_sync(incoming.file.remove)

    async def _held(self, file: PieceFile, manifest: Manifest, numbers: Iterable[int]) -> set[int]:
        """Return the numbers of the pieces in a file whose bytes match the manifest."""

        def held(turn: Sequence[int]) -> list[int]:
            return [number for number in turn if file.holds(number, manifest.hashes[number])]

        found: set[int] = set()
        for turn in _turns(sorted(numbers)):
            found.update(await anyio.to_thread.run_sync(held, turn))
        return found

    async def _fill(self, incoming: _Incoming, manifest: Manifest, numbers: Collection[int], work: FetchModel) -> None:
        """Fetch these pieces into the file. Raises TransportError when some cannot be fetched."""
        pieces = cut(manifest.table)
        places: dict[bytes, list[int]] = {}  # equal pieces are fetched once
        for number in sorted(numbers):
            places.setdefault(manifest.hashes[number], []).append(number)
        sizes = {digest: max(pieces[number].byte_count for number in at) for digest, at in places.items()}
        there = {digest: at[0] for digest, at in places.items() if incoming.have.issuperset(at)}
        missing = {digest: size for digest, size in sizes.items() if digest not in there}
        progress = _Progress(work.step, len(sizes), self._report)
        progress.add([sizes[digest] for digest in there])
        await anyio.to_thread.run_sync(incoming.file.reserve, [n for digest in missing for n in places[digest]])
        await self._pass_on(incoming.file, {number: digest for digest, number in there.items()}, pieces, tag=work.tag)

        def write(at: list[int], blob: bytes) -> None:
            for number in at:
                if len(blob) != pieces[number].byte_count:
                    message = (
                        f"piece {number} of the model ({pieces[number].name}) has {pieces[number].byte_count} bytes, "
                        f"its manifest names one of {len(blob)}"
                    )
                    raise ModelError(message)
                incoming.file.write(number, blob)

        async def keep(digest: bytes, blob: bytes) -> None:
            at = places[digest]
            await anyio.to_thread.run_sync(write, at, blob)
            incoming.have.update(at)
            await self._pass_on(incoming.file, {at[0]: digest}, pieces, tag=work.tag)
            progress.add([len(blob)])

        await gather(self._transport, missing, sources=work.sources, at_once=self._at_once, tag=work.tag, keep=keep)

    async def _pass_on(self, file: PieceFile, hashes: Mapping[int, bytes], pieces: tuple[Piece, ...], *, tag: int) -> None:
        """Offer others the fetched part of a model; a failure must not stop us."""
        with contextlib.suppress(TransportError):
            await self._offer(file, hashes, pieces, tag=tag)


class _Progress:
    """Reports the progress of a fetch, at most about a hundred times. total: pieces to get."""

    def __init__(self, step: int, total: int, report: Callable[[telemetry.Event], None]) -> None:
        self._step = step
        self._total = total
        self._report = report
        self._done = 0
        self._bytes = 0
        self._percent = -1

    def add(self, sizes: Sequence[int]) -> None:
        """Count pieces of these lengths; report when another hundredth is done."""
        self._done += len(sizes)
        self._bytes += sum(sizes)
        percent = 100 * self._done // self._total if self._total else 100
        if percent != self._percent:
            self._percent = percent
            self._report(telemetry.ModelSync(self._step, self._done, self._total, self._bytes))


Item = TypeVar("Item")


def _turns(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for first in range(0, len(items), PIECES_PER_TURN):
        yield items[first : first + PIECES_PER_TURN]


def _or_removed(file: PieceFile, prepare: Callable[[], None]) -> None:
    """Prepare a new file; remove it if that fails."""
    try:
        prepare()
    except BaseException:
        file.remove()
        raise


def _sentence(error: Exception) -> str:
    """Return what went wrong, in words."""
    if isinstance(error, OSError) and error.strerror:
        hint = "; make room, or name another folder with --cache-dir" if error.errno == errno.ENOSPC else ""
        return f"the scratch file could not be used ({error.strerror}){hint}"

    return str(error) or "a time-out"
