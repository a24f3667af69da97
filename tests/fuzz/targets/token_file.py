"""A whole token file: opened and read to its end, or refused with DataError."""

from __future__ import annotations

from psyche_core.data.token_files import TokenFiles
from psyche_core.errors import DataError
from tests.fuzz.files import scratch_folder
from tests.fuzz.targets.npy_header import mutate
from tests.fuzz.targets.npy_header import seeds as headers

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (DataError,)
MAX_BYTES = 1024
MEMORY = (2500, 2_500_000)  # see npy_header

_SEQUENCE_LENGTH = 16
_FOLDER = scratch_folder()


def seeds() -> list[bytes]:
    return [head + bytes(range(256)) for head in headers()] + [bytes(32), b"x" * 31]


def TARGET(data: bytes) -> None:
    path = _FOLDER / "tokens.npy"
    path.write_bytes(data)
    files = TokenFiles(path, sequence_length=_SEQUENCE_LENGTH, token_size=2)
    assert 0 < len(files) <= len(data) // (2 * _SEQUENCE_LENGTH)
    assert len(files.read(range(len(files) + 1))) == (len(files) + 1) * 2 * _SEQUENCE_LENGTH
