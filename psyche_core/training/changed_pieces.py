"""Which pieces of a model differ from the manifest. Found by hashing, except where the answer is already clear.

If many pieces spread over a large model all differ, training has changed the whole model. Then the rest is not hashed, and at
worst a few equal pieces are fetched. A replica in which one weight is wrong is compared piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psyche_core.p2p.manifest import Manifest, Piece, cut
from psyche_core.storage.parallel_map import each

SAMPLE = 8
"""Pieces that are hashed first, when there are at least twice as many."""


def differing(manifest: Manifest, digest_of: Callable[[Piece], bytes]) -> tuple[int, ...]:
    """Numbers of the pieces that differ, ascending: all that do, and in a model that has changed throughout perhaps some others.

    digest_of: SHA-256 of a piece of our own, called in several threads.
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
