"""Filters of log lines, `warn,psyche.p2p=debug`: a level for everything, and others for loggers by name. Pure.

The form is that of RUST_LOG: parts are separated by commas, the most exact name decides, and `::` may stand for a dot. `trace`
means `debug`, and a name alone means everything of it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

LEVELS: Mapping[str, int] = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}
_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


@dataclass(frozen=True, slots=True)
class LogFilters:
    """Parsed filters. default: level of every other logger, None for the usual one. levels: by name of a logger."""

    default: int | None
    levels: Mapping[str, int]


def parse_log_filters(text: str) -> LogFilters:
    """Parse filters. Raises ValueError with one sentence."""
    default: int | None = None
    levels: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, level = part.partition("=")
        name, level = name.strip().replace("::", "."), level.strip().lower()
        if not equals and name.lower() in LEVELS:
            default = LEVELS[name.lower()]
            continue
        if not _NAME.fullmatch(name):
            message = f"{name!r} is no name of a logger, such as psyche.p2p"
            raise ValueError(message)
        if equals and level not in LEVELS:
            message = f"{level!r} is no level; levels are {', '.join(LEVELS)}"
            raise ValueError(message)

        levels[name] = LEVELS[level] if equals else logging.DEBUG
    if default is None and not levels:
        message = "must be levels or filters, such as info or warn,psyche.p2p=debug"
        raise ValueError(message)
    return LogFilters(default, levels)


def checked_filters(text: str) -> str:
    """The text itself. Raises ValueError if it cannot be parsed."""
    parse_log_filters(text)
    return text
