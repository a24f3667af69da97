"""What differs is always named; what does not is not hashed without need."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from psyche_core.p2p.manifest import Manifest, Piece, cut, parameter_table
from psyche_core.training.changed_pieces import SAMPLE, differing


def manifest_of(count: int) -> Manifest:
    table = parameter_table({f"p{number:04}": (1,) for number in range(count)})
    return Manifest("run", 1, table, tuple(hashlib.sha256(b"theirs %d" % piece.number).digest() for piece in cut(table)))


class Ours:
    """Our own pieces: the manifest's but for these numbers. hashed: how many were looked at."""

    def __init__(self, changed: set[int]) -> None:
        self.changed = changed
        self.hashed: list[int] = []

    def __call__(self, piece: Piece) -> bytes:
        self.hashed.append(piece.number)
        return hashlib.sha256(b"%s %d" % (b"ours" if piece.number in self.changed else b"theirs", piece.number)).digest()


@given(st.integers(1, 6 * SAMPLE), st.data())
def test_whatever_differs_is_named(count: int, data: st.DataObject) -> None:
    ours = Ours(data.draw(st.sets(st.integers(0, count - 1))))
    found = differing(manifest_of(count), ours)
    assert found == tuple(sorted(set(found)))
    assert set(found) >= ours.changed
    if len(set(ours.hashed)) == count:
        assert set(found) == ours.changed
    assert len(ours.hashed) == len(set(ours.hashed)), "something was hashed twice"


def test_one_wrong_weight_costs_one_piece() -> None:
    for wrong in (0, 1, 999):
        assert differing(manifest_of(1000), Ours({wrong})) == (wrong,)


def test_a_model_that_has_moved_on_is_not_hashed_throughout() -> None:
    ours = Ours(set(range(1000)))
    assert differing(manifest_of(1000), ours) == tuple(range(1000))
    assert len(ours.hashed) == SAMPLE


def test_a_model_that_is_half_new_is_compared_piece_by_piece() -> None:
    """As after a download that ended while the masters were being replaced."""
    changed = set(range(500, 1000))
    assert differing(manifest_of(1000), Ours(changed)) == tuple(sorted(changed))
