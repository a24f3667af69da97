"""The graph of an overlay: symmetric, connected, of bounded degree, and the same for everybody."""

from __future__ import annotations

import hashlib
import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.p2p.overlay import DEGREE, FULL_MESH, MOST_DEGREE, Overlay


def keys(count: int) -> list[bytes]:
    return [hashlib.sha256(b"%d" % number).digest() for number in range(count)]


def edges(overlay: Overlay) -> set[frozenset[bytes]]:
    return {frozenset((key, other)) for key in overlay.members for other in overlay.neighbours(key)}


def distances(overlay: Overlay, origin: bytes) -> dict[bytes, int]:
    """By a plain breadth-first search over `neighbours`."""
    found, queue = {origin: 0}, deque([origin])
    while queue:
        key = queue.popleft()
        for other in overlay.neighbours(key):
            if other not in found:
                found[other] = found[key] + 1
                queue.append(other)
    return found


members = st.integers(0, 80).map(keys)
seeds = st.integers(0, 2**64 - 1)
degrees = st.integers(1, MOST_DEGREE // 2).map(lambda half: 2 * half)


@given(members, seeds, degrees, st.integers(0, FULL_MESH))
def test_a_graph_is_symmetric_connected_and_of_bounded_degree(
    members: list[bytes], seed: int, degree: int, full_mesh: int
) -> None:
    overlay = Overlay(members, seed, degree=degree, full_mesh=full_mesh)
    for key in members:
        neighbours = overlay.neighbours(key)
        assert key not in neighbours
        assert list(neighbours) == sorted(set(neighbours))
        assert len(neighbours) <= (MOST_DEGREE if len(members) <= full_mesh else degree)
        assert all(key in overlay.neighbours(other) for other in neighbours)
        assert distances(overlay, key).keys() == set(members)


@given(members, seeds, degrees, st.randoms(use_true_random=False))
def test_all_members_compute_the_same_graph(members: list[bytes], seed: int, degree: int, order: random.Random) -> None:
    shuffled = [*members, *members[:3]]
    order.shuffle(shuffled)
    one, other = Overlay(members, seed, degree=degree), Overlay(shuffled, seed, degree=degree)
    assert edges(one) == edges(other)


def test_the_graph_of_a_seed_stays_what_it_is() -> None:
    """Members of different versions must compute the same one."""
    said = b"".join(b"".join(sorted(edge)) for edge in sorted(edges(Overlay(keys(40), 7)), key=sorted))
    assert hashlib.sha256(said).hexdigest()[:16] == "2a649d23d06b12b7"
    assert edges(Overlay(keys(40), 7)) != edges(Overlay(keys(40), 8))


@given(st.integers(0, FULL_MESH), seeds)
def test_few_members_are_all_neighbours(count: int, seed: int) -> None:
    overlay = Overlay(keys(count), seed)
    assert len(edges(overlay)) == count * (count - 1) // 2
    assert overlay.diameter() == min(1, max(count - 1, 0))


@given(st.integers(0, 79), seeds)
def test_who_leaves_changes_only_the_edges_beside_it(place: int, seed: int) -> None:
    before, gone = Overlay(keys(80), seed), keys(80)[place]
    after = Overlay([key for key in keys(80) if key != gone], seed)
    kept = {edge for edge in edges(before) if gone not in edge}
    assert kept <= edges(after)
    assert all(edge <= set(before.neighbours(gone)) for edge in edges(after) - kept)
    assert len(edges(after) - kept) <= DEGREE // 2


@given(st.integers(2, 60).map(keys), seeds, st.sampled_from((2, 4, 8)))
def test_hops_are_those_of_the_shortest_way(members: list[bytes], seed: int, degree: int) -> None:
    overlay = Overlay(members, seed, degree=degree, full_mesh=0)
    ways = {origin: distances(overlay, origin) for origin in members}
    assert all(overlay.hops(origin, key) == ways[origin][key] for origin in members for key in members)
    assert overlay.diameter() == max(max(hops.values()) for hops in ways.values())
    origin = members[0]
    for key in members:
        among = overlay.neighbours(key)
        nearer = [other for other in among if ways[origin][other] < ways[origin][key]]
        level = [other for other in among if ways[origin][other] == ways[origin][key]]
        for other in members:
            position = overlay.position(origin, key, other)
            if ways[origin][key] < 2 or other not in (*nearer, *level):
                assert position is None
                continue

            assert position is not None
            assert (position.nearer, position.level) == (len(nearer), len(level))
            assert position.is_nearer == (other in nearer)
            assert (nearer if position.is_nearer else level)[position.place] == other


@pytest.mark.parametrize("seed", range(5))
def test_256_members_are_within_three_hops(seed: int) -> None:
    overlay = Overlay(keys(256), seed)
    assert overlay.diameter() <= 3
    degrees = [len(overlay.neighbours(key)) for key in overlay.members]
    assert max(degrees) <= DEGREE
    assert min(degrees) >= DEGREE // 2


@pytest.mark.parametrize("seed", range(5))
def test_half_of_256_members_may_be_dead_and_the_others_stay_connected(seed: int) -> None:
    overlay, names = Overlay(keys(256), seed), keys(256)
    alive = set(random.Random(seed).sample(names, 128))
    start = next(iter(alive))
    reached, edge = {start}, {start}
    while edge:
        edge = {other for key in edge for other in overlay.neighbours(key) if other in alive} - reached
        reached |= edge
    assert reached == alive


def test_who_is_no_member_has_no_place() -> None:
    overlay, stranger = Overlay(keys(40), 1), b"s" * 32
    member = overlay.members[0]
    assert stranger not in overlay
    assert member in overlay
    assert overlay.neighbours(stranger) == ()
    assert overlay.hops(member, stranger) is None
    assert overlay.hops(stranger, member) is None
    assert overlay.position(stranger, member, member) is None
    assert Overlay([], 0).diameter() == 0


@pytest.mark.parametrize(
    ("seed", "degree", "full_mesh", "said"),
    [
        (0, 3, 33, "an even number from 2 to 32, got 3"),
        (0, 34, 33, "an even number from 2 to 32, got 34"),
        (0, 0, 33, "an even number from 2 to 32, got 0"),
        (0, 20, 34, "for at most 33 members, got 34"),
        (2**64, 20, 33, "an unsigned number of 64 bits"),
        (-1, 20, 33, "an unsigned number of 64 bits"),
    ],
)
def test_other_values_are_refused_with_a_sentence(seed: int, degree: int, full_mesh: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Overlay(keys(3), seed, degree=degree, full_mesh=full_mesh)
    with pytest.raises(ValueError, match="a member's key has 32 bytes, got 31"):
        Overlay([b"k" * 31], 0)
