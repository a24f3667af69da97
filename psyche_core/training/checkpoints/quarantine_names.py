"""Names of checkpoints and journals that are not used now, but kept: of a discarded history, or damaged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ABANDONED: Final = "-abandoned"
_DAMAGED = "-damaged"
_NUMBER = re.compile(r"(-\d+)?")


def abandoned_name(path: Path) -> Path:
    """Return the first unused path of `{name}-abandoned`, `{name}-abandoned-2`, …"""
    return _unused_name(path, ABANDONED)


def abandoned_of(path: Path) -> list[Path]:
    """Return the paths that `abandoned_name` made from `path`."""
    return _named_of(path, ABANDONED)


def damaged_of(path: Path) -> list[Path]:
    """Return the paths that `damaged_name` made from `path`."""
    return _named_of(path, _DAMAGED)


def _named_of(path: Path, suffix: str) -> list[Path]:
    stem = f"{path.name}{suffix}"
    found = path.parent.iterdir() if path.parent.is_dir() else ()
    return sorted(each for each in found if each.name.startswith(stem) and _NUMBER.fullmatch(each.name.removeprefix(stem)))


def damaged_name(path: Path) -> Path:
    """Return the first unused path of `{name}-damaged`, `{name}-damaged-2`, …"""
    return _unused_name(path, _DAMAGED)


def _unused_name(path: Path, suffix: str) -> Path:
    target, number = path.with_name(f"{path.name}{suffix}"), 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}{suffix}-{number}")
    return target
