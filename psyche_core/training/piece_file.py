"""A model's pieces in a scratch file, each at its place: parameter after parameter, in the order of the manifest.

A piece is there if its bytes have the hash in the manifest. Nothing else is recorded, so a file found after a crash is judged by
its content. Pieces that were not written take no space on disk. Tensors are handled in `psyche_core.training.snapshot`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from psyche_core.p2p.manifest import Piece
from psyche_core.storage.scratch import ScratchFile


class PieceFile:
    """file: owned. pieces: of the whole model, by number."""

    def __init__(self, file: ScratchFile, pieces: Sequence[Piece]) -> None:
        self._file = file
        self._pieces = pieces
        self._places: list[int] = []
        self.total = 0
        for piece in pieces:
            self._places.append(self.total)
            self.total += piece.byte_count

    def reserve(self, numbers: Collection[int]) -> None:
        """Take room on the disk for these pieces. Raises OSError when there is not enough."""
        self._file.reserve(self.total, [(self._places[number], self._pieces[number].byte_count) for number in numbers])

    def write(self, number: int, data: bytes) -> None:
        """Put a piece at its place. data: exactly its bytes. Raises OSError."""
        if len(data) != self._pieces[number].byte_count:
            message = f"piece {number} has {self._pieces[number].byte_count} bytes, got {len(data)}"
            raise ValueError(message)

        self._file.write(self._places[number], data)

    def read(self, number: int) -> memoryview:
        """A piece as it is in the file, in memory of its own. Raises OSError."""
        return self._file.read(self._places[number], self._pieces[number].byte_count)

    def stamp(self) -> object | None:
        """See ScratchFile: equal stamps mean that no piece has changed."""
        return self._file.stamp()

    def holds(self, number: int, digest: bytes) -> bool:
        """Whether the bytes at a piece's place have that SHA-256; not where they cannot be read."""
        try:
            return hashlib.sha256(self.read(number)).digest() == digest
        except OSError:
            return False

    @property
    def resumable(self) -> bool:
        """Whether the file is worth finding again after this process."""
        return self._file.resumable

    @resumable.setter
    def resumable(self, value: bool) -> None:
        self._file.resumable = value

    def remove(self) -> None:
        """Delete the file; who still reads it gets OSError. Idempotent."""
        self._file.remove()


class PiecesOnDisk(Mapping[int, bytes | memoryview]):
    """Pieces of a file by number, read one at a time when they are looked up; looking up may raise OSError."""

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
