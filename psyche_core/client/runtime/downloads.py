"""Downloads the payloads of other members, a few at a time, so that a slow one does not block the others for long.

When a download has held its place for too long it continues, but another one starts beside it. So downloads share the connection
in order, and a source that sends nothing delays nobody. Nothing is cancelled. The machine decides what is fetched and when it is
fetched again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import anyio

from psyche_core.client.machine.actions import FetchPayload
from psyche_core.client.machine.events import PayloadChecked, PayloadCheckFailed, PayloadMissing
from psyche_core.client.runtime.reports.fetch_times import FetchTimes
from psyche_core.client.runtime.reports.network_reporter import NetworkReporter
from psyche_core.client.runtime.worker import Worker
from psyche_core.errors import BlobRejected, TransportError
from psyche_core.interfaces import Transport

logger: logging.Logger = logging.getLogger("psyche.client")

FETCH_TIMEOUT = 30.0
"""Seconds without progress after which a download is given up; the machine then asks again. See `wanted_by_all` of a fetch."""

DOWNLOADS_AT_ONCE = 8
DOWNLOAD_TURN = 2.0
"""Seconds after which an unfinished payload download no longer delays the next one."""


class Limiter:
    """Limits how many turns run at once. count: the limit. seconds: after this time a turn no longer counts."""

    def __init__(self, count: int, *, seconds: float) -> None:
        self._count = count
        self._seconds = seconds
        self._begun: dict[object, float] = {}
        self._ended = anyio.Event()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; it ends with the block."""
        while (pause := self._pause()) > 0:
            with anyio.move_on_after(pause):
                await self._ended.wait()

        ticket = object()
        self._begun[ticket] = anyio.current_time()
        try:
            yield
        finally:
            del self._begun[ticket]
            self._ended.set()
            self._ended = anyio.Event()

    def _pause(self) -> float:
        """Return the seconds until a turn is free even if no task ends; 0 if one is free now."""
        now = anyio.current_time()
        ends = sorted(begun + self._seconds for begun in self._begun.values() if now < begun + self._seconds)
        return 0.0 if len(ends) < self._count else ends[len(ends) - self._count] - now


class PayloadDownloads:
    """Fetches payloads and lets the worker check them.

    network: counts the downloads. times: records the start and the end of each download. at_once: how many downloads run at once,
    see the module. explain: returns one sentence about an unexpected exception.
    """

    def __init__(
        self,
        transport: Transport,
        worker: Worker,
        *,
        network: NetworkReporter,
        times: FetchTimes,
        at_once: int,
        explain: Callable[[BaseException], str],
    ) -> None:
        self._transport = transport
        self._worker = worker
        self._network = network
        self._times = times
        self._limiter = Limiter(at_once, seconds=DOWNLOAD_TURN)
        self._explain = explain

    def _turn(self) -> AbstractAsyncContextManager[None]:
        """A turn; at once where the transport has neighbours: it chooses among all that is wanted, and receives a few at once."""
        return self._limiter.turn() if self._transport.stats.neighbours is None else nullcontext()

    async def fetch(self, action: FetchPayload) -> PayloadChecked | PayloadCheckFailed | PayloadMissing:
        """Fetch and check one payload. Raises RanksLost."""
        limit = self._worker.resources.trainer.max_payload_bytes
        self._network.count(downloads_started=1)
        self._times.begun(anyio.current_time())
        payload: bytes | None = None
        name = action.payload_hash[:4].hex()
        try:
            async with self._turn():
                payload = await self._transport.fetch(
                    action.payload_hash,
                    sources=action.sources,
                    max_bytes=limit,
                    timeout=FETCH_TIMEOUT,
                    tag=action.tag,
                    wanted_by_all=True,
                )
        except BlobRejected as error:
            logger.warning("payload %s: %s", name, error)
        except (TransportError, TimeoutError) as error:
            logger.info("payload %s: %s", name, error)
        except Exception as error:
            logger.debug("fetching a payload failed", exc_info=error)
            logger.warning("payload %s: %s", name, self._explain(error))
        finally:
            self._times.ended(anyio.current_time(), size=None if payload is None else len(payload))

        if payload is not None:
            self._network.count(downloads_finished=1, download_bytes=len(payload))
            return await self._worker.receive(action.payload_hash, payload, tag=action.tag)

        self._network.count(downloads_failed=1)
        return PayloadMissing(action.payload_hash)
