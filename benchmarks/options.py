"""Types of a benchmark's options for argparse, so that a wrong one ends it with a sentence before anything is measured."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection


def whole(least: int, most: int) -> Callable[[str], int]:
    """A type: a whole number from `least` to `most`."""

    def read(text: str) -> int:
        if not text.lstrip("-").isdecimal() or not least <= int(text) <= most:
            message = f"expected a whole number from {least} to {most}, got {text!r}"
            raise argparse.ArgumentTypeError(message)
        return int(text)

    return read


def positive(text: str) -> float:
    """A type: a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        message = f"expected a number above 0, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return value


def even(least: int, most: int) -> Callable[[str], int]:
    """A type: an even number from `least` to `most`."""

    def read(text: str) -> int:
        value = whole(least, most)(text)
        if value % 2:
            message = f"expected an even number, got {text!r}"
            raise argparse.ArgumentTypeError(message)
        return value

    return read


def several(read: Callable[[str], object]) -> Callable[[str], str]:
    """A type: a list separated by commas, each of a type; the text is returned as it is."""

    def check(text: str) -> str:
        for word in text.split(","):
            read(word)
        return text

    return check


def one_of(names: Collection[str], what: str) -> Callable[[str], str]:
    """A type: one of these names. what: is named, a system for instance."""

    def read(text: str) -> str:
        if text not in names:
            message = f"there is no {what} {text!r}; there are {', '.join(names)}"
            raise argparse.ArgumentTypeError(message)
        return text

    return read
