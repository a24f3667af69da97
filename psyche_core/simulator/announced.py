"""Who announced which payload for which round: what the same bytes mean depends on who says so.

Two members may have results of equal bytes (both are all zeros), and a member may have them again in a later round. A payload
alone then does not tell which samples it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from psyche_core.simulator.ledger import bits
from psyche_core.simulator.replica import Payload
from psyche_core.wire.messages import Result

Place = tuple[int, int]
"""Height and step of a round."""


class Announced:
    """The announcements of one run."""

    def __init__(self) -> None:
        self._samples: dict[tuple[bytes, Place], dict[int, int]] = {}
        self._who: dict[Place, set[int]] = {}

    def note(self, index: int, result: Result) -> None:
        """The member with this number announced a result."""
        place = (result.height, result.step)
        self._samples.setdefault((result.payload_hash, place), {})[index] = bits(result.share)
        self._who.setdefault(place, set()).add(index)

    def by(self, place: Place) -> set[int]:
        """Members that announced a result of that round, with their own keys."""
        return self._who.get(place, set())

    def meant(
        self, hashes: Sequence[bytes], held: Mapping[bytes, Payload], *, place: Place, accepted: Iterable[int]
    ) -> tuple[Payload, ...]:
        """The payloads behind an apply's hashes, each with the samples it stands for in this round.

        held: payloads by hash. accepted: sets of samples (bits) that the round's settling accepted;
        where several members announced the same bytes, those of them count whose samples are in one.
        """
        found: list[Payload] = []
        for payload_hash in dict.fromkeys(hashes):
            if payload_hash not in held:
                continue
            payload, copies = held[payload_hash], hashes.count(payload_hash)
            by_member = self._samples.get((payload_hash, place), {})
            if copies == 1 and len(by_member) == 1 and payload.samples in by_member.values():
                found.append(payload)
                continue

            ever = 0
            for samples in accepted:
                ever |= samples
            members = sorted(by_member, key=lambda index: (by_member[index] & ~ever != 0, index))
            taken = [member for member in members if not by_member[member] & ~ever] if copies == 1 else members[:copies]
            found += [replace(payload, samples=by_member[member], trainer=member) for member in taken or members[:1]]
        return tuple(found)
