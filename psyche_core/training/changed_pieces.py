"""Finds the pieces of a model that differ from a manifest, by hashing them.

First a sample of pieces is hashed. If all of them differ, training has changed the whole model: then the other pieces are not
hashed, and at worst a few equal pieces are fetched. Otherwise, for example if only one weight is wrong, all pieces are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psyche_core.p2p.manifest import Manifest, Piece, cut
from psyche_core.storage.parallel_map import each

SAMPLE = 8
"""Number of pieces that are hashed first, if there are at least twice as many."""


def differing(manifest: Manifest, digest_of: Callable[[Piece], bytes]) -> tuple[int, ...]:
    """Return the numbers of the pieces that differ, ascending. If the whole model has changed, a few equal ones may be included.

    digest_of: returns the SHA-256 (32 bytes) of our own piece; called in several threads.
    """
    pieces = cut(manifest.table)

    def differ(piece: Piece) -> bool:
        return digest_of(piece) != manifest.hashes[piece.number]

    def numbers(of: Sequence[Piece]) -> set[int]:
        return {piece.number for piece, differs in zip(of, each(differ, of), strict=True) if differs}

    if len(pieces) < 2 * SAMPLE:
        return tuple(sorted(numbers(pieces)))

    sample = [pieces[number * len(pieces) // SAMPLE] for number in range(SAMPLE)]
    found = numbers(sample)
    if len(found) == SAMPLE:
        return tuple(range(len(pieces)))

    seen = {piece.number for piece in sample}
    return tuple(sorted(found | numbers([piece for piece in pieces if piece.number not in seen])))
