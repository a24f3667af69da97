"""The coordinator as a pure state machine: `apply`. The other modules are what it and the clients compute with.

Values are in `state` and `commands`, names of refusals in `errors`, elections in `committee`, samples in `assignment`, votes in
`witness`, balances in `rewards`, schedules in `schedule`, permutations in `shuffle`, the wire form in `serialization`, the
canonical image in `image`.
"""

from __future__ import annotations

from psyche_core.coordinator.epochs import new_state
from psyche_core.coordinator.transitions import apply

__all__ = ["apply", "new_state"]
