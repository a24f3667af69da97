"""Absent members: how long they may be absent, when they are withdrawn, and how long a restarted server's clock waits for them.

Pure. After a restart the coordinator's clock stands still until the members are back, so that a phase whose time is over does not
end before they can take part. `key_records` has the data about each key, and the hub has the connections.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.server.hosted_state import ClockTime, HostedState
from psyche_backend_tcp.server.key_records import KeyRecords
from psyche_core.coordinator.commands import Tick, Withdraw
from psyche_core.errors import CoordinatorError
from psyche_core.types import NodeIdentity

logger: logging.Logger = logging.getLogger("psyche.backend.tcp")


class Attendance:
    """Decides what happens to absent members. withdraw_lost: whether a member that does not return in time is withdrawn."""

    def __init__(self, hosted: HostedState, keys: KeyRecords, limits: Limits, *, withdraw_lost: bool) -> None:
        self._hosted = hosted
        self._keys = keys
        self._limits = limits
        self._withdraw_lost = withdraw_lost
        self._reopening_until: float | None = None
        self._withdrawn: list[tuple[bytes, str]] = []

    def reopen(self, addresses: Mapping[bytes, bytes], began: ClockTime) -> None:
        """Note that the server continues a run: all members are absent since then. addresses: those they had published."""
        self._keys.restore(addresses, self._hosted.members(), began.monotonic)
        self._reopening_until = began.monotonic + self._limits.reopening_seconds

    def tick(self, now: ClockTime) -> None:
        """Let the coordinator check the clock, unless it stands still."""
        if not self._hosted.current.run_state.halted and not self._clock_stands(now):
            self._hosted.apply(Tick(), now.unix)

    def settle_lost(self, now: ClockTime) -> None:
        """Withdraw members that did not return in time."""
        overdue = list(self._keys.overdue(self._hosted.members(), now.monotonic))
        if self._withdraw_lost and not self._clock_stands(now):
            for signer in overdue:
                self.withdraw(signer, now, why="not back" if self._keys[signer].restored else "lost")

    def withdraw(self, signer: bytes, now: ClockTime, *, why: str) -> None:
        """Withdraw a member without its request, and forget its address."""
        identity = NodeIdentity(signer, signer)
        healthy = self._hosted.is_healthy(signer)
        self._hosted.version += 1  # because its address is removed too
        self._keys.forget(signer)
        try:
            self._hosted.apply(Withdraw(identity), now.unix)
        except CoordinatorError as error:
            logger.debug("no withdrawal of %s: %s", identity, error)
        else:
            logger.info("%s was withdrawn", identity)
            if healthy:
                self._withdrawn.append((signer, why))

        self.tick(now)

    def take_withdrawn(self) -> list[tuple[bytes, str]]:
        """Return the healthy members withdrawn since the last call, and why."""
        taken, self._withdrawn = self._withdrawn, []
        return taken

    def _clock_stands(self, now: ClockTime) -> bool:
        if self._reopening_until is None:
            return False

        absent = [signer for signer in self._hosted.awaited() if not self._keys.connected(signer)]
        if absent and now.monotonic < self._reopening_until:
            return True

        self._reopening_until = None
        logger.info("the run continues; %d of its members have not returned", len(absent))
        return False
