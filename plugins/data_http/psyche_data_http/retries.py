"""Retries and concurrent jobs, within a caller's timeout.

Temporary failures are retried until the caller's deadline. The pauses double up to LONGEST_PAUSE and are shortened at random, so
that clients that failed together do not try again together; a longer pause that the server asks for is respected. The
TimeoutError names the last failure. Permanent failures raise DataError at once.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import anyio

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
AT_ONCE = 64
"""Jobs of one `gather` that run at the same time; the others wait without a task."""

_Result = TypeVar("_Result")


class TransientError(Exception):
    """A temporary failure. pause: seconds the server asked us to wait, 0 if it did not."""

    def __init__(self, message: str, *, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


@dataclass(slots=True)
class LastFailure:
    """The last failure during one of our calls; explains a timeout."""

    message: str = ""


class Backoff:
    """The pauses between attempts, growing until `begin_again`."""

    def __init__(self, last_failure: LastFailure) -> None:
        self._last_failure = last_failure
        self._next = FIRST_PAUSE

    def begin_again(self) -> None:
        """Make the next pause short, because there was progress."""
        self._next = FIRST_PAUSE

    async def after(self, error: TransientError) -> None:
        """Wait before trying again, at least as long as the server asked."""
        self._last_failure.message = str(error)
        pause = max(error.pause, self._next * random.uniform(0.5, 1.0))
        self._next = min(2 * self._next, LONGEST_PAUSE)
        await anyio.sleep(pause)


async def retry_until_success(attempt: Callable[[], Awaitable[_Result]], last_failure: LastFailure) -> _Result:
    """Return the first result that comes without TransientError; may retry forever, so call it with a deadline."""
    pauses = Backoff(last_failure)
    while True:
        try:
            return await attempt()
        except TransientError as error:
            await pauses.after(error)


@asynccontextmanager
async def deadline(seconds: float) -> AsyncIterator[LastFailure]:
    """Raise TimeoutError after `seconds`; its message names the last failure."""
    last_failure = LastFailure()
    try:
        with anyio.fail_after(seconds):
            yield last_failure
    except TimeoutError as error:
        message = f"training data did not arrive within {seconds:g} s; {last_failure.message or 'the server is slow'}"
        raise TimeoutError(message) from error


async def gather(jobs: Sequence[Callable[[], Awaitable[_Result]]]) -> list[_Result]:
    """Return results in the order of the jobs. The first failure stops the other jobs and is raised unchanged."""
    results: dict[int, _Result] = {}
    failures: list[Exception] = []

    async def work(waiting: Iterator[tuple[int, Callable[[], Awaitable[_Result]]]]) -> None:
        try:
            for number, job in waiting:
                results[number] = await job()
        except Exception as error:  # raised below, once the others have stopped
            failures.append(error)
            tasks.cancel_scope.cancel()

    waiting = enumerate(jobs)
    async with anyio.create_task_group() as tasks:
        for _ in range(min(AT_ONCE, len(jobs))):
            tasks.start_soon(work, waiting)

    if failures:
        raise failures[0]

    return [results[number] for number in range(len(jobs))]
