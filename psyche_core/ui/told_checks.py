"""Checks of shares of which several programs tell: each is counted and shown once. Pure."""

from __future__ import annotations

from collections import OrderedDict

from psyche_core.telemetry import events

MAX_TOLD = 16384
"""Newest checks that are remembered."""


class ToldChecks:
    """Which checks were told already: by the server, by each member that saw them end, or by states of the coordinator."""

    def __init__(self) -> None:
        self._told: OrderedDict[events.ShareChecked, None] = OrderedDict()

    def is_new(self, event: events.Event) -> bool:
        """Whether nobody has told it; True for what is no check. Call it with each event: a run that goes back checks anew."""
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
        """The run went back, or another one began: its epochs and rounds have numbers that were told."""
        self._told.clear()
