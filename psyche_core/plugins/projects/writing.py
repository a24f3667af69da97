"""Puts a file into a project: whole or not at all, and never in the place of one that it does not replace."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def put_new(place: Path, content: bytes) -> None:
    """Write a file where there is none. Raises FileExistsError if there is something, and OSError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with _written(place, content) as partial:
        try:
            os.link(partial, place)  # fails if there is something, also if it came this moment
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if os.path.lexists(place):
                raise FileExistsError(place) from None
            partial.rename(place)


def put_instead(place: Path, content: bytes) -> None:
    """Write a file in place of another one, whose permissions it gets. Raises OSError."""
    with _written(place, content) as partial:
        if place.exists():
            shutil.copymode(place, partial)
        os.replace(partial, place)  # noqa: PTH105 - it replaces on every system


@contextmanager
def _written(place: Path, content: bytes) -> Iterator[Path]:
    """A file beside the place, on the disk; it is gone at the end, if it was not renamed."""
    partial = place.parent / f".{place.name}.{uuid.uuid4().hex}.partial"
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield partial
    finally:
        partial.unlink(missing_ok=True)
