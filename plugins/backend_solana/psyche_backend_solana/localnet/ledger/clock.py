"""The chain's clock in unix seconds and slots, driven by a monotonic clock or set by a test.

No I/O: the caller passes the monotonic time. Neither time nor slots go back.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment on the chain: slot and unix seconds."""

    slot: int
    unix: int


class ChainClock:
    """Slots of a fixed length.

    slot, unix: the start. slot_ms: length of a slot. steady: current seconds of the clock that drives it; None: only calls
    advance it.
    """

    def __init__(self, slot: int, unix: float, *, slot_ms: int, steady: float | None) -> None:
        self._slot = float(slot)
        self._unix = unix
        self._slot_ms = slot_ms
        self._steady = steady

    @property
    def now(self) -> Instant:
        """The current moment."""
        return Instant(int(self._slot), int(self._unix))

    def follow(self, steady: float) -> Instant:
        """Advance to `steady` seconds of the monotonic clock."""
        if self._steady is not None and steady > self._steady:
            self._move(steady - self._steady)
            self._steady = steady
        return self.now

    def advance(self, seconds: float) -> Instant:
        """Advance immediately by seconds and the slots in them, at least one. Raises ValueError for negative seconds."""
        if seconds < 0:
            message = f"a chain's clock does not go back; advance by 0 or more seconds, got {seconds}"
            raise ValueError(message)

        before = int(self._slot)
        self._move(seconds)
        if int(self._slot) == before:
            self._slot = float(before + 1)
        return self.now

    def advance_slots(self, slots: int) -> Instant:
        """Advance by slots, with their time. Raises ValueError for fewer than one."""
        if slots < 1:
            message = f"advance by 1 or more slots, got {slots}"
            raise ValueError(message)

        self._slot += slots
        self._unix += slots * self._slot_ms / 1000
        return self.now

    def set_time(self, unix: float) -> Instant:
        """Start the next slot at `unix` seconds. Raises ValueError for a time in the past."""
        if int(unix) < int(self._unix):
            message = f"a chain's clock does not go back; it shows {int(self._unix)}, got {unix}"
            raise ValueError(message)

        self._unix = float(unix)
        self._slot = float(int(self._slot) + 1)
        return self.now

    def until_next_slot(self) -> float:
        """Return the seconds until the next slot begins."""
        return (1 - self._slot % 1) * self._slot_ms / 1000

    def _move(self, seconds: float) -> None:
        self._unix += seconds
        self._slot += seconds * 1000 / self._slot_ms
