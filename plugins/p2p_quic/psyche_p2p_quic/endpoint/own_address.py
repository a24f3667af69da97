"""Keeps our own address current: what is bound, what the user advertises, and what a relay's observer sees.

Behind a router an endpoint knows only addresses of its own network. The observer of a relay (`address_observer.protocol`) tells
us the address that others see; the connection to it stays open, so that the router keeps the mapping. Only the relay itself is
asked where its observer is; redirects are not followed and no proxy is used. The observer is asked again every minute, because
routers change mappings. This module does not decide which relays are used.
"""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from psyche_core.errors import TransportError, WireError
from psyche_p2p_quic.address_observer.protocol import MAX_LOCATION_BYTES, PATH, REFRESH_SECONDS, ObserverLocation
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.endpoint.links import Link
from psyche_p2p_quic.settings import QuicSettings

logger: logging.Logger = logging.getLogger("psyche.p2p")

HTTP_SECONDS = 5.0
CALL_SECONDS = 5.0
RETRY_SECONDS, RETRY_MOST_SECONDS = 1.0, 60.0
MAX_HOSTS = 4
FORGET_AFTER = 3
"""Failed calls in a row after which the last observation is no longer offered to peers."""


class OwnAddress:
    """Keeps the external addresses of an endpoint. advertised: `ip:port` texts, always offered. observe: whether to ask
    observers.

    After `ask_again` the observers of the endpoint's relays are asked at once. `asked` is set once one of them has answered or
    all have failed.
    """

    def __init__(self, endpoint: Endpoint, *, advertised: Sequence[str] = (), observe: bool = True) -> None:
        self.asked: anyio.Event = anyio.Event()
        self.observed: str | None = None
        self._endpoint = endpoint
        self._advertised = tuple(advertised)
        self._observe = observe
        self._again = anyio.Event()
        self._failures = 0
        self._held: Link | None = None

    def ask_again(self) -> None:
        """Ask the observers of the relays now, because the relays have changed."""
        self.asked = anyio.Event()
        self._again.set()

    async def follow_interface(self, moved: Callable[[], None], settings: QuicSettings) -> None:
        """Bind again whenever this machine has moved to another network, see `Endpoint.follow_interface`; until cancelled."""
        while True:
            await anyio.sleep(settings.interface_seconds)
            try:
                if not await self._endpoint.follow_interface(moved, timeout=settings.close_seconds):
                    continue
                self.observed, self._failures = None, 0
                await self._offer()
            except TransportError as error:
                logger.warning("this machine has moved to another network, and its address cannot be used: %s", error)
                continue

            logger.info("this machine has moved to another network")
            self.ask_again()

    async def run(self) -> None:
        """Keep the addresses until cancelled."""
        pause = RETRY_SECONDS
        await self._offer()
        try:
            while True:
                self._again = anyio.Event()
                relays = self._endpoint.relays if self._observe else ()
                answered = await self._ask(relays)
                self.asked.set()
                pause = RETRY_SECONDS if answered else min(2 * pause, RETRY_MOST_SECONDS)
                await self._wait(REFRESH_SECONDS if answered else pause if relays else None)
        finally:
            self._hold(None)

    async def _wait(self, seconds: float | None) -> None:
        """Wait until it is time to ask again: after some seconds, when the relays change, or when the observer disconnects."""
        again = self._again
        with anyio.move_on_after(seconds):
            if self._held is None:
                await again.wait()
                return

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._until_closed, self._held, tasks.cancel_scope)
                await again.wait()
                tasks.cancel_scope.cancel()

    async def _until_closed(self, held: Link, scope: anyio.CancelScope) -> None:
        await held.closed()
        await anyio.sleep(RETRY_SECONDS)  # an observer that closes at once must not be called without a pause
        scope.cancel()

    async def _ask(self, relays: Sequence[str]) -> bool:
        """Ask the observers of these relays one after the other; return whether one answered."""
        for relay in relays:
            try:
                link, seen = await self._call(relay)
            except (OSError, TransportError, WireError, TimeoutError, http.client.HTTPException) as error:
                logger.debug("the observer of %s: %r", relay, error)
                continue

            self._hold(link)
            self._failures = 0
            if seen != self.observed:
                logger.info("others see this client at %s", seen)
                self.observed = seen
                await self._offer()
            return True

        self._failures += 1
        if self.observed is not None and (not relays or self._failures >= FORGET_AFTER):
            self.observed = None
            await self._offer()
        return False

    async def _call(self, relay: str) -> tuple[Link, str]:
        with anyio.fail_after(HTTP_SECONDS):
            answer = await anyio.to_thread.run_sync(locate_observer, relay, abandon_on_cancel=True)
        with anyio.fail_after(CALL_SECONDS):
            link, observation = await self._endpoint.call_observer(answer.location, answer.hosts)
        return link, str(observation)

    def _hold(self, link: Link | None) -> None:
        if self._held is not None and self._held is not link:
            self._held.close(0, "called again")
        self._held = link

    async def _offer(self) -> None:
        seen = () if self.observed is None or self._endpoint.is_bound(self.observed) else (self.observed,)
        await self._endpoint.use_external(tuple(dict.fromkeys((*self._advertised, *seen))))


@dataclass(frozen=True, slots=True)
class RelayAnswer:
    """A relay's answer about its observer.

    hosts: IP addresses of the relay's host, IPv4 if there are any. date: its clock's unix seconds, None if it did not send them;
    whole seconds.
    """

    location: ObserverLocation
    hosts: tuple[str, ...]
    date: float | None


def locate_observer(relay: str, *, seconds: float = HTTP_SECONDS) -> RelayAnswer:
    """Ask a relay where its observer is. Blocks.

    Raises OSError and HTTPException (the relay cannot be reached), WireError (it has no observer, or answers something else).
    """
    parts = urlsplit(relay)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection = (
        http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=seconds)
    )
    try:
        connection.request("GET", PATH, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        body, date = answer.read(MAX_LOCATION_BYTES + 1), answer.getheader("Date", "")
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        message = f"the relay {relay} has no observer (HTTP {answer.status})"
        raise WireError(message)

    location = ObserverLocation.decode(body)
    found = [str(each[4][0]) for each in socket.getaddrinfo(host, location.port, type=socket.SOCK_DGRAM)]
    texts = [text for text in dict.fromkeys(found) if "%" not in text]
    return RelayAnswer(location, tuple([text for text in texts if ":" not in text] or texts)[:MAX_HOSTS], _seconds(date))


def _seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
