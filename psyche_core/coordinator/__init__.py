"""The coordinator as a pure state machine: `apply`. `apply` and the clients both use the other modules.

`transitions` takes each command to its module. Values are in `state` and `commands`, names of errors in `errors`, what all phases
have in common in `phases`. The package `lifecycle` says when phases begin and end (epochs, warmup, rounds, and how long they
last), `membership` who takes part, `round` who trains and witnesses what and which results count. Points are in `rewards`, the
learning rate in `learning_rate`, the return to an earlier step in `history` and `checkpoints`. The state becomes a document in
`serialization`, and bytes of a fixed size in `canonical_image`.
"""

from __future__ import annotations

from psyche_core.coordinator.lifecycle.epochs import new_state
from psyche_core.coordinator.transitions import apply

__all__ = ["apply", "new_state"]
