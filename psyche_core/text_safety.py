"""Text from other machines, made safe to show.

A run's name, a server's error or a peer's reason goes through `printable` before it reaches a terminal, a log or a report: it
must not be able to move the cursor, to colour, reorder or hide our text, or to add lines. Sentences about wrong settings are in
`config.sentences`.
"""

from __future__ import annotations

import logging
import unicodedata
from typing import Any

MAX_PRINTABLE = 1000
"""Maximum number of characters that are shown of one text from another machine."""

MAX_PRINTABLE_LINES = 1000
"""Maximum number of lines that are shown of a text with several lines."""

_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that are invisible or change how others are displayed: control, format (bidirectional
overrides, zero width, tags), surrogates, private use, unassigned, line separators and paragraph separators."""


def printable(text: str, *, at_most: int = MAX_PRINTABLE) -> str:
    r"""Return a text from another machine as one line that is safe to show, with at most `at_most` characters.

    A character that is invisible or changes how others are displayed (escape, line break, bidirectional override, zero width) is
    replaced by its number: `\x1b`, `\u202e`. A shortened text ends with `…`. Other texts do not change.
    """
    shown_part = text[: at_most + 1]  # each character becomes at least one character of the result
    result = shown_part if shown_part.isascii() and shown_part.isprintable() else "".join(map(_visible, shown_part))
    return result if len(result) <= at_most else f"{result[: max(0, at_most - 1)]}…"


def printable_lines(text: str, *, at_most: int = 10 * MAX_PRINTABLE) -> str:
    """Return a text of several lines as lines that are safe to show. Line feeds stay, so they must not come from others.

    at_most: maximum number of characters of a line. At most MAX_PRINTABLE_LINES lines are kept.
    """
    lines = text.split("\n")
    cut = [*lines[:MAX_PRINTABLE_LINES], "…"] if len(lines) > MAX_PRINTABLE_LINES else lines
    return "\n".join(printable(line, at_most=at_most) for line in cut)


def _visible(character: str) -> str:
    if character == " " or unicodedata.category(character) not in _UNSHOWN:
        return character

    number = ord(character)
    if number < 0x100:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


class PrintableFormatter(logging.Formatter):
    """A log formatter that writes each record as one printable line, even if it contains text from others.

    Tracebacks keep their lines.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """Return the line of a record. A line break in its message cannot look like the start of another record."""
        record.message = printable(record.message, at_most=10 * MAX_PRINTABLE)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name
        """Return the traceback with each line made printable."""
        return printable_lines(super().formatException(ei))
