"""Finds the Parquet files of a split (`train`, `validation`, …) in a folder.

As in the reference implementation, a folder named after the split contains its files (the part of the name after a `-` is
ignored), and the folder above it is the subset. If there is no such folder, the files whose names start with the split's name
are used. Files are ordered by their names without the ending. Different from the reference implementation: a folder in which
nothing is named after a split is one split; splits of several subsets are not mixed; of files numbered `00000-of-00005` all must
exist, because with an incomplete cache a member would train on other samples than all others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from psyche_core.errors import InputError

ENDING = ".parquet"

SplitName = Literal["train", "test", "validation", "dev", "val"]
"""The splits that a data set may have."""

SPLITS: tuple[SplitName, ...] = ("train", "test", "validation", "dev", "val")

_NUMBERED = re.compile(r"(\d+)-of-(\d+)")


def parquet_paths(location: Path, split: SplitName = "train") -> list[Path]:
    """The Parquet files of a split, in order: `location` itself if it is a file, else those below that folder.

    Raises InputError if there are none, if several subsets have the split, or if files of a numbered set are missing.
    """
    if location.is_file():
        return [location]

    try:
        found = sorted(path for path in location.rglob("*") if path.suffix.lower() == ENDING and path.is_file())
    except OSError as error:
        message = f"cannot look for Parquet files in {location}: {error.strerror}"
        raise InputError(message) from error

    if not found:
        message = f"{location} has no Parquet files; expected files named *{ENDING}, or the name of a data set on the hub"
        raise InputError(message)

    chosen = _of_split(found, location, split)
    if not chosen:
        message = (
            f"none of the {len(found)} Parquet files in {location} is of the split {split}; "
            f"expected a folder {split}/ or files named {split}*{ENDING}"
        )
        raise InputError(message)

    _check_complete(chosen)
    return sorted(chosen, key=lambda path: (path.stem, path))


def _of_split(found: Sequence[Path], location: Path, split: SplitName) -> list[Path]:
    for by_folder in (True, False):
        chosen = [path for path in found if _split_of(path, by_folder=by_folder) == split]
        subsets = {path.parent.parent if by_folder else path.parent for path in chosen}
        if len(subsets) > 1:
            names = ", ".join(sorted(str(subset.relative_to(location.parent)) for subset in subsets))
            message = f"{location} has the split {split} in several subsets ({names}); name the folder of one of them"
            raise InputError(message)
        if chosen:
            return chosen

    named = any(_split_of(path, by_folder=by_folder) for path in found for by_folder in (True, False))
    return [] if named else list(found)


def _split_of(path: Path, *, by_folder: bool) -> str | None:
    if by_folder:
        name = path.parent.name.partition("-")[0]
        return name if name in SPLITS else None

    return next((split for split in SPLITS if path.name.startswith(split)), None)


def _check_complete(paths: Sequence[Path]) -> None:
    numbers: dict[int, set[int]] = {}
    for path in paths:
        match = _NUMBERED.search(path.stem)
        if match is not None:
            numbers.setdefault(int(match[2]), set()).add(int(match[1]))

    for total, present in numbers.items():
        missing = [number for number in range(min(total, 1_000_000)) if number not in present]
        if missing:
            message = (
                f"{paths[0].parent} has {len(present)} of {total} Parquet files (number {missing[0]} is missing); "
                "download the data set again"
            )
            raise InputError(message)
