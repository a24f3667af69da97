"""Which members connect to each other when a run has too many for connections between all of them.

Every member knows the members of an epoch and the seed that the coordinator drew at the epoch's start. From these two all compute
the same graph, so no protocol is needed to agree on neighbours. The graph is the union of several random Hamiltonian cycles: each
cycle orders all members by a hash of the seed, the number of the cycle and the member's key. One cycle alone connects everybody.
With ten cycles 256 members are at most three hops apart.

A key's place in a cycle does not depend on the other members. When a member leaves, its two neighbours in each cycle become
neighbours, and all other edges stay. So a change of the members in an epoch costs few connections, and two members that know
slightly different lists agree on almost all edges.

The seed must be drawn after the keys were chosen. Otherwise members could choose keys that surround another member.

Up to FULL_MESH members, everybody is a neighbour of everybody. `spread` decides which neighbour gets which message, `downloads`
from which neighbour a result is fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

KEY_BYTES = 32
SEED_LIMIT = 2**64
DEGREE = 20
"""Most neighbours of a member, unless the caller says otherwise. With it, 256 members were within three hops of each other for
each of 200 seeds; with 16 for 197 of them."""

MOST_DEGREE = 32
FULL_MESH = MOST_DEGREE + 1
"""Up to so many members nobody has more than MOST_DEGREE connections even if all are connected."""

_DOMAIN = b"psyche overlay 1\0"


@dataclass(frozen=True, slots=True)
class Position:
    """A neighbour of a member among all its neighbours, as seen from an author.

    nearer, level: how many of the member's neighbours are one hop nearer to the author than the member, and as far as it.
    is_nearer: to which of the two this neighbour belongs. place: its number among those, from 0.
    """

    nearer: int
    level: int
    is_nearer: bool
    place: int


class Overlay:
    """The graph of an epoch.

    members: their p2p keys, 32 bytes each, in any order. seed: u64 of the epoch. degree: most neighbours of each, even, 2 to
    MOST_DEGREE. full_mesh: up to so many members all are neighbours, whatever the degree. Raises ValueError for other values.
    """

    def __init__(self, members: Collection[bytes], seed: int, *, degree: int = DEGREE, full_mesh: int = FULL_MESH) -> None:
        if degree % 2 or not 2 <= degree <= MOST_DEGREE:
            message = f"the degree of an overlay is an even number from 2 to {MOST_DEGREE}, got {degree}"
            raise ValueError(message)
        if not 0 <= full_mesh <= FULL_MESH:
            message = f"connections between all are for at most {FULL_MESH} members, got {full_mesh}"
            raise ValueError(message)
        if not 0 <= seed < SEED_LIMIT:
            message = f"the seed of an overlay is an unsigned number of 64 bits, got {seed}"
            raise ValueError(message)
        wrong = next((key for key in members if len(key) != KEY_BYTES), None)
        if wrong is not None:
            message = f"a member's key has {KEY_BYTES} bytes, got {len(wrong)}"
            raise ValueError(message)

        self.members: tuple[bytes, ...] = tuple(sorted(set(members)))
        self._numbers = {key: number for number, key in enumerate(self.members)}
        everybody = (1 << len(self.members)) - 1
        if len(self.members) <= max(full_mesh, degree + 1):
            self._adjacent = [everybody & ~(1 << number) for number in range(len(self.members))]
        else:
            self._adjacent = self._cycles(seed, degree // 2)
        self._layers: dict[int, tuple[int, ...]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._numbers

    def neighbours(self, key: bytes) -> tuple[bytes, ...]:
        """Return the members connected with this one, ascending; none for a key that is not a member's."""
        number = self._numbers.get(key)
        return () if number is None else tuple(self.members[other] for other in _set_bits(self._adjacent[number]))

    def hops(self, origin: bytes, key: bytes) -> int | None:
        """Return the number of edges on the shortest way between two members; None if one of them is not a member."""
        start, number = self._numbers.get(origin), self._numbers.get(key)
        if start is None or number is None:
            return None

        return next(distance for distance, layer in enumerate(self._layers_from(start)) if layer >> number & 1)

    def position(self, origin: bytes, key: bytes, neighbour: bytes) -> Position | None:
        """Return where this neighbour of `key` stands; None if it is farther from the origin than `key`, or is no neighbour.

        None, too, for an origin's neighbours, who need nobody between, and for keys that are not members'.
        """
        start, number, other = (self._numbers.get(each) for each in (origin, key, neighbour))
        if start is None or number is None or other is None:
            return None

        layers = self._layers_from(start)
        distance = next(distance for distance, layer in enumerate(layers) if layer >> number & 1)
        if distance < 2:
            return None

        nearer, level = (self._adjacent[number] & layers[hops] for hops in (distance - 1, distance))
        is_nearer = bool(nearer >> other & 1)
        group = nearer if is_nearer else level
        if not group >> other & 1:
            return None

        place = (group & ((1 << other) - 1)).bit_count()
        return Position(nearer.bit_count(), level.bit_count(), is_nearer, place)

    def diameter(self) -> int:
        """Return the most hops between two members; 0 for fewer than two."""
        return max((len(self._layers_from(number)) - 1 for number in range(len(self.members))), default=0)

    def _cycles(self, seed: int, count: int) -> list[int]:
        adjacent = [0] * len(self.members)
        for cycle in range(count):
            prefix = _DOMAIN + seed.to_bytes(8, "little") + cycle.to_bytes(1, "little")
            draws = [hashlib.sha256(prefix + key).digest() for key in self.members]
            order = sorted(range(len(draws)), key=draws.__getitem__)
            for one, other in pairwise((*order, order[0])):
                adjacent[one] |= 1 << other
                adjacent[other] |= 1 << one
        return adjacent

    def _layers_from(self, start: int) -> tuple[int, ...]:
        """Return the members at each distance from one of them as bit sets, computed once for each origin."""
        known = self._layers.get(start)
        if known is not None:
            return known

        layers, seen = [1 << start], 1 << start
        while True:
            reached = 0
            for number in _set_bits(layers[-1]):
                reached |= self._adjacent[number]
            reached &= ~seen
            if not reached:
                break

            layers.append(reached)
            seen |= reached
        self._layers[start] = tuple(layers)
        return self._layers[start]


def _set_bits(bits: int) -> list[int]:
    """Return the positions of the ones, ascending."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found
