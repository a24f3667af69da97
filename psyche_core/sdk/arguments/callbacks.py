"""A program's callbacks: checked before use and isolated from training. Problems are records of the logger "psyche.sdk".

`cause` also names the code that caused the end of a client.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any

from psyche_core.errors import PluginFailed, PsycheError
from psyche_core.plugin_errors import explain_plugin, summary_of
from psyche_core.telemetry import events as telemetry

logger: logging.Logger = logging.getLogger("psyche.sdk")

ENDS_THE_PROGRAM = (KeyboardInterrupt, SystemExit)
"""Exceptions that are never reported as an event."""

Callback = Callable[[telemetry.Event], None]


def checked_callbacks(callbacks: object) -> tuple[Callback, ...]:
    """Return an argument `callbacks` as a tuple. Raises TypeError if it is not an iterable of plain functions."""
    if callable(callbacks):
        name = getattr(callbacks, "__name__", "…")
        message = f"callbacks= takes a list of functions, got a function alone; write callbacks=[{name}]"
        raise TypeError(message)
    if not isinstance(callbacks, Iterable):
        message = f"callbacks= takes a list of functions, got {'None' if callbacks is None else f'a {type(callbacks).__name__}'}"
        raise TypeError(message)
    return tuple(_checked_callback(each) for each in callbacks)


def _checked_callback(callback: object) -> Callback:
    if not callable(callback):
        message = f"callbacks= takes functions of one event, got a {type(callback).__name__}"
        raise TypeError(message)
    if inspect.iscoroutinefunction(callback):
        message = "callbacks= takes plain functions, got an async one; use `async for event in client.events()` for that"
        raise TypeError(message)
    return callback


def isolated(callback: Callback, *, report: Callback) -> Callback:
    """Wrap a callback: after it has raised once, it is not called again, and `report` gets a Problem event."""
    broken = False

    def call(event: telemetry.Event) -> None:
        nonlocal broken
        if broken:
            return
        try:
            callback(event)
        except ENDS_THE_PROGRAM:
            raise
        except BaseException as error:  # a program's own display must neither stop nor cancel training
            broken = True
            name = getattr(callback, "__qualname__", type(callback).__name__)
            logger.warning("a callback failed", exc_info=error)
            sentence = f"the callback {name} failed with {summary_of(error)}; it is not called again, and training continues"
            report(telemetry.Problem("warning", sentence))

    return call


def log_problem(event: telemetry.Event) -> None:
    """Log a problem, for programs that do not read events. Logging writes warnings and errors to standard error by default."""
    match event:
        case telemetry.Problem(level="error") | telemetry.Ended(success=False):
            logger.error("%s", event.message if isinstance(event, telemetry.Problem) else event.reason)
        case telemetry.Problem() | telemetry.Mended():
            logger.warning("%s", event.message)
        case telemetry.Ended():
            logger.info("%s", event.reason)


def cause(error: BaseException, places: Any) -> BaseException:
    """Return the exception that ended a client. If code that is not ours raised it, its message names that code.

    places: where plugins are, see `PluginRegistry.places`.
    """
    if isinstance(error, PsycheError):
        return error
    sentence = explain_plugin(error, places)
    if sentence is None and isinstance(error, Exception):
        return error  # a bug of ours: keep its traceback
    if sentence is None:  # a BaseException out of an exception group that a program made
        sentence = f"code that was given to the client failed with {summary_of(error)}"
    failure = PluginFailed(sentence)
    failure.__cause__ = error
    return failure
