"""The coordinator as a pure state machine: `apply`. `apply` and the clients both use the other modules.

`transitions` takes each command to its module. Values are in `state` and `commands`, names of errors in `errors`, phases in
`phases`, `epochs` and `warmup`, membership in `members` and `exits`, balances in `rewards` and `settlement`, the return to an
earlier step in `history` and `checkpoints`, the wire form in `serialization`. The package `round` has what happens in a round,
the package `image` the canonical image.
"""

from __future__ import annotations

from psyche_core.coordinator.epochs import new_state
from psyche_core.coordinator.transitions import apply

__all__ = ["apply", "new_state"]
