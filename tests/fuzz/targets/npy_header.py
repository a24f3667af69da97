"""The beginning of a token file that may be numpy's."""

from __future__ import annotations

from random import Random

from psyche_core.data.token_files import MAX_NPY_HEADER, NPY_MAGIC, npy_data_start
from psyche_core.errors import DataError
from tests.fuzz.mutation import change_bytes

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (DataError,)
MAX_BYTES = MAX_NPY_HEADER
MEMORY = (2500, 2_500_000)  # a tree of the literals; and names are interned, whose table grows by a megabyte at times


_FIELDS = (
    b"{'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }",
    b"{'shape': (2, 3), 'fortran_order': True, 'descr': '<u2'}",
)
_LITERALS = (
    b"0x" + b"f" * 3800,
    b"(" * 90,
    b"-" * 50,
    b"b'x'",
    b"1e999",
    b"None",
    b"{}",
    b"'<u4'",
    b"'descr': ",
    b"\0",
    b"\\N{DASH}",
)


def seeds() -> list[bytes]:
    heads = [_header(version, fields.ljust(117) + b"\n") for version in (1, 2, 3) for fields in _FIELDS]
    return [*heads, b"\x01\x00\x02\x00"]


def _header(version: int, text: bytes) -> bytes:
    return NPY_MAGIC + bytes((version, 0)) + len(text).to_bytes(2 if version == 1 else 4, "little") + text


def mutate(data: bytes, random: Random) -> bytes:
    """A change of the dictionary's text, its length told rightly."""
    fields = data[10 if data[6:7] == b"\x01" else 12 :]
    if random.random() < 0.5:
        place = random.randint(0, len(fields))
        fields = (
            fields[:place]
            + (random.choice(_LITERALS) if random.random() < 0.97 else b"0x" + b"f" * 3800)
            + fields[place + random.choice((0, 0, 1, 5)) :]
        )
    else:
        fields = change_bytes(fields, random)
    return _header(2, fields)


def TARGET(data: bytes) -> None:
    start = npy_data_start(data, token_size=2, name="tokens.npy")
    assert 0 <= start < 2**32 + 12
