"""The steps that we applied last: to go back to the weights of a share, and to compare its payload with what is opened.

Payloads stay in memory for as long as a share may be challenged: its last tie-break ends some ten rounds after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psyche_core.interfaces.replay import AppliedStep

KEPT_STEPS = 16


class AppliedSteps:
    """Of the model in memory."""

    def __init__(self) -> None:
        self._start: int | None = None
        self._steps: dict[int, AppliedStep] = {}
        self._payloads: dict[int, Mapping[bytes, bytes]] = {}

    def begin(self, step: int | None) -> None:
        """The masters are now those after this step, None if that is unknown. Payloads of shares applied before stay."""
        self._start, self._steps = step, {}

    def add(self, step: int, payloads: Sequence[bytes], payload_hashes: Sequence[bytes], *, learning_rate: float) -> None:
        """A step was applied. payload_hashes: SHA-256 of the payloads, in the same order."""
        if self._start is None:  # a stored model, of which only the run knows the step
            self._start = step - 1
        self._steps[step] = AppliedStep(tuple(payloads), learning_rate)
        self._payloads[step] = dict(zip(payload_hashes, payloads, strict=True))
        for kept in (self._steps, self._payloads):
            for old in sorted(kept)[:-KEPT_STEPS]:
                del kept[old]

    def payload(self, step: int, payload_hash: bytes) -> bytes | None:
        """A payload that was applied in a step, None if it is not known any more."""
        return self._payloads.get(step, {}).get(payload_hash)

    def since(self, step: int) -> list[AppliedStep] | None:
        """What was applied after a step, the newest first; None if the way back to it is not known."""
        later = sorted((known for known in self._steps if known > step), reverse=True)
        if self._start is None or step < self._start:
            return None
        if later and later[-1] != step + 1:  # what came before is forgotten
            return None

        return [self._steps[known] for known in later]
