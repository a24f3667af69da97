"""Finds duplicate events about checks of shares: several programs report the same check, which must count once. Pure."""

from __future__ import annotations

from collections import OrderedDict

from psyche_core.telemetry import events

MAX_TOLD = 16384
"""How many of the newest checks are remembered."""


class ToldChecks:
    """Remembers checks that were reported: by the server, by members that saw their end, or by the coordinator's states."""

    def __init__(self) -> None:
        self._told: OrderedDict[events.ShareChecked, None] = OrderedDict()

    def is_new(self, event: events.Event) -> bool:
        """Return whether a check is new; True for other events. Call it with each event: a run that goes back checks again."""
        if isinstance(event, events.WentBack):
            self.forget()
        if not isinstance(event, events.ShareChecked):
            return True
        if event in self._told:
            return False

        self._told[event] = None
        while len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)
        return True

    def forget(self) -> None:
        """Forget all checks. Call it when the run goes back or another run begins, because numbers of rounds then repeat."""
        self._told.clear()
