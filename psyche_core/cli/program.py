"""Running an asynchronous program from a command: signals, log lines and event sinks.

SIGINT and SIGTERM cancel the program, which cleans up in its own `finally` blocks; the command then ends with 130 or 143.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TextIO, TypeVar

import anyio
import click

from psyche_core.cli.failures import Interrupted
from psyche_core.config.options.log_filters import parse_log_filters
from psyche_core.errors import UserError
from psyche_core.telemetry.event_files import EventFolderWriter
from psyche_core.telemetry.events import Ended, Event
from psyche_core.telemetry.sinks import EventBus, Sink, json_lines
from psyche_core.text_safety import PrintableFormatter

_Result = TypeVar("_Result")


def run_program(program: Callable[[], Awaitable[_Result]]) -> _Result:
    """Run a program to its end on asyncio. Raises Interrupted if a signal stopped it, and the program's own exceptions."""
    return anyio.run(_until_signal, program)


async def _until_signal(program: Callable[[], Awaitable[_Result]]) -> _Result:
    received: list[int] = []
    results: list[_Result] = []

    async def watch(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                received.append(number)
                scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, tasks.cancel_scope)
        results.append(await program())
        tasks.cancel_scope.cancel()

    if not results:
        raise Interrupted(received[0] if received else signal.SIGTERM)

    return results[0]


def log_to_stderr(filters: str | None = None) -> None:
    """Show warnings of every logger on stderr, one line each, in the format of the displays.

    With `psyche --debug` also show debug messages and tracebacks of our own loggers. filters: which lines to show instead, see
    `config.options.log_filters`; checked already.
    """
    debug = _debugs()
    handler = logging.StreamHandler(_Stderr())
    handler.setFormatter(_LogLine(named=debug or filters is not None))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if debug:
        logging.getLogger("psyche").setLevel(logging.DEBUG)
    if filters is not None:
        wanted = parse_log_filters(filters)
        if wanted.default is not None:
            logging.getLogger().setLevel(wanted.default)
        for name, level in wanted.levels.items():
            logging.getLogger(name).setLevel(level)


def _debugs() -> bool:
    context = click.get_current_context(silent=True)
    return bool(getattr(None if context is None else context.find_root().obj, "debug", False))


class _Stderr(io.TextIOBase):
    """Writes to the current sys.stderr. A live panel replaces sys.stderr, so that lines appear above the panel."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class _LogLine(PrintableFormatter):
    """`HH:MM:SS warning: message`, as `ui.console` writes events.

    The logger's name comes before messages of other libraries, and before all messages if `named`.
    """

    def __init__(self, *, named: bool) -> None:
        super().__init__("%(asctime)s %(message)s", datefmt="%H:%M:%S")
        self._named = named

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        name = f"{record.name}: " if self._named or record.name.partition(".")[0] != "psyche" else ""
        record.message = f"{record.levelname.lower()}: {name}{record.message}"
        return super().formatMessage(record)


def remember_failure(logs: str) -> Sink:
    """A sink that remembers a failure that the display showed, so that `main` does not print it again in the same place.

    logs: the display's name, see `ui.display`. If standard output and standard error go to different places, each shows it once.
    """
    context = click.get_current_context(silent=True)
    switches = None if context is None else context.find_root().obj
    shows = logs in ("console", "auto")

    def remember(event: Event) -> None:
        if isinstance(event, Ended) and not event.success and switches is not None and shows and _one_place():
            switches.reported_end = event.reason

    return remember


def _one_place() -> bool:
    """Whether standard output and standard error are the same file, pipe or terminal."""
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))
    except (OSError, ValueError):  # replaced by a test
        return False


def _without_waiting(path: str, flags: int) -> int:
    """Open a file for writing without waiting; a named pipe only if it has a reader."""
    unwaiting = getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags | unwaiting, 0o666)
    if unwaiting:
        os.set_blocking(descriptor, True)
    return descriptor


@contextlib.contextmanager
def open_report(
    *sinks: Sink,
    events_file: Path | None = None,
    events_dir: Path | None = None,
    keep_event_files: int = 0,
    write_log: Path | None = None,
) -> Iterator[EventBus]:
    """An event bus for the sinks and, if given, a file of JSON lines, a folder of them, and a file of readable lines.

    The last one also gets log lines.
    keep_event_files: as for `EventFolderWriter`. Files are appended to. Raises UserError if one of these cannot be written.
    """
    with contextlib.ExitStack() as stack:
        if events_file is not None:
            sinks = (*sinks, json_lines(stack.enter_context(_open_append(events_file, "events"))))
        if events_dir is not None:
            try:
                events_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                message = f"cannot write events into {events_dir}: {error.strerror}; give a folder with --events-dir"
                raise UserError(message) from error
            parts = stack.enter_context(contextlib.closing(EventFolderWriter(events_dir, keep=keep_event_files)))
            sinks = (*sinks, parts)
        if write_log is not None:
            from psyche_core.ui.console import console_lines  # not for commands that show no events

            lines = stack.enter_context(_open_append(write_log, "the log"))
            sinks = (*sinks, console_lines(lines))
            stack.enter_context(_also_logging_to(lines))
        yield EventBus(*sinks)


@contextlib.contextmanager
def _also_logging_to(stream: TextIO) -> Iterator[None]:
    """Write log lines to a stream, too, while inside."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_LogLine(named=_debugs()))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _open_append(path: Path, what: str) -> TextIO:
    try:
        return open(path, "a", encoding="utf-8", opener=_without_waiting)  # the caller closes it
    except OSError as error:
        unread = "no program reads this pipe; start the reader first, or give a file"
        message = f"cannot write {what} to {path}: {unread if error.errno == errno.ENXIO else error.strerror}"
        raise UserError(message) from error
