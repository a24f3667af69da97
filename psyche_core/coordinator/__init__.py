"""The coordinator as a pure state machine: `apply`. `apply` and the clients both use the other modules.

Values are in `state` and `commands`, error names in `errors`, elections in `committee`, sample assignment in `assignment`, votes
in `witness`, balances in `rewards`, schedules in `schedule`, permutations in `shuffle`, the wire form in `serialization`, the
canonical image in `image`.
"""

from __future__ import annotations

from psyche_core.coordinator.epochs import new_state
from psyche_core.coordinator.transitions import apply

__all__ = ["apply", "new_state"]
