"""Describes the canonical image: its layout as a table for the terminal and as docs/reference/canonical-image.md.

The text is made from the tables of `layout`, so it always agrees with the code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psyche_core.config.rules import MAX_TABLES_BYTES
from psyche_core.coordinator.canonical_image.kinds import Enumeration, Kind, value_name
from psyche_core.coordinator.canonical_image.layout import (
    CHECKPOINT_KIND,
    CLIENT_STATE,
    END_REASON,
    IMAGE,
    MAGIC,
    RUN_STATE,
    SIZE,
    VERSION,
)
from psyche_core.coordinator.canonical_image.records import List, Record

_ACCOUNT_OVERHEAD_BYTES = 128
_LAMPORTS_PER_BYTE = 6960
RENT_EXEMPT_LAMPORTS = (_ACCOUNT_OVERHEAD_BYTES + SIZE) * _LAMPORTS_PER_BYTE
"""Smallest balance, in lamports, at which a Solana account of SIZE bytes pays no rent."""

_ENUMERATIONS = {
    "RunState": RUN_STATE,
    "ClientState": CLIENT_STATE,
    "EndReason": END_REASON,
    "CheckpointKind": CHECKPOINT_KIND,
}

_HEAD = """\
# The canonical image

The coordinator's whole state as one array of bytes. Every implementation (`psyche_core.coordinator.canonical_image`, the on-chain
program) writes the same bytes for the same state. This page is made from the code by
`python -m psyche_core.coordinator.canonical_image --markdown`; a test compares the two.

- Layout version: **{version}**. Size of every image: **{size:,} bytes**.
- Rent-exempt minimum of a Solana account of that size, (128 + {size}) × 6960: {lamports:,} lamports ({sol:.3f} SOL).
  What an account holds besides the image comes on top.

## Rules

- Numbers are unsigned and little-endian. A number of n bytes stands at a multiple of n, padding is written out, and every record
  is a multiple of its alignment: `#[repr(C)]` structures with these fields in this order have these offsets, if the image
  itself starts at a multiple of 8.
- `text, n bytes`: UTF-8 without NUL, then zero bytes up to n; a text may fill its place.
- `bitmap of n`: number i is bit i % 8 of byte i // 8.
- `optional`: a byte `present` (0 or 1), padding, the value.
- Lists: `count` (u32), 4 zero bytes, the slots. The slots from `count` on are not in use.
- Padding, slots not in use, absent values and bytes after the end of a text are **zero**; a reader refuses anything else. So two
  images are equal exactly when the states are.
- `encode` refuses (ValueError) a state over a capacity. `decode` refuses (WireError, with field and byte) everything that
  `encode` would not have written: it never repairs.
- A reader looks at magic, version and size first, in this order. An account that was created and not yet written is all zero,
  has no magic, and so is no image.
- `model.tables` is canonical CBOR of the keys of `model.LLM` without a field of their own (architecture, data_type,
  data_location, lr_schedule, optimizer), and of `model.network`, if the run has one, as `network`: names and settings belong to
  plugins, relays to members, and no command but update_config looks at them.
  At most {tables} bytes: a run whose plugin settings are longer cannot be written as an image, and `encode` says so; keep long
  lists (of files, say) behind a URL or a file name.
- The image holds what a state *is*, not whether it could have been reached: rules between fields are the coordinator's.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a layout table. offset, size: in bytes. name: dotted path from the start of the table. note: the meaning."""

    offset: int
    size: int
    kind: str
    name: str
    note: str


def rows(kind: Kind) -> Iterator[Row]:
    """Yield the fields of a record in order, including those of inner records. All slots of a list are one row."""
    for part in kind.parts:
        yield from _rows(part.kind, part.name, part.offset, part.note)


def _rows(kind: Kind, name: str, offset: int, note: str) -> Iterator[Row]:
    if not kind.parts:
        yield Row(offset, kind.size, kind.title, name, note)
    for part in kind.parts:
        is_value = part is kind.parts[-1] and not isinstance(kind, List | Record)
        meaning = "; ".join(filter(None, (note, part.note))) if is_value else part.note
        yield from _rows(part.kind, f"{name}.{part.name}", offset + part.offset, meaning)
    if isinstance(kind, List):
        slots = f"{kind.title} of {kind.item.size} bytes" if kind.item.parts else kind.title
        yield Row(offset + kind.part(0).offset, kind.capacity * kind.item.size, slots, f"{name}[0..{kind.capacity - 1}]", note)


def slot_records(kind: Kind) -> dict[str, Record]:
    """Return the records that are stored in slots of lists, by title, outer ones first."""
    found: dict[str, Record] = {}
    for part in kind.parts:
        inner = part.kind
        if isinstance(inner, List):
            if isinstance(inner.item, Record):
                found[inner.item.title] = inner.item
            inner = inner.item
        found |= {title: record for title, record in slot_records(inner).items() if title not in found}
    return found


def table() -> str:
    """Return the layout and the size as text for a terminal."""
    lines = [f"canonical image of the coordinator's state, layout version {VERSION}", ""]
    for title, record in {"the image": IMAGE, **slot_records(IMAGE)}.items():
        lines += [title if record is IMAGE else f"{title}, {record.size} bytes, from the start of its slot", ""]
        lines += [f"{row.offset:>8} {row.size:>7}  {row.kind:<38} {row.name}" for row in rows(record)]
        lines.append("")
    lines.append(f"size: {SIZE} bytes")
    lines.append(f"Solana rent-exempt minimum: {RENT_EXEMPT_LAMPORTS} lamports")
    return "\n".join(lines) + "\n"


def markdown() -> str:
    """Return the text of docs/reference/canonical-image.md."""
    head = _HEAD.format(
        version=VERSION, size=SIZE, lamports=RENT_EXEMPT_LAMPORTS, sol=RENT_EXEMPT_LAMPORTS / 10**9, tables=MAX_TABLES_BYTES
    )
    sections = [head, "## The image\n\n" + _markdown_table(IMAGE) + f"\nThe magic is the bytes `{MAGIC.hex()}`.\n"]
    for title, record in slot_records(IMAGE).items():
        text = f"{record.size} bytes, alignment {record.alignment}; offsets from the start of the slot.\n\n"
        sections.append(f"## {title}\n\n{text}{_markdown_table(record)}")
    sections.append("## Numbers\n\n" + "\n".join(_numbers(title, kind) for title, kind in _ENUMERATIONS.items()) + "\n")
    return "\n".join(sections)


def _markdown_table(record: Record) -> str:
    lines = ["| offset | bytes | type | field | meaning |", "|---:|---:|---|---|---|"]
    lines += [f"| {row.offset} | {row.size} | {row.kind} | `{row.name}` | {row.note} |" for row in rows(record)]
    return "\n".join(lines) + "\n"


def _numbers(title: str, kind: Enumeration) -> str:
    listed = ", ".join(f"{number} {value_name(value)}" for number, value in kind.values.items())
    return f"- **{title}**: {listed}."
