"""Masters as pieces, and pieces as masters again: the tensors' side of `psyche_core.wire.manifest`.

Decided here: pieces are made one at a time from the live masters, so a snapshot costs whatever its taker keeps and no second
copy of the model. New masters are built beside the old ones, only for parameters in which something differs, and *every* piece
of them, fetched or our own, is compared with the manifest before anything is replaced: what comes out has the manifest's bits or
does not come out. Refuses values that are not finite, whatever their hash: no honest replica holds one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from psyche_core.errors import ModelError
from psyche_core.training.digest import float32_bytes
from psyche_core.wire.manifest import VALUE_BYTES, Manifest, Piece, Table, cut, parameter_table

Masters = Mapping[str, torch.Tensor]
"""float32, by parameter name, on any device."""


def table_of(masters: Masters) -> Table:
    """Names and shapes of the masters."""
    return parameter_table({name: tuple(tensor.shape) for name, tensor in masters.items()})


def read_piece(masters: Masters, piece: Piece) -> bytes:
    """The bytes of one piece: at most PIECE_BYTES are copied."""
    return bytes(_view(masters[piece.name], piece))


def differing(masters: Masters, manifest: Manifest) -> tuple[int, ...]:
    """Numbers of the pieces in which our masters are not the manifest's, ascending. The manifest must be of our table."""
    _check_table(masters, manifest)
    return tuple(piece.number for piece in cut(manifest.table) if not _matches(masters, piece, manifest))


def assemble(masters: Masters, manifest: Manifest, pieces: Mapping[int, bytes]) -> dict[str, torch.Tensor]:
    """The manifest's masters: a new CPU tensor where any piece was given, our own live tensor elsewhere. Changes nothing.

    pieces: fetched bytes by number of the piece, at least all that `differing` names. Raises ModelError for a piece that is
    missing, not of the manifest or not finite.
    """
    _check_table(masters, manifest)
    built: dict[str, torch.Tensor] = dict(masters)
    for piece in cut(manifest.table):
        given = pieces.get(piece.number)
        if given is None:
            if not _matches(masters, piece, manifest):
                message = f"piece {piece.number} of the model ({piece.name}) is neither ours nor fetched"
                raise ModelError(message)
            continue

        _check_piece(given, piece, manifest)
        if built[piece.name] is masters[piece.name]:
            built[piece.name] = masters[piece.name].detach().to("cpu", copy=True).contiguous()
        values = np.frombuffer(given, dtype="<f4").astype(np.float32, copy=True)  # writable, in this machine's byte order
        start = piece.first // VALUE_BYTES
        built[piece.name].view(-1)[start : start + len(values)] = torch.from_numpy(values)
    return built


def _check_table(masters: Masters, manifest: Manifest) -> None:
    if manifest.table != table_of(masters):
        message = "the manifest is not of our parameters; decode it against our own table"
        raise ModelError(message)


def _check_piece(given: bytes, piece: Piece, manifest: Manifest) -> None:
    if len(given) != piece.byte_count or hashlib.sha256(given).digest() != manifest.hashes[piece.number]:
        message = f"piece {piece.number} of the model ({piece.name}) does not have the bytes its manifest names"
        raise ModelError(message)

    if not bool(np.isfinite(np.frombuffer(given, dtype="<f4")).all()):
        message = f"piece {piece.number} of the model ({piece.name}) holds values that are not finite"
        raise ModelError(message)


def _matches(masters: Masters, piece: Piece, manifest: Manifest) -> bool:
    return hashlib.sha256(_view(masters[piece.name], piece)).digest() == manifest.hashes[piece.number]


def _view(tensor: torch.Tensor, piece: Piece) -> memoryview[Any]:
    start = piece.first // VALUE_BYTES
    return float32_bytes(tensor.detach().reshape(-1)[start : start + piece.byte_count // VALUE_BYTES])
