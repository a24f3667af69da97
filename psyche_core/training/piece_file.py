"""A model's pieces in a scratch file, each at a fixed place: parameter after parameter, in the order of the manifest.

A piece is complete if its bytes have the hash in the manifest. Nothing else is recorded, so after a crash only the content of the
file decides which pieces it contains. Pieces that were not written take no space on disk. Tensors are handled in
`psyche_core.training.snapshot`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from psyche_core.p2p.manifest import Piece
from psyche_core.storage.scratch import ScratchFile


class PieceFile:
    """A file of pieces. file: this object owns it. pieces: all pieces of the model, ordered by number. total: their bytes."""

    def __init__(self, file: ScratchFile, pieces: Sequence[Piece]) -> None:
        self._file = file
        self._pieces = pieces
        self._places: list[int] = []
        self.total: int = 0
        for piece in pieces:
            self._places.append(self.total)
            self.total += piece.byte_count

    def reserve(self, numbers: Collection[int]) -> None:
        """Reserve disk space for these pieces. Raises OSError if there is not enough."""
        self._file.reserve(self.total, [(self._places[number], self._pieces[number].byte_count) for number in numbers])

    def write(self, number: int, data: bytes) -> None:
        """Write a piece at its place. data: exactly its bytes. Raises OSError, and ValueError for another length."""
        if len(data) != self._pieces[number].byte_count:
            message = f"piece {number} has {self._pieces[number].byte_count} bytes, got {len(data)}"
            raise ValueError(message)

        self._file.write(self._places[number], data)

    def read(self, number: int) -> memoryview:
        """Return a piece as it is in the file, as a view of memory that nothing else uses. Raises OSError."""
        return self._file.read(self._places[number], self._pieces[number].byte_count)

    def stamp(self) -> object | None:
        """Return the file's stamp, see ScratchFile: equal stamps mean that no piece has changed. Raises OSError."""
        return self._file.stamp()

    def holds(self, number: int, digest: bytes) -> bool:
        """Whether the bytes at a piece's place have this SHA-256 (32 bytes). False if they cannot be read."""
        try:
            return hashlib.sha256(self.read(number)).digest() == digest
        except OSError:
            return False

    @property
    def resumable(self) -> bool:
        """Whether the file is kept after this process ends, so that it can be resumed."""
        return self._file.resumable

    @resumable.setter
    def resumable(self, value: bool) -> None:
        self._file.resumable = value

    def remove(self) -> None:
        """Delete the file. Later reads raise OSError. Idempotent."""
        self._file.remove()


class PiecesOnDisk(Mapping[int, bytes | memoryview]):
    """Pieces of a file by number. Each look-up reads the piece from the file and may raise OSError."""

    def __init__(self, file: PieceFile, numbers: Collection[int]) -> None:
        self._file = file
        self._numbers = dict.fromkeys(sorted(numbers))

    def __getitem__(self, number: int) -> memoryview:
        if number not in self._numbers:
            raise KeyError(number)

        return self._file.read(number)

    def __contains__(self, number: object) -> bool:
        return number in self._numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)
