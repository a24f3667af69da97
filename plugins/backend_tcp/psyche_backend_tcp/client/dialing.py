"""Connects to a coordinator server again and again, until it answers or the time for it is over.

Pauses between tries grow and are partly random, so that the members of a restarted server do not return all at once. A server
that is not running yet, or full, is tried for as long as a lost one; an error that the user can fix is raised at once.
`connection` decides what is sent over a connection.
"""

from __future__ import annotations

import logging
import random
import ssl
import time
from collections.abc import Callable

import anyio

from psyche_backend_tcp.connections.addresses import ServerAddress
from psyche_backend_tcp.connections.dialer import DialedConnection, dial
from psyche_backend_tcp.connections.login import COORDINATOR
from psyche_core.errors import (
    AccessRefused,
    BackendClosed,
    BackendError,
    CommandRefused,
    KeyUsedElsewhere,
    PsycheError,
    UnknownHost,
)
from psyche_core.hookspecs import BackendContext

logger: logging.Logger = logging.getLogger("psyche.backend.tcp")

CONNECT_SECONDS = 10.0
RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 5.0
"""Longest pause between two tries; a restarted server waits longer than this for its members."""

FINAL_CODES = frozenset(
    {"Replaced", "KeyInUse", "Finished", "WrongRun", "VersionMismatch", "WrongService", "BadSignature", "BadLogin", "NotAllowed"}
)
"""Codes of a bye after which retrying is useless."""

SAME_KEY_CODES = frozenset({"Replaced", "KeyInUse"})
"""Codes of a bye that is sent because another client uses our key: it replaced us, or keeps the key."""

_LATER = frozenset({"Busy", "RateLimited"})
"""Refusals after which the client can only try again later."""

_MENDABLE = frozenset({"WrongServer", "WrongRun", "WrongService", "VersionMismatch", "NotAllowed", "NotPsyche"})
"""Refusals caused by an address, a key, a run or a release that the user chose."""

_CHECK = "check that the server runs, that host and port are right, and that no firewall is in the way"


class RepeatedDialer:
    """Dials one server. known: called for each try; returns the hash of the document that we have, for the login."""

    def __init__(self, address: ServerAddress, context: BackendContext, *, known: Callable[[], bytes]) -> None:
        self._address = address
        self._context = context
        self._known = known
        self._jitter = random.SystemRandom()

    async def first(self) -> DialedConnection:
        """Return the first connection: retry while the server is not running or full; raise at once what the user can fix."""
        pause, seconds, warned = RETRY_SECONDS, self._context.retry_seconds, False
        deadline = anyio.current_time() + seconds
        while True:
            try:
                return await self._dial()
            except CommandRefused as error:
                if error.code in SAME_KEY_CODES:
                    raise KeyUsedElsewhere(error.message) from error
                if error.code in _MENDABLE:
                    raise AccessRefused(error.code, error.message) from error
                if error.code not in _LATER:
                    raise
                why: BackendError = error
            except BackendError as error:
                if isinstance(error, UnknownHost):
                    raise
                if isinstance(error.__cause__, ssl.SSLError):
                    message = f"the server at {self._address} is not a Psyche server ({error}); check host and port"
                    raise AccessRefused("NotPsyche", message) from error
                why = error

            left = deadline - anyio.current_time()
            if left <= 0:
                raise self._not_there(why)
            if not warned:
                warned = True
                until = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
                hint = "" if isinstance(why, CommandRefused) else "; the server may not be up yet"
                logger.warning("%s%s: trying again until %s, for %g s in all", why, hint, until, seconds)
            pause = await self._pause(pause, at_most=left)

    async def again(self, lost: Exception) -> DialedConnection:
        """Return another connection after a loss. Raises CommandRefused if it is final, BackendClosed once the time is over."""
        pause = RETRY_SECONDS
        deadline = anyio.current_time() + self._context.retry_seconds
        last = lost
        while anyio.current_time() < deadline:
            try:
                return await self._dial()  # a try that began in time is finished, because aborting it would hide the reason
            except CommandRefused as error:
                if error.code in FINAL_CODES:
                    raise
                last = error
            except BackendError as error:
                last = error

            pause = await self._pause(pause, at_most=max(0.0, deadline - anyio.current_time()))

        why = last.sentence if isinstance(last, PsycheError) else last
        message = (
            f"the coordinator was lost ({lost}) and did not come back within {self._context.retry_seconds:g} s: {why}; start "
            "this client again when it is back; a larger --reconnect-seconds waits longer"
        )
        raise BackendClosed(message)

    async def _dial(self) -> DialedConnection:
        context = self._context
        return await dial(
            self._address,
            service=COORDINATOR,
            key=context.key,
            run_id=context.run_id,
            timeout=CONNECT_SECONDS,
            known=self._known(),
        )

    async def _pause(self, seconds: float, *, at_most: float) -> float:
        """Wait before the next try; return how long to wait after that one."""
        await anyio.sleep(min(self._jitter.uniform(seconds / 2, seconds), at_most))
        return min(2 * seconds, MAX_RETRY_SECONDS)

    def _not_there(self, why: BackendError) -> BackendError:
        """Return the error for a server that could not be reached in time."""
        seconds = self._context.retry_seconds
        tried = f"tried for {seconds:g} s; " if seconds else ""
        if isinstance(why, CommandRefused):
            return CommandRefused(why.code, f"{why.message}; {tried}the server has no free place now")

        return BackendError(f"{why}; {tried}{_CHECK}")
