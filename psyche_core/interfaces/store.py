"""Contract of a model store: files by name below the place that a URL names. Members store a run's models there, and load them.

`psyche client train --model-store SCHEME://…` names one for writing, `checkpoint.Gcs = { bucket = "SCHEME://…" }` in a run's
configuration for reading. psyche-core decides what is in the files: each checkpoint has a folder of its own, its manifest is
written last, and every byte that is read is compared with it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

PART_BYTES = 8 * 2**20
"""A store moves a file in parts of at most so many bytes, and asks before each whether it should go on."""

MAX_NAME_BYTES = 512
"""Longest name of a file."""

UNFINISHED = ".partial"
"""No file's name ends so. A store may use such names for what is being written, and leaves them out of `names`."""

Proceed = Callable[[], None]
"""Called before each part. What it raises ends the call, and comes out of it unchanged; it need not be an Exception."""

_PART_OF_NAME = re.compile(r"[A-Za-z0-9._-]+")


def is_name(text: str) -> bool:
    """Whether a text can be the name of a file: parts with a slash between them, none of which is `.` or `..`.

    A part has letters of ASCII, digits, `.`, `_` and `-`, so it needs no escapes in a URL or on a disk.
    """
    parts = text.split("/")
    whole = all(_PART_OF_NAME.fullmatch(part) and part not in (".", "..") for part in parts)
    return whole and len(text) <= MAX_NAME_BYTES and not text.endswith(UNFINISHED)


def go_on() -> None:
    """A `Proceed` that ends nothing."""


class ModelStore(ABC):
    """The files below one URL. Made for one piece of work, used by one thread at a time, and closed.

    Each method blocks; it is called in a worker thread. Each must end: a server that says nothing for a minute is a StoreError.
    Other objects, of other processes and machines, use the same place at the same time.

    Guaranteed by a store: a file appears under its name when all of it is there, and not before. Whoever reads while it is being
    replaced gets the old content or the new one. Of two that write one name at once, the one that ends last wins. What a call has
    written is there for every call that begins later, of this object or another. A call that fails, or that `proceed` ends,
    leaves what was there. Not guaranteed: that several files change together.

    Guaranteed to a store: names fulfil `is_name`, and differ by more than the case of letters.

    Errors: StoreError in one sentence that says what was tried, what came, and what to do. Anything else counts as a mistake of
    the store, and people are told its name.
    """

    @abstractmethod
    def names(self, prefix: str) -> list[str]:
        """The names of all files that begin with `prefix`, ascending; all for "". The prefix may end anywhere (`run/a-step1`).

        A place where nothing was stored yet has none. Raises StoreError; NoSuchBucket for a place that does not exist and that
        storing would not make.
        """

    @abstractmethod
    def put_file(self, name: str, path: Path, *, proceed: Proceed) -> None:
        """Store a file of this machine as `name`, in place of what has the name. Raises StoreError."""

    @abstractmethod
    def get_file(self, name: str, path: Path, *, max_bytes: int, proceed: Proceed) -> None:
        """Write a stored file to `path`, part by part; if there is something at `path`, continue at its end.

        The caller compares the whole with what it should be, so the store need not look at what is there already. If that is
        longer than the stored file, it is deleted and the call raises StoreError: the next one begins anew. What `proceed` ends
        leaves what was written until then. Raises StoreError, also if there is no such file (then nothing is written) and if it
        is longer than `max_bytes` (then never more than that is written).
        """

    @abstractmethod
    def get(self, name: str, *, max_bytes: int) -> bytes | None:
        """The content of a small file; None if there is none. Raises StoreError, also if it is longer than `max_bytes`.

        Never more than `max_bytes` and one part of it are taken into memory.
        """

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Delete files; one that is not there is no error. Raises StoreError, after which some may be deleted."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; no other method is called afterwards. Never raises, and may be called twice."""
