"""The list of all pieces of a run's master weights after a step. A member fetches a model by this list (protocol section 5).

A manifest contains the run, the step and, for each parameter in ascending order of names, its shape and the SHA-256 of each of
its pieces. Pieces are the values as little-endian float32, cut every PIECE_BYTES. Equal master weights give equal manifests, byte
for byte, so the members of a run can agree on the hash of a manifest.

Encoded as canonical CBOR: [version, run id, step, [[name, [sizes], hashes], …]], the hashes of a parameter joined into one byte
string. A received manifest is compared with *our own* parameter table: its length, every name, every shape and every number of
pieces must match. So a peer cannot influence how much is allocated or fetched. Tensors are handled in
`psyche_core.training.snapshot`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from psyche_core.errors import WireError
from psyche_core.wire.codec import decode as decode_cbor
from psyche_core.wire.codec import encode as encode_cbor

VERSION = 1
PIECE_BYTES = 4 * 2**20
"""Length of a piece; the last piece of a parameter may be shorter.

The size is a compromise. Pieces are small enough that a lost connection or a single different weight costs only a few seconds on
a home connection, and that several pieces in transfer need little memory. They are large enough that the round trip per piece
does not matter, and that the manifest of a model of 10^10 parameters has a third of a megabyte.
"""

HASH_BYTES = 32
VALUE_BYTES = 4
MAX_RUN_ID_BYTES = 32
MAX_STEP = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Parameter:
    """A float32 tensor. name: its full name. shape: its sizes; () for a single value."""

    name: str
    shape: tuple[int, ...]

    @property
    def byte_count(self) -> int:
        """Number of bytes of all values."""
        return VALUE_BYTES * math.prod(self.shape)

    @property
    def piece_count(self) -> int:
        """Number of its pieces; 0 if it has no values."""
        return -(-self.byte_count // PIECE_BYTES)


Table = tuple[Parameter, ...]
"""The parameters of a model, ascending by name."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `first` to `first + byte_count - 1` of a parameter. number: counted over the whole model, from 0."""

    number: int
    name: str
    first: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The pieces of a model, see the module.

    step: the last one whose accepted results are in these masters. hashes: SHA-256 of each piece, by its number. Raises
    ValueError for a wrong number or length of hashes.
    """

    run_id: str
    step: int
    table: Table
    hashes: tuple[bytes, ...]

    def __post_init__(self) -> None:
        count = piece_count(self.table)
        if len(self.hashes) != count or any(len(digest) != HASH_BYTES for digest in self.hashes):
            message = f"expected {count} hashes of {HASH_BYTES} bytes, one for each piece, got {len(self.hashes)}"
            raise ValueError(message)


def parameter_table(shapes: Mapping[str, Iterable[int]]) -> Table:
    """Return the table of parameters. shapes: shape of each parameter by name, in any order."""
    return tuple(Parameter(name, tuple(int(size) for size in shapes[name])) for name in sorted(shapes))


def piece_count(table: Table) -> int:
    """Return the number of pieces of a model."""
    return sum(parameter.piece_count for parameter in table)


def cut(table: Table) -> tuple[Piece, ...]:
    """Return the pieces of a model, ordered by number."""
    places = [
        (parameter.name, first, min(PIECE_BYTES, parameter.byte_count - first))
        for parameter in table
        for first in range(0, parameter.byte_count, PIECE_BYTES)
    ]
    return tuple(Piece(number, *place) for number, place in enumerate(places))


def max_manifest_bytes(table: Table) -> int:
    """Return the maximum length in bytes of a manifest of a model with this table."""
    fields = [VERSION, "." * MAX_RUN_ID_BYTES, MAX_STEP, _entries(table, bytes(HASH_BYTES * piece_count(table)))]
    return len(encode_cbor(fields))


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest. Raises ValueError for a run id or a step that is out of range."""
    if len(manifest.run_id.encode()) > MAX_RUN_ID_BYTES or not 0 <= manifest.step <= MAX_STEP:
        message = (
            f"a manifest carries a run id of at most {MAX_RUN_ID_BYTES} bytes and a step of 0..{MAX_STEP}, "
            f"got {manifest.run_id!r} and {manifest.step}"
        )
        raise ValueError(message)

    return encode_cbor([VERSION, manifest.run_id, manifest.step, _entries(manifest.table, b"".join(manifest.hashes))])


def decode(data: bytes, *, expected: Table) -> Manifest:
    """Read a manifest of a model with exactly our parameters. expected: our own table.

    Raises only WireError. The caller must compare run id and step with those it requested.
    """
    items = 5 + sum(4 + len(parameter.shape) for parameter in expected)
    fields = decode_cbor(data, max_bytes=max_manifest_bytes(expected), max_depth=4, max_items=items)
    match fields:
        case [int(version), str(run_id), int(step), [*entries]]:
            pass
        case _:
            message = "a manifest is a list of version, run id, step and parameters"
            raise WireError(message)

    if isinstance(version, bool) or version != VERSION:
        message = f"manifest version {version!r} is not {VERSION}"
        raise WireError(message)

    if isinstance(step, bool) or not 0 <= step <= MAX_STEP or len(run_id.encode()) > MAX_RUN_ID_BYTES:
        message = f"a manifest's step is 0..{MAX_STEP} and its run id has at most {MAX_RUN_ID_BYTES} bytes"
        raise WireError(message)

    if len(entries) != len(expected):
        message = f"the manifest has {len(entries)} parameters, our model has {len(expected)}"
        raise WireError(message)

    hashes: list[bytes] = []
    for entry, ours in zip(entries, expected, strict=True):
        joined = _hashes_of(entry, ours)
        hashes.extend(joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES))
    return Manifest(run_id, step, expected, tuple(hashes))


def _hashes_of(entry: Any, ours: Parameter) -> bytes:
    """Return the joined hashes of an entry. Raises WireError if the entry does not match our parameter `ours`."""
    match entry:
        case [str(name), [*shape], bytes(joined)]:
            pass
        case _:
            message = "a parameter of a manifest is a list of name, sizes and hashes"
            raise WireError(message)

    # True and 1.0 equal 1 in Python but not in CBOR; without this check one model could have several manifests
    if name != ours.name or tuple(shape) != ours.shape or any(type(size) is not int for size in shape):
        message = (
            f"the manifest has {name!r:.80} of shape {shape!r:.80} where our model has {ours.name!r} of {list(ours.shape)}; "
            "if it was built from a local folder, look whether that is the run's model (--base)"
        )
        raise WireError(message)

    if len(joined) != HASH_BYTES * ours.piece_count:
        message = (
            f"{ours.name} has {ours.piece_count} pieces of {HASH_BYTES} hash bytes each, the manifest has {len(joined)} bytes"
        )
        raise WireError(message)

    return joined


def _entries(table: Table, joined: bytes) -> list[list[Any]]:
    """Return the entries of all parameters for the encoding. joined: the hashes of all pieces, by number."""
    entries: list[list[Any]] = []
    at = 0
    for parameter in table:
        size = HASH_BYTES * parameter.piece_count
        entries.append([parameter.name, list(parameter.shape), joined[at : at + size]])
        at += size
    return entries
