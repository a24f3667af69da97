"""Suppresses log messages and progress bars of transformers, and shortens its long error messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import transformers


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and all messages of transformers except errors inside the block. Then restore its settings."""
    log: Any = transformers.utils.logging
    verbosity = log.get_verbosity()
    bars = log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message, or its type if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
