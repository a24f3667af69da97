"""Blob exchange: serves blobs from the store or from offers, and fetches blobs from one source after another.

Each request has its own stream. `frames` defines request and answer; the body follows the head, and nothing follows the
body. When a source is slow, another one is asked at the same time (`hedging`), and the first correct answer wins. When no source
is left that has the blob, members that did not have it are asked again, because they may have got it since.

Every body is compared with its hash before it is used, in a worker thread when it is large. A wrong body counts against its
sender, who is asked last from then on. An offered blob is read when it is requested, compared with its hash and only then
announced, so it is in memory only while it is sent. Only blobs in the store and offered blobs are served. How many
offered blobs are read at the same time is limited here, for each peer and for all. Bytes a second are limited if the member wants
that (`upload_limit`): what is in the store are results of rounds, which go first; what is offered are pieces of the model.

Where not all members are connected, results come from neighbours that announced them (`results`) and wait for their turn when
they are sent (`upload_turns`), and sources that are no neighbours are dialled (`visits`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import anyio
import anyio.to_thread

from psyche_core.errors import BlobNotFound, BlobRejected, WireError
from psyche_core.p2p.blob_store import BlobStore
from psyche_core.p2p.fetch_plan import Answer, FetchPlan, Outcome
from psyche_core.p2p.offers import Offer, OfferBook
from psyche_core.p2p.patience import Patience
from psyche_p2p_quic.blobs.frames import BLOB_HEAD_BYTES, BLOB_REQUEST_BYTES, BlobHead, BlobRequest
from psyche_p2p_quic.blobs.hedging import HedgedRequest, Hedging
from psyche_p2p_quic.blobs.reading import read_body, read_head, verified
from psyche_p2p_quic.blobs.results import Results, blame
from psyche_p2p_quic.blobs.upload_limit import UploadLimit
from psyche_p2p_quic.blobs.upload_turns import UploadTurns
from psyche_p2p_quic.blobs.visits import Visits
from psyche_p2p_quic.connections.mesh import Mesh
from psyche_p2p_quic.connections.session import Session
from psyche_p2p_quic.endpoint.links import LinkLost, Stream
from psyche_p2p_quic.settings import QuicSettings

logger: logging.Logger = logging.getLogger("psyche.p2p")

FIRST_BYTES = 64 * 1024
"""Bytes of a body that are sent together with the head."""

SLOWEST_LINE = 16 * 1024
"""Bytes a second that the slowest accepted receiver takes from the library; home connections are faster."""

MOST_BYTES = 2**64 - 1


@dataclass(slots=True)
class _Transfer:
    """A fetch that all callers for the same blob share. waiters: number of callers that still wait.

    received: bytes that have come so far, from all sources together.
    """

    plan: FetchPlan
    max_bytes: int
    waiters: int = 0
    received: int = 0
    task: asyncio.Task[bytes] | None = field(default=None)


class BlobExchange:
    """Serves what is in `store` and `offers` over the sessions of `mesh`, and fetches blobs over them.

    upload_rate: most bytes a second for answers, None for no limit.
    """

    def __init__(
        self, store: BlobStore, offers: OfferBook, mesh: Mesh, *, settings: QuicSettings, upload_rate: float | None = None
    ) -> None:
        self._store = store
        self._offers = offers
        self._uploads = UploadLimit(upload_rate)
        self._reading = anyio.Semaphore(self._uploads.pieces_at_once(settings.offers_read))
        self._readers = anyio.CapacityLimiter(settings.read_threads)
        self._mesh = mesh
        self._settings = settings
        self.results: Results = Results(store, mesh, settings=settings)
        self._turns = UploadTurns(seconds=settings.turn_seconds)
        self._transfers: dict[bytes, _Transfer] = {}
        self._tasks: set[asyncio.Task[bytes]] = set()

    # ----------------------------------------------------------------------------------------------------- serving

    async def serve(self, asker: Session, stream: Stream) -> int:
        """Answer one stream; return the bytes sent. Raises WireError for a malformed request, LinkLost for a lost stream."""
        answered = False
        try:
            with anyio.fail_after(self._settings.stall_seconds):
                request = BlobRequest.decode(await stream.read_exactly(BLOB_REQUEST_BYTES))
                await stream.stop_reading()

            asker.note_received(BLOB_REQUEST_BYTES)
            sent = await self._answer(asker, stream, request)
            answered = True
            return sent
        except TimeoutError as error:
            message = "the peer stopped before its request was complete"
            raise LinkLost(message) from error
        finally:
            if not answered:
                await stream.abandon()

    async def _answer(self, asker: Session, stream: Stream, request: BlobRequest) -> int:
        blob = self._store.get(request.blob_hash)
        offer = self._offers.get(request.blob_hash)
        if (
            blob is not None and self.results.active and len(blob) <= request.max_bytes
        ):  # else its head alone, which needs no turn
            size, beside = len(blob), self._mesh.guests.beside(asker.peer)
            async with self._turns.turn(request.blob_hash, asker.peer, stream, size=size, beside=beside) as granted:
                return await self._send(stream, blob if granted else None, most=request.max_bytes)

        if blob is not None or offer is None:
            return await self._send(stream, blob, most=request.max_bytes)

        if offer.size > request.max_bytes:
            return await self._send(stream, b"", claimed=offer.size)

        async with asker.being_read_to, self._reading:
            return await self._send(stream, await self._read(offer), most=request.max_bytes, piece=True)

    async def _read(self, offer: Offer) -> bytes | memoryview | None:
        """Return an offered blob; None when it is no longer valid, and then withdraw the offer."""
        blob: bytes | memoryview | None = None
        try:
            blob = await anyio.to_thread.run_sync(offer.checked, limiter=self._readers)
        except Exception as error:  # whoever offers it brings the function; no peer may be disconnected for what that does
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            logger.warning("a blob of %d bytes is offered no more, because reading it failed: %s", offer.size, what)
        if blob is None:
            self._offers.withdraw(offer)
        return blob

    async def _send(
        self, stream: Stream, blob: bytes | memoryview | None, *, most: int = 0, claimed: int = 0, piece: bool = False
    ) -> int:
        """Send head and body of an answer; only the head when there is no blob or it is longer than `most`.

        piece: of a model, which is sent no faster than the member's limit.
        """
        head = BlobHead(blob is not None, claimed or len(blob or b""))
        body = blob if blob is not None and len(blob) <= most else b""
        chunk = self._uploads.part_bytes(self._settings.chunk_bytes) if piece else self._settings.chunk_bytes
        first = min(FIRST_BYTES, chunk)
        if piece:
            await self._uploads.wait_for(len(body[:first]))
        else:
            self._uploads.note_result(len(body))
        with anyio.CancelScope(deadline=self._now() + self._settings.stall_seconds) as patience:
            await stream.write(head.encode() + body[:first])
            for at in range(first, len(body), chunk):
                part = body[at : at + chunk]
                if piece:
                    patience.deadline = math.inf
                    await self._uploads.wait_for(len(part))
                patience.deadline = self._now() + self._settings.stall_seconds + chunk / SLOWEST_LINE
                await stream.write(part)

            # The library accepted all of it at once, but has not sent it yet.
            patience.deadline = self._now() + self._settings.stall_seconds + len(body) / SLOWEST_LINE
            await stream.finish()
            await stream.delivered()
            return BLOB_HEAD_BYTES + len(body)

        message = "the peer took too little for too long"
        raise TimeoutError(message)

    # ---------------------------------------------------------------------------------------------------- fetching

    async def own(self, blob_hash: bytes) -> bytes | None:
        """Return a blob that we have or offer ourselves."""
        blob = self._store.get(blob_hash)
        offer = self._offers.get(blob_hash)
        if blob is not None or offer is None:
            return blob

        read = await self._read(offer)
        return None if read is None else bytes(read)

    async def fetch_result(self, blob_hash: bytes, *, sources: Sequence[bytes], max_bytes: int, timeout: float) -> bytes:
        """Get a result: from those that announced it, and if that is in vain like any blob.

        timeout: seconds without progress. Raises as `fetch` does.
        """
        patience = Patience(timeout, now=self._now(), least=self._settings.hedge_bytes / self._settings.hedge_seconds)
        if self.results.active:
            blob = await self.results.fetch(blob_hash, sources=sources, max_bytes=max_bytes, patience=patience)
            if blob is not None:
                return blob

        return await self._fetch(blob_hash, sources=sources, max_bytes=max_bytes, patience=patience)

    def expire(self) -> None:
        """Forget what concerns results that are not kept any more."""
        self._turns.expire(self._store)

    async def fetch(self, blob_hash: bytes, *, sources: Sequence[bytes], max_bytes: int, timeout: float) -> bytes:
        """Get a blob that is not in the store. Raises BlobNotFound or BlobRejected."""
        patience = Patience(timeout, now=self._now())
        return await self._fetch(blob_hash, sources=sources, max_bytes=max_bytes, patience=patience)

    async def _fetch(self, blob_hash: bytes, *, sources: Sequence[bytes], max_bytes: int, patience: Patience) -> bytes:
        transfer = self._transfers.get(blob_hash)
        if transfer is None or transfer.max_bytes < max_bytes:
            transfer = _Transfer(FetchPlan(sources), max_bytes)
            transfer.task = asyncio.create_task(self._transfer(blob_hash, transfer))
            transfer.task.add_done_callback(self._forget)
            self._tasks.add(transfer.task)
            self._transfers[blob_hash] = transfer
        else:
            transfer.plan.add(sources)

        assert transfer.task is not None
        transfer.waiters += 1
        try:
            seen = transfer.received
            while not transfer.task.done() and (left := patience.left(self._now())) > 0:
                await asyncio.wait({transfer.task}, timeout=left)
                patience.note(transfer.received - seen, self._now())
                seen = transfer.received
            done = transfer.task.done()
        finally:
            transfer.waiters -= 1
            if transfer.waiters == 0 or transfer.task.done():
                transfer.task.cancel()
                if self._transfers.get(blob_hash) is transfer:
                    del self._transfers[blob_hash]

        if not done or transfer.task.cancelled():
            message = f"nobody reachable had blob {blob_hash.hex()} within {patience.timeout:g} s"
            raise BlobNotFound(message)

        blob = transfer.task.result()
        if len(blob) > max_bytes:
            message = f"blob {blob_hash.hex()} has {len(blob)} bytes, over the limit of {max_bytes}"
            raise BlobRejected(message)

        return blob

    async def aclose(self) -> None:
        """Stop all transfers; callers that wait for one get BlobNotFound."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.results.aclose()

    def _forget(self, task: asyncio.Task[bytes]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved, because all its waiters may have ended

    async def _transfer(self, blob_hash: bytes, transfer: _Transfer) -> bytes:
        plan, requests, settings = transfer.plan, dict[asyncio.Task[bytes | Answer], HedgedRequest](), self._settings
        hedging = Hedging(settings.hedge_seconds, settings.hedge_bytes, settings.hedge_rest_seconds, settings.again_seconds)
        now = asyncio.get_running_loop().time
        visits = Visits(self._mesh, plan, settings=settings)
        visiting = None if self._mesh.guests.neighbours is None else asyncio.create_task(visits.run())
        try:
            while True:
                changed = self._mesh.changed
                wanted, full = hedging.wants_another(requests.values(), now()), len(requests) >= settings.hedge_sources
                leaves = hedging.makes_place(requests.values(), now()) if wanted and full else None
                if wanted and (not full or leaves is not None):
                    mesh = self._mesh
                    peer = plan.begin(
                        members=visits.askable(), reachable=mesh.sessions, doubted=mesh.reputation.doubted, slow=mesh.relayed
                    )
                    if peer is not None:
                        source, hedged = mesh.sessions[peer], HedgedRequest(peer, now(), now())
                        if leaves is not None:
                            await self._release(requests, leaves, plan)
                        hedging.entered(hedged, requests.values())
                        requests[asyncio.create_task(self._ask(source, blob_hash, transfer, hedged))] = hedged
                        continue

                    open_still = plan.outcome(visits.askable()) is Outcome.OPEN  # a source is slow, or a member is not reachable
                    if open_still and hedging.again_due(now()) and plan.ask_again():
                        continue

                plan.raise_if_over(blob_hash, visits.askable())
                for task in await self._first_done(set(requests), changed):
                    answer = task.result()
                    if isinstance(answer, bytes):
                        return answer

                    plan.settle(requests.pop(task).peer, answer)
                given_up = hedging.look(requests.values(), now())
                if given_up is not None:
                    await self._release(requests, given_up, plan)
        finally:
            ending: list[asyncio.Task[Any]] = [*requests] if visiting is None else [*requests, visiting]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _release(
        self, requests: dict[asyncio.Task[bytes | Answer], HedgedRequest], hedged: HedgedRequest, plan: FetchPlan
    ) -> None:
        """Stop asking a source, which has not failed; it may be asked again later."""
        task = next(task for task, known in requests.items() if known is hedged)
        del requests[task]
        plan.release(hedged.peer)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _first_done(
        self, tasks: set[asyncio.Task[bytes | Answer]], changed: anyio.Event
    ) -> set[asyncio.Task[bytes | Answer]]:
        """Wait until a task is done, the mesh has changed or the hedge delay has passed; return the tasks that are done."""
        waiter = asyncio.create_task(changed.wait())
        try:
            await asyncio.wait({*tasks, waiter}, timeout=self._settings.hedge_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()

        return {task for task in tasks if task.done()}

    async def _ask(self, source: Session, blob_hash: bytes, transfer: _Transfer, hedged: HedgedRequest) -> bytes | Answer:
        """Ask one source; return the verified blob, or how the request failed."""

        def count(received: int) -> None:
            source.note_received(received)
            transfer.received += received

        async with source.asking:
            try:
                stream = await source.open()
            except LinkLost:
                return Answer.LOST

            complete = False
            try:
                request = BlobRequest(blob_hash, min(transfer.max_bytes, MOST_BYTES))
                stall = self._settings.stall_seconds
                answer: BytesIO | BlobHead | Answer = await read_head(stream, request, seconds=stall, count=count)
                if isinstance(answer, BlobHead):
                    answer = await read_body(stream, answer.length, seconds=stall, progress=hedged, count=count)
                complete = not isinstance(answer, Answer) or answer is Answer.ABSENT
            except (LinkLost, WireError, TimeoutError):
                return Answer.LOST
            finally:
                if not complete:
                    await stream.abandon()

        if not isinstance(answer, BytesIO):
            return answer

        blob = await verified(answer, blob_hash)
        if blob is None:
            blame(self._mesh, source)
            return Answer.FALSE

        return blob

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
