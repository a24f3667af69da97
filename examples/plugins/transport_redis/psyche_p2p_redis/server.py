"""The connections to Redis, and whether it answers.

All commands go through `Server.run`. The first one that fails marks Redis as lost: nothing more is sent, whoever uses it is told,
and `keep` asks again, less and less often, until it takes a write. The commands that failed are not repeated here, because nobody
knows whether they were done; links begin anew instead.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

import anyio
from redis.asyncio import Redis
from redis.asyncio.connection import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from psyche_core.errors import TransportError
from psyche_core.text_safety import printable
from psyche_p2p_redis.settings import RedisSettings

CONNECTIONS = 16
"""Most connections of one member, besides the one that waits for what comes."""

WAIT_SECONDS = 5
"""A waiting command (BLPOP) returns after so long at the latest."""

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.1, 5.0
STEADY_SECONDS = 30.0
"""After so long without a failure the next one is retried soon again."""

T = TypeVar("T")


class RedisLost(Exception):
    """Redis does not answer, or refused a command. Nothing is known of what was being done."""


class Server:
    """settings: of the member. probe: name of a key that may be written at any time. lost, back: called at each change."""

    def __init__(self, settings: RedisSettings, *, probe: str, lost: Callable[[], None], back: Callable[[], None]) -> None:
        self.problem: str | None = None
        self.up = anyio.Event()
        self.where = _without_password(settings.redis_url)
        self._settings = settings
        self._probe = probe
        self._tell_lost, self._tell_back = lost, back
        self._down = anyio.Event()
        self._generation = 0
        self._up_since = 0.0
        answer = settings.redis_answer_seconds
        self._commands = self._client(answer, connections=CONNECTIONS)
        self._waiting = self._client(answer + WAIT_SECONDS, connections=1)

    def _client(self, answer_seconds: float, *, connections: int) -> Redis:
        pool = BlockingConnectionPool.from_url(
            self._settings.redis_url,
            max_connections=connections,
            timeout=self._settings.redis_answer_seconds,
            socket_timeout=answer_seconds,
            socket_connect_timeout=self._settings.redis_connect_seconds,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
        )
        return Redis(connection_pool=pool)

    async def open(self) -> None:
        """Connect. Raises TransportError with a sentence."""
        try:
            await self._try()
        except (RedisError, OSError, TimeoutError) as error:
            await self.aclose()
            raise TransportError(self._sentence(error)) from None
        self._is_up()

    async def run(self, work: Callable[[Redis], Awaitable[T]], *, waits: bool = False) -> T:
        """Do something with Redis. waits: it is a command that waits for something. Raises RedisLost."""
        if self.problem is not None:
            raise RedisLost(self.problem)
        generation = self._generation
        try:
            return await work(self._waiting if waits else self._commands)
        except (RedisError, OSError, TimeoutError) as error:
            sentence = self._sentence(error)
            if generation == self._generation and self.problem is None:
                self._lose(sentence)
            raise RedisLost(sentence) from None

    async def keep(self) -> None:
        """Bring it back whenever it is lost; ends only when it is cancelled."""
        delay = FIRST_RETRY_SECONDS
        while True:
            await self._down.wait()
            if time.monotonic() - self._up_since > STEADY_SECONDS:
                delay = FIRST_RETRY_SECONDS
            while self.problem is not None:
                await anyio.sleep(delay)
                delay = min(2 * delay, LAST_RETRY_SECONDS)
                with suppress(RedisError, OSError, TimeoutError):  # old connections may lead to a process that is gone
                    await self._commands.connection_pool.disconnect()
                    await self._waiting.connection_pool.disconnect()
                try:
                    await self._try()
                except (RedisError, OSError, TimeoutError):
                    continue  # the problem is told already, and stays one sentence until it is over
                self._is_up()
                self._tell_back()

    async def aclose(self) -> None:
        """Close all connections; idempotent."""
        for client in (self._commands, self._waiting):
            with suppress(RedisError, OSError, TimeoutError):
                await client.aclose(close_connection_pool=True)

    async def _try(self) -> None:
        """A write, because a server that is full or a replica answers a ping all the same."""
        await self._commands.set(self._probe, b"1", ex=60)

    def _is_up(self) -> None:
        self.problem, self._down, self._up_since = None, anyio.Event(), time.monotonic()
        self.up.set()

    def _lose(self, sentence: str) -> None:
        self.problem, self.up = sentence, anyio.Event()
        self._generation += 1
        self._down.set()
        self._tell_lost()

    def _sentence(self, error: Exception) -> str:
        # redis-py puts the command in front, with all that it carries, and makes a tuple of the rest.
        said = str(error).rpartition("caused error: ")[2].removeprefix('("').removesuffix('",)')
        cause = printable(said or type(error).__name__, at_most=200).rstrip(".")
        return f"Redis at {self.where} cannot be used: {cause}; see that it runs and takes writes, or give another --redis-url"


def _without_password(url: str) -> str:
    """The address for people: what stands before the host can be a secret, and so can what stands behind the path."""
    parts = urlsplit(url)
    return printable(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", at_most=200)
