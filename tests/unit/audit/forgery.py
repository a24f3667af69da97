"""Changes journals as somebody would who wants to be believed: the checks of all frames are right again afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from psyche_core.training.checkpoints.journal_records import (
    START,
    AppliedRound,
    Header,
    Kind,
    StoredResult,
    encode_record,
    frame_head,
    kind_of,
    read_frame,
)

Record = Header | StoredResult | AppliedRound
Item = Record | bytes
"""A record, or a payload."""


def items_of(path: Path) -> list[Item]:
    """What is in a journal, in its order."""
    found: list[Item] = []
    with path.open("rb") as file:
        size, check = path.stat().st_size, START
        assert file.read(len(START)) == START
        while (frame := read_frame(file, before=check, left=size - file.tell())) is not None:
            check = frame.check
            if frame.record is None:
                file.seek(frame.at)
                found.append(file.read(frame.length))
            else:
                found.append(frame.record)
    return found


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write a journal of these items, whatever they are."""
    parts, check = [START], START
    for item in items:
        kind, body = (Kind.Payload, item) if isinstance(item, bytes) else (kind_of(item), encode_record(item))
        head = frame_head(kind, len(body), hashlib.sha256(body).digest(), before=check)
        check = head[-8:]
        parts += [head, body]
    path.write_bytes(b"".join(parts))


def forge(path: Path, change: Callable[[Item], Item | None]) -> None:
    """Replace each item by what `change` returns; None leaves it out."""
    write_items(path, [changed for item in items_of(path) if (changed := change(item)) is not None])
