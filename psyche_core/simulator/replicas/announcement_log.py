"""Records who announced which payload for which round, because the meaning of equal bytes depends on the announcer.

Two members may have results with equal bytes (both are all zeros). A member may also have them again in a later round, or in
the same step when the coordinator repeats it. So a payload alone does not tell which samples it stands for. Its commitment
does: it names the round by its seed, the share and the trainer (F7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from psyche_core.simulator.replicas.replica import Payload
from psyche_core.simulator.sample_tracker import bits
from psyche_core.wire.messages import Result

Place = tuple[int, int]
"""Height and step of a round."""


class AnnouncementLog:
    """The announcements of one run."""

    def __init__(self) -> None:
        self._by_commitment: dict[bytes, tuple[int, int]] = {}
        self._announcers: dict[Place, set[int]] = {}

    def record(self, index: int, result: Result) -> None:
        """The member with this number announced a result. Only its first announcer can make a commitment; others repeat it."""
        self._by_commitment.setdefault(result.commitment, (index, bits(result.share)))
        self._announcers.setdefault((result.height, result.step), set()).add(index)

    def announcers(self, place: Place) -> set[int]:
        """Members that announced a result of that round with their own keys."""
        return self._announcers.get(place, set())

    def payloads_of(
        self, hashes: Sequence[bytes], commitments: Sequence[bytes], held: Mapping[bytes, Payload]
    ) -> tuple[Payload, ...]:
        """The payloads of an apply, each with the samples it stands for and its trainer.

        hashes, commitments: of the results, in one order. held: payloads by hash.
        """
        found: list[Payload] = []
        for payload_hash, commitment in zip(hashes, commitments, strict=True):
            if payload_hash in held and commitment in self._by_commitment:
                trainer, samples = self._by_commitment[commitment]
                found.append(replace(held[payload_hash], trainer=trainer, samples=samples))
        return tuple(found)
