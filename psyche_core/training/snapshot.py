"""Converts a model to pieces and pieces to a model: the tensor side of `psyche_core.p2p.manifest`.

"Masters" in this module are all tensors that replicas share, including the optimizer's public state, see `shared_tensors`.

Pieces are made one at a time from the live masters, and new masters are made one tensor at a time while the optimizer loads them.
So neither needs a second copy of the model. Before anything is replaced, *every* piece of the new masters, fetched or our own, is
compared with the manifest: either the result has exactly the bits of the manifest, or nothing is replaced. Fetched values that
are not finite are rejected even if their hash is right, because no honest replica holds such values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from psyche_core.errors import ModelError, ModelHalfReplaced
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.parameters import LazyParameters, shapes_of
from psyche_core.p2p.manifest import VALUE_BYTES, Manifest, Piece, Table, cut, parameter_table
from psyche_core.storage.parallel_map import each
from psyche_core.training import changed_pieces
from psyche_core.training.digest import float32_bytes
from psyche_core.training.shared_tensors import load_shared, shared_tensors

Masters = Mapping[str, torch.Tensor]
"""float32 tensors by name, on any device: `shared_tensors`."""


def table_of(masters: Masters) -> Table:
    """Return names and shapes of the masters."""
    return parameter_table(shapes_of(masters))


def read_piece(masters: Masters, piece: Piece) -> bytes:
    """Return the bytes of one piece. At most PIECE_BYTES are copied."""
    return bytes(_view(masters[piece.name], piece))


def differing(masters: Masters, manifest: Manifest) -> tuple[int, ...]:
    """Return the numbers of the pieces in which our masters differ from the manifest, see `changed_pieces.differing`.

    Raises ModelError if the manifest is not of our parameter table.
    """
    _check_table(masters, manifest)
    return changed_pieces.differing(manifest, lambda piece: hashlib.sha256(_view(masters[piece.name], piece)).digest())


class NewMasters(LazyParameters):
    """The masters of a manifest: our own tensors if no piece of them was given, otherwise CPU tensors, built at each look-up.

    pieces: bytes by number of the piece, with the right lengths. handed: number of pieces read so far.
    """

    def __init__(self, masters: Masters, table: Table, pieces: Mapping[int, bytes | memoryview]) -> None:
        self._masters = masters
        self._pieces = pieces
        self._given: dict[str, list[Piece]] = {}
        for piece in cut(table):
            if piece.number in pieces:
                self._given.setdefault(piece.name, []).append(piece)
        self._shapes = {parameter.name: parameter.shape for parameter in table}
        self.handed: int = 0

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor, by name."""
        return self._shapes

    def __getitem__(self, name: str) -> torch.Tensor:
        given, ours = self._given.get(name), self._masters[name]
        if given is None:
            return ours

        if VALUE_BYTES * ours.numel() == sum(piece.byte_count for piece in given):
            built = torch.empty(ours.shape, dtype=torch.float32)
        else:
            built = ours.detach().to("cpu", copy=True).contiguous()
        self._fill(built.view(-1), given)
        return built

    def copy_to(self, name: str, target: torch.Tensor) -> None:
        """Write a tensor's values into `target`, piece by piece. Does nothing if `target` is our own tensor and already right."""
        if target is not self._masters[name]:
            target.copy_(self._masters[name])
        given = self._given.get(name)
        if given is None:
            return

        if target.is_contiguous():
            self._fill(target.detach().view(-1), given)
        else:
            target.copy_(self[name])

    def _fill(self, flat: torch.Tensor, given: Sequence[Piece]) -> None:
        """Write pieces to their places in a one-dimensional float32 tensor on any device."""
        for piece in given:
            start = piece.first // VALUE_BYTES
            values = np.frombuffer(self._pieces[piece.number], dtype="<f4").astype(np.float32, copy=False)
            flat[start : start + len(values)].copy_(_tensor(values))
            self.handed += 1


def assemble(masters: Masters, manifest: Manifest, pieces: Mapping[int, bytes | memoryview]) -> NewMasters:
    """Verify every piece and return the manifest's masters. Changes nothing.

    pieces: fetched bytes by number of the piece, at least all that `differing` returns. Each is read twice, one at a time. Raises
    ModelError for a piece that is missing, does not match the manifest, is not finite or cannot be read.
    """
    _check_table(masters, manifest)

    def check(piece: Piece) -> None:
        if piece.number in pieces:
            _check_piece(_read(pieces, piece), piece, manifest)
        elif not _matches(masters, piece, manifest):
            message = f"piece {piece.number} of the model ({piece.name}) differs from ours and was not fetched"
            raise ModelError(message)

    each(check, cut(manifest.table))
    return NewMasters(masters, manifest.table, pieces)


def install(optimizer: Optimizer, manifest: Manifest, pieces: Mapping[int, bytes | memoryview]) -> None:
    """Replace an optimizer's masters and public state by those of the manifest, see `assemble`, and discard its private state.

    Raises ModelError if that is not possible; then nothing has changed. Raises ModelHalfReplaced if a verified piece could not be
    read again while the masters were being replaced.
    """
    new = assemble(shared_tensors(optimizer), manifest, pieces)
    try:
        load_shared(optimizer, new)
    except OSError as error:
        reason = f"a piece could not be read again: {error.strerror or error}"
        if not new.handed:
            raise ModelError(reason) from error

        message = f"the model was only partly replaced by that of step {manifest.step}, and now matches no step: {reason}"
        raise ModelHalfReplaced(message) from error


def _tensor(values: NDArray[np.float32]) -> torch.Tensor:
    """Return the values as a tensor, which must not be written. Shares memory if the array is writable, otherwise copies."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _read(pieces: Mapping[int, bytes | memoryview], piece: Piece) -> bytes | memoryview:
    try:
        return pieces[piece.number]
    except OSError as error:
        message = f"piece {piece.number} of the model ({piece.name}) cannot be read: {error.strerror or error}"
        raise ModelError(message) from error


def _check_table(masters: Masters, manifest: Manifest) -> None:
    if manifest.table != table_of(masters):
        message = "the manifest does not match our parameters; decode it with our own parameter table"
        raise ModelError(message)


def _check_piece(given: bytes | memoryview, piece: Piece, manifest: Manifest) -> None:
    if len(given) != piece.byte_count or hashlib.sha256(given).digest() != manifest.hashes[piece.number]:
        message = f"piece {piece.number} of the model ({piece.name}) does not match the hash in its manifest"
        raise ModelError(message)

    if not bool(np.isfinite(np.frombuffer(given, dtype="<f4")).all()):
        message = f"piece {piece.number} of the model ({piece.name}) holds values that are not finite"
        raise ModelError(message)


def _matches(masters: Masters, piece: Piece, manifest: Manifest) -> bool:
    return hashlib.sha256(_view(masters[piece.name], piece)).digest() == manifest.hashes[piece.number]


def _view(tensor: torch.Tensor, piece: Piece) -> memoryview[Any]:
    start = piece.first // VALUE_BYTES
    return float32_bytes(tensor.detach().reshape(-1)[start : start + piece.byte_count // VALUE_BYTES])
