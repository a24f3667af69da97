"""Makes token files at first use and reports progress, because it can take a minute in which nothing else happens."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio.from_thread
import anyio.to_thread

from psyche_core.config.run_config import DataFile
from psyche_core.data.text_corpus import PreparedText, TextProgress, prepare_text
from psyche_core.errors import UserError
from psyche_core.telemetry.events import Event, TokenFiles

PROGRESS_SECONDS = 10.0
"""Seconds between two progress reports."""


async def prepare_tokens(
    data_file: DataFile, report: Callable[[Event], None], *, clock: Callable[[], float] = time.monotonic
) -> PreparedText | None:
    """Make the token files of a data file unless they exist, see `prepare_text`; reports nothing if they do.

    clock: seconds, for tests. Raises DataError, and UserError if another process takes too long to make them.
    """
    folder, started = str(data_file.dir), clock()
    told = started - PROGRESS_SECONDS

    def advance(done: TextProgress) -> None:
        nonlocal told
        now = clock()
        if done.documents < done.total and now - told >= PROGRESS_SECONDS:
            told = now
            anyio.from_thread.run_sync(report, TokenFiles(folder, done.documents, done.total, done.tokens, now - started))

    def prepare() -> PreparedText | None:
        try:
            return prepare_text(data_file, progress=advance)
        except TimeoutError as error:
            raise UserError(str(error)) from error

    ready = await anyio.to_thread.run_sync(prepare)
    if ready is not None and ready.written:
        tokens = ready.training_tokens + ready.validation_tokens
        report(TokenFiles(folder, ready.texts, ready.texts, tokens, clock() - started, ready=True))
    return ready
