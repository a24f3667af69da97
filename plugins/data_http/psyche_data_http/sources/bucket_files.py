"""Decides which objects of a bucket are token files, and their order.

Token files are the objects with a token file's extension, at any depth below the folder `filter_directory`. (The reference used
it as a name prefix, so `train` also matched `training-old`.) The order is the reference's, which sorted media links: by the
percent-encoded name followed by a question mark.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from psyche_core.data.token_files import EXTENSIONS
from psyche_core.errors import DataError, InputError

MAX_OBJECTS = 100_000


def folder_prefix(directory: str) -> str:
    """Return the name prefix of objects below a folder; empty for the whole bucket."""
    folder = directory.strip("/")
    return f"{folder}/" if folder else ""


def is_token_file(name: str) -> bool:
    """Whether an object's name has the extension of a token file."""
    return name.endswith(EXTENSIONS)


def place_in_order(name: str) -> str:
    """Return the sort key of an object."""
    return quote(name, safe="") + "?"


def refuse_none(names: Iterable[str], *, where: str) -> None:
    """Raise InputError when a bucket has no token files, DataError when it has too many."""
    count = sum(1 for _ in names)
    if count == 0:
        message = f"{where} has no token files; expected objects named *{', *'.join(EXTENSIONS)}"
        raise InputError(message)

    if count > MAX_OBJECTS:
        message = f"{where} has {count} token files or more, at most {MAX_OBJECTS} are read; name a folder, or use larger files"
        raise DataError(message)
