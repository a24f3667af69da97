"""Measures, while training continues, how similar accepted results are (score D of `psyche_core.verification.overlap`).

People use it to find members to look at: a member that trains nothing and sends copies stands out. No decision follows from it.
The cost is decoding each result once more and comparing about a thousand positions, within `MAX_BYTES` and `MOST_RESULTS`. The
choice of compared positions is a secret of this process. An error here is logged and stops nothing.
"""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import anyio.to_thread

from psyche_core.client.machine.actions import Apply, KeptResult
from psyche_core.telemetry.events import OverlapOfResult, ResultOverlaps

if TYPE_CHECKING:
    from psyche_core.verification.overlap import RecentPositions

logger: logging.Logger = logging.getLogger("psyche.client")

MAX_BYTES = 2**21
"""Most bytes of results that are compared in a step. Decoding takes about 60 ms of a core for each million bytes."""

MOST_RESULTS = 8
"""If there are more results, this many random ones are compared: different ones in each step and in each client."""

MAX_KNOWN = 4096
"""How many results, not applied yet, have their trainer remembered."""


class KnowsPositions(Protocol):
    """Interface of the needed trainer; psyche_core.training.trainer.Trainer implements it, but importing that needs torch."""

    def positions(self, payload: bytes) -> Any | None:
        """See Trainer.positions."""


class ResultOverlapMeter:
    """Remembers who trained which result, and the positions of the last steps' results.

    Belongs to one event loop. Only one thread at a time may call `measure`; `compare` guarantees it.
    """

    def __init__(self) -> None:
        self._trainers: OrderedDict[bytes, str] = OrderedDict()
        self._recent: RecentPositions[str] | None = None
        self._part: float | None = None
        self._salt = secrets.randbits(64)
        self._random = secrets.SystemRandom()
        self._applied: tuple[Apply, Sequence[bytes]] | None = None
        self._comparing = False

    def note_results(self, results: Sequence[KeptResult]) -> None:
        """Remember the trainers of these verified results."""
        for kept in results:
            self._trainers[kept.result.commitment] = kept.signer.hex()
        while len(self._trainers) > MAX_KNOWN:
            self._trainers.popitem(last=False)

    def applied(self, work: Apply, payloads: Sequence[bytes]) -> None:
        """Remember the results that were applied. payloads: in the order of the work's results."""
        self._applied = work, payloads

    async def compare(self, trainer: KnowsPositions) -> ResultOverlaps | None:
        """Compare the results that were applied last, in a thread. Return None if that was done before or nothing was found.

        A step is skipped if another one is being measured.
        """
        applied, self._applied = self._applied, None
        if applied is None or self._comparing:
            return None

        self._comparing = True
        try:
            return await anyio.to_thread.run_sync(self.measure, *applied, trainer)
        finally:
            self._comparing = False

    def measure(self, work: Apply, payloads: Sequence[bytes], trainer: KnowsPositions) -> ResultOverlaps | None:
        """Compare the results that were applied. payloads: in the order of the work's. Return None if nothing was found.

        Takes milliseconds; call it in a thread.
        """
        started = perf_counter()
        trainers = [self._trainers.pop(commitment, None) for commitment in work.commitments]
        known = self._chosen(trainers, payloads)
        try:
            scores = self._scores(work.step, known, trainer)
        except Exception as error:  # the result is only shown to people, and an optimizer may raise anything
            logger.debug("results of step %d were not compared", work.step, exc_info=error)
            return None

        results = tuple(scores)
        return ResultOverlaps(work.epoch, work.step, results, perf_counter() - started) if results else None

    def _chosen(self, trainers: Sequence[str | None], payloads: Sequence[bytes]) -> dict[str, bytes]:
        """Return random results of known trainers, as many as the limits allow, in their order."""
        found = [(signer, payload) for signer, payload in zip(trainers, payloads, strict=False) if signer is not None]
        room = MAX_BYTES
        taken: set[int] = set()
        for place in self._random.sample(range(len(found)), len(found)):
            size = len(found[place][1])
            if len(taken) < MOST_RESULTS and size <= room:
                taken.add(place)
                room -= size
        return {signer: payload for place, (signer, payload) in enumerate(found) if place in taken}

    def _scores(self, step: int, payloads: dict[str, bytes], trainer: KnowsPositions) -> list[OverlapOfResult]:
        from psyche_core.verification.overlap import ENOUGH, RecentPositions, sampled

        whole: dict[str, Any] = {}
        for signer, payload in payloads.items():
            positions = trainer.positions(payload)
            if positions is None:
                return []
            whole[signer] = positions
        largest = max((positions.size for positions in whole.values()), default=0)
        if self._part is None and largest:
            self._part = min(1.0, ENOUGH / largest)  # never changed again, so that all steps' results can be compared
        chosen = {signer: sampled(each, part=self._part or 1.0, salt=self._salt) for signer, each in whole.items()}
        recent: RecentPositions[str] = self._recent or RecentPositions()
        found = recent.scores(step, chosen)
        self._recent = recent.with_round(step, chosen)
        return [
            OverlapOfResult(signer, found[signer].score, found[signer].member or "", found[signer].height) for signer in chosen
        ]
