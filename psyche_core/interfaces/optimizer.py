"""Contract of a decentralised optimizer: turns gradients into payloads and accepted payloads into updates.

The optimizer owns the float32 master weights of its model and all its own state. Per step s the client calls, in this order:

    apply(s - 2, accepted payloads of step s - 2)        before training s; see protocol section 3
    load_lookahead()  ->  model.gradients(...)  ->  compress(s) -> payload

Payloads are applied on every replica alike; everything else is private. No torch import here: tensors are opaque.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from psyche_core.errors import ModelError


class Optimizer(ABC):
    """Synchronous and not thread-safe: one worker thread calls it, except `check`, which may run in another thread at any time.

    Guaranteed: `apply` is a function of the masters, the set of payloads and the learning rate; the order of payloads given
    and what this replica itself trained do not matter. With `exact` True the masters after it are equal bit for bit on all
    replicas, on any device and number of threads. Not guaranteed: what `compress` returns on another machine.
    """

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether `apply` gives the same bits on every device and thread count."""

    @property
    @abstractmethod
    def max_payload_bytes(self) -> int:
        """No valid payload of this model is longer; longer blobs are refused before they are fetched."""

    @property
    @abstractmethod
    def masters(self) -> Mapping[str, Any]:
        """float32 master weights by parameter name, ascending. Live: valid to read until the next `apply`."""

    @abstractmethod
    def load_lookahead(self, *, learning_rate: float) -> None:
        """Write the weights to train at into the model's compute weights. Does not change the masters."""

    @abstractmethod
    def load_masters(self) -> None:
        """Write the masters into the model's compute weights (for evaluation)."""

    @abstractmethod
    def compress(self, step: int, *, learning_rate: float) -> bytes:
        """Take the model's gradients in and return this replica's payload for `step` (a versioned byte string).

        Remembers what was sent until `apply(step)` settles it. Raises NonFiniteError and changes nothing then.
        """

    @abstractmethod
    def check(self, payload: bytes) -> None:
        """Validate a payload against our own parameter table. Raises PayloadRejected, never anything else.

        A payload that is refused is refused by every member alike, and left out by all. What raises something else has come to no
        verdict: the member attests to nothing, and gets the model from the others where they accept the payload. Our own payloads
        are checked before they are sent; a client whose optimizer refuses its own stops.
        """

    @abstractmethod
    def apply(self, step: int, payloads: Sequence[bytes], *, learning_rate: float, own_accepted: bool) -> None:
        """Apply the accepted payloads of `step`. With none, the masters stay as they are.

        Steps ascend from call to call; results we sent for older steps count as not accepted. own_accepted: whether our own
        payload of that step (if we sent one) is among them; what was sent and not accepted is kept to be sent again, unless the
        optimizer documents that it drops it. Every payload must have passed `check`. Equal payloads are as many results as there
        are: members may send equal bytes. learning_rate: dimensionless step size, > 0.
        """

    @abstractmethod
    def load_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Replace the masters (float32, our names and shapes) and forget all optimizer state. For joining and resync.

        Raises ModelError for missing, extra or wrongly shaped parameters, and changes nothing then.
        """

    def private_state(self) -> Mapping[str, Any]:
        """What only this replica has and would miss after a restart, such as momentum and residuals: float32 tensors by name.

        Asked for when nothing that was sent waits to be settled. Valid to read until the next call. Empty where there is none.
        """
        return {}

    def load_private_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `private_state` gave to a replica with the same settings and masters; then it goes on as that one would.

        Raises ModelError for other names or shapes, and changes nothing then.
        """
        if state:
            message = f"this optimizer has no private state, got {', '.join(sorted(state)[:3])}"
            raise ModelError(message)
