"""Draws from a seed of 32 bytes: which shares are challenged, who recomputes them, which chunks are opened.

Everybody who knows the seed gets the same draw. So a draw must come from a seed that nobody knew when what is drawn was fixed:
challenges of round h from the seed of round h + 3. A seed may be known during the round before, and until h + 1 is over a
trainer can withhold its result. Chunks come from the seed of the round after the verifier's commitment; what a trainer opens
was fixed long before. Numbers are drawn without bias, from SHA-256(domain · seed · label · counter) as u64, little-endian; the
largest values that would favour small numbers are drawn again. The election of committees (`coordinator.round.committee`) is
another draw, with the reference's shuffle.

The number of challenges is exactly the share of `verification_percent` in the mean: of 8 shares at 10 % there is no challenge in
a fifth of the rounds and one in the others. Members that must be challenged, because they have a strike or because `overlap` says
so, are challenged on top of these: otherwise two members that copy each other would use up the challenges of all others.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

CHUNKS = 16
"""Chunks that are opened of each challenged share."""

TIE_BREAKERS = 3
"""Members that recompute a share after a failed check."""

MOST_WATCHED = 8
"""Most challenges of a round beyond the drawn share, so that suspects cannot cost the run more than this."""

_DOMAIN = b"psyche/verification-draw/1"
_U64 = 2**64


@dataclass(frozen=True, slots=True, order=True)
class Drawn:
    """A challenge: the slot whose share is checked, and the slot that recomputes it."""

    trainer: int
    verifier: int


def numbers(seed: bytes, label: bytes, *, below: int) -> Iterator[int]:
    """Endless independent numbers 0 <= number < below. Raises ValueError for a seed that has not 32 bytes or below < 1."""
    if len(seed) != 32 or not 1 <= below <= _U64:
        message = f"expected a seed of 32 bytes and a bound from 1 to 2**64, got {len(seed)} bytes and {below}"
        raise ValueError(message)

    return _numbers(seed, label, below)


def _numbers(seed: bytes, label: bytes, below: int) -> Iterator[int]:
    limit = _U64 - _U64 % below
    start = hashlib.sha256(_DOMAIN + seed + struct.pack("<I", len(label)) + label)
    counter = 0
    while True:
        block = start.copy()
        block.update(struct.pack("<Q", counter))
        counter += 1
        for number in struct.unpack("<4Q", block.digest()):
            if number < limit:
                yield number % below


def distinct(seed: bytes, label: bytes, *, count: int, below: int) -> tuple[int, ...]:
    """`count` different numbers below `below`, ascending; all of them if there are fewer. Each set is equally likely.

    Costs in proportion to `count`, not to `below` (Floyd's algorithm).
    """
    count = min(count, below)
    chosen: set[int] = set()
    for position, last in enumerate(range(below - count, below)):
        number = next(numbers(seed, label + struct.pack("<I", position), below=last + 1))
        chosen.add(last if number in chosen else number)
    return tuple(sorted(chosen))


def chunks(seed: bytes, *, height: int, trainer: int, total: int, attempt: int = 0, count: int = CHUNKS) -> tuple[int, ...]:
    """The numbers of the chunks that are opened, ascending. height: round of the share. total: chunks of the model.

    attempt: 0 for the verifier's check, 1 for the tie-breakers', so that one seed would give both other chunks.
    """
    return distinct(seed, b"chunks" + struct.pack("<QIB", height, trainer, attempt), count=count, below=total)


def challenges(
    seed: bytes,
    *,
    height: int,
    shares: Collection[int],
    members: Collection[int],
    percent: int,
    watched: Collection[int] = (),
    most: int | None = None,
) -> tuple[Drawn, ...]:
    """The challenges about the accepted shares of round `height`, ascending.

    shares: slots with an accepted share that may be challenged; whose result was rejected in one of the two rounds before is not
    among them, because its delta does not follow from its last. members: slots that can recompute. percent: 0 to 100 of the
    shares. watched: slots that are challenged anyway. most: so many challenges at most, None for no limit. Nobody recomputes more
    than one share, nor its own; if there are too few members, or too many challenges, the last drawn ones fall away.
    """
    if not 0 <= percent <= 100:
        message = f"a percentage is 0 to 100, got {percent}"
        raise ValueError(message)

    label = struct.pack("<Q", height)
    order = tuple(sorted(set(shares)))
    if not order or percent == 0:
        return ()

    whole, rest = divmod(len(order) * percent, 100)
    count = whole + (next(numbers(seed, b"count" + label, below=100)) < rest)
    drawn = {order[place] for place in distinct(seed, b"shares" + label, count=count, below=len(order))}
    extra = tuple(slot for slot in order if slot in set(watched) and slot not in drawn)
    drawn |= {extra[place] for place in distinct(seed, b"watched" + label, count=MOST_WATCHED, below=max(1, len(extra))) if extra}
    free = list(_shuffled(sorted(set(members)), seed, b"verifiers" + label))
    found: list[Drawn] = []
    for trainer in _shuffled(sorted(drawn), seed, b"order" + label):
        verifier = next((slot for slot in free if slot != trainer), None)
        if verifier is not None and (most is None or len(found) < most):
            free.remove(verifier)
            found.append(Drawn(trainer, verifier))
    return tuple(sorted(found))


def tie_breakers(seed: bytes, *, challenge: Drawn, height: int, members: Collection[int]) -> tuple[int, ...]:
    """Up to three members that are neither trainer nor verifier, ascending."""
    others = sorted(set(members) - {challenge.trainer, challenge.verifier})
    label = b"tie-breakers" + struct.pack("<QII", height, challenge.trainer, challenge.verifier)
    return tuple(others[place] for place in distinct(seed, label, count=TIE_BREAKERS, below=len(others))) if others else ()


def _shuffled(items: Sequence[int], seed: bytes, label: bytes) -> Iterator[int]:
    left = list(items)
    for position in range(len(left)):
        yield left.pop(next(numbers(seed, label + struct.pack("<I", position), below=len(left))))
