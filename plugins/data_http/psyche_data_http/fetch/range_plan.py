"""Plans range requests: joins the wanted sequences into runs. Pure.

Sequences with a gap of less than GAP_BYTES are read by one request, because a request costs about as much time as that many
bytes (a round trip of 20 ms at 25 Mbit/s); the bytes in the gap are discarded. Runs longer than RUN_BYTES are split, so that
they load in parallel. If the server sends whole files anyway, all wanted sequences of a file are one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

RUN_BYTES = 4 << 20
GAP_BYTES = 64 << 10

Place = tuple[int, int]
"""(number of the file, sequence within it)."""


@dataclass(frozen=True, slots=True)
class Run:
    """Sequences of one file read by one request. places: the wanted ones, ascending; others may lie between them."""

    places: tuple[Place, ...]

    @property
    def file(self) -> int:
        """Number of the file."""
        return self.places[0][0]

    @property
    def first(self) -> int:
        """First sequence."""
        return self.places[0][1]

    @property
    def count(self) -> int:
        """Sequences from the first to the last, including those between."""
        return self.places[-1][1] - self.first + 1


def joined(
    places: Iterable[Place], *, size: int, serves_ranges: Callable[[int], bool], gap: int = GAP_BYTES, longest: int = RUN_BYTES
) -> list[Run]:
    """Return the runs to read for places that are ascending and distinct.

    size: bytes of a sequence. serves_ranges: called with the number of a file. gap, longest: bytes; a run has at least one
    sequence.
    """
    nearest = gap // size + 1  # from one wanted sequence to the next
    most = max(1, longest // size)
    runs: list[list[Place]] = []
    run: list[Place] = []
    run_file, last, past, whole = -1, 0, 0, False
    for place in places:
        file, sequence = place
        if file == run_file and (whole or (sequence <= last + nearest and sequence < past)):
            run.append(place)
        else:
            run = [place]
            runs.append(run)
            whole = not serves_ranges(file)
            run_file, past = file, sequence + most
        last = sequence

    return [Run(tuple(run)) for run in runs]
