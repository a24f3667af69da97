"""Keeps transformers quiet, and its long errors short."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import transformers


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and only errors from transformers inside; its settings are put back after."""
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
    """The first line of what an exception says, its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
