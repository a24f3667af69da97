"""Notices that this client's disk has later steps than the coordinator, which then continues from an older copy of its state.

The run's owner cannot notice this if the coordinator's whole state folder is an older copy and all members were offline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psyche_core.client.machine.epoch import masters_due
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.interfaces.backend import KnownPosition
from psyche_core.training.checkpoints.journal.contents import Recovered
from psyche_core.types import Decision


@dataclass(slots=True)
class DiskAhead:
    """Compares one client's journal with the coordinator's state, and reports each position once.

    tell_later: passes the position on to the coordinator; None if the backend cannot. Called in the worker thread.
    """

    tell_later: Callable[[KnownPosition], None] | None = None
    _told: KnownPosition | None = None

    def compare(
        self, found: Recovered, state: CoordinatorState, *, based: Decision | None, report: Callable[[str], None]
    ) -> None:
        """Report a journal of the run that is ahead of `state`. based: the decision of its base's last step, if known."""
        known = known_beyond(found, state, based=based)
        if known is None or known == self._told:
            return

        self._told = known
        progress = state.progress
        report(
            f"this client's disk is further than the coordinator: it has epoch {known.epoch} up to step {known.step - 1}, and "
            f"the coordinator continues in epoch {progress.epoch}, before step {progress.step}, so its state is probably an "
            "older copy. Tell the run's owner at once: if the newest state is put back, nothing is lost. If the owner wanted the "
            "older one, or has just put the newest one back, there is nothing to do: files of later steps are kept under other "
            "names"
        )
        if self.tell_later is not None:
            self.tell_later(known)


def known_beyond(found: Recovered, state: CoordinatorState, *, based: Decision | None) -> KnownPosition | None:
    """Return how far the run was at least, if the journal is ahead of what the state allows; else None.

    A coordinator saves a decision before any member applies it. So a journal of the state's generation leads at most to the
    master weights that are due in that state. A journal of an earlier generation is from before the run went back.
    """
    header = found.header
    if (header.generation, found.last_step) <= (state.generation, masters_due(state)):
        return None

    decided = found.rounds[-1] if found.rounds else based
    epoch = state.progress.epoch if decided is None else decided.epoch
    return KnownPosition(header.generation, epoch, found.last_step + 1)
