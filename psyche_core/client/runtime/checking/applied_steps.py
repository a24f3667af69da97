"""The last steps that this client applied.

They are needed to undo steps, back to the weights with which a share was trained, and to compare the share's payload with the
opened chunks. Payloads stay in memory for as long as a share may be challenged: its last tie-break ends about ten rounds after
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psyche_core.interfaces.replay import AppliedStep

KEPT_STEPS = 16


class AppliedSteps:
    """The last applied steps of the model in memory, with their payloads."""

    def __init__(self) -> None:
        self._start: int | None = None
        self._steps: dict[int, AppliedStep] = {}
        self._payloads: dict[int, Mapping[bytes, bytes]] = {}

    def begin(self, step: int | None) -> None:
        """Start again from the master weights after this step; None if the step is unknown. Keep payloads applied before."""
        self._start, self._steps = step, {}

    def add(self, step: int, payloads: Sequence[bytes], payload_hashes: Sequence[bytes], *, learning_rate: float) -> None:
        """Record an applied step. payload_hashes: SHA-256 of the payloads, in the same order."""
        if self._start is None:  # a loaded model that does not know its step: it is the one before the first step applied
            self._start = step - 1
        self._steps[step] = AppliedStep(tuple(payloads), learning_rate)
        self._payloads[step] = dict(zip(payload_hashes, payloads, strict=True))
        for kept in (self._steps, self._payloads):
            for old in sorted(kept)[:-KEPT_STEPS]:
                del kept[old]

    def payload(self, step: int, payload_hash: bytes) -> bytes | None:
        """Return a payload that was applied in a step; None if it is no longer kept."""
        return self._payloads.get(step, {}).get(payload_hash)

    def since(self, step: int) -> list[AppliedStep] | None:
        """Return the steps applied after a step, the newest first; None if steps in between are no longer known."""
        later = sorted((known for known in self._steps if known > step), reverse=True)
        if self._start is None or step < self._start:
            return None
        if later and later[-1] != step + 1:  # the steps directly after `step` were dropped
            return None

        return [self._steps[known] for known in later]
