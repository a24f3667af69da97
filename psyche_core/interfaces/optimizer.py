"""Contract of a decentralised optimizer: turns gradients into payloads and accepted payloads into updates.

The optimizer owns the float32 master weights of its model and all its own state. Per step s the client calls, in this order:

    apply(s - 2, accepted payloads of step s - 2)        before training s; see protocol section 3
    load_lookahead()  ->  model.gradients(...)  ->  compress(s) -> payload

An optimizer with `inner_steps` above 1 steps on local weights within a share. The client cuts the share into so many parts, or
one for each sample where there are fewer, and calls between load_lookahead() and compress(s)

    model.gradients(a part)  ->  inner_step()            for each part but the last
    model.gradients(the last part)

Every replica applies the same payloads. What follows from these alone is public: the masters, and an optimizer may have more, its
`public_state`. Everything else is private. No torch import here: tensors are opaque.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from psyche_core.errors import ModelError
from psyche_core.interfaces.replay import Replay


class Optimizer(ABC):
    """A decentralised optimizer. It is synchronous and not thread-safe: one worker thread calls it.

    Only `check` may run in another thread, at any time.

    Guaranteed: the result of `apply` depends only on the masters, the public state, the multiset of payloads and the learning
    rate, and not on the order of the payloads or on what this replica trained. If `exact` is True, masters and public state after
    `apply` are equal bit for bit on all replicas, for any device and number of threads. Not guaranteed: that `compress` returns
    the same bytes on another machine.
    """

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether `apply` gives the same bits on every device and thread count."""

    @property
    @abstractmethod
    def max_payload_bytes(self) -> int:
        """Maximum length of a valid payload of this model, in bytes. Clients do not fetch longer blobs."""

    @property
    @abstractmethod
    def masters(self) -> Mapping[str, Any]:
        """float32 master weights by parameter name, ascending. These are not copies: read them only until the next `apply`."""

    @property
    def public_state(self) -> Mapping[str, Any]:
        """State beside the masters that all replicas share, such as a running mean of squared updates: float32 tensors by name.

        Names and shapes follow from the run's settings and the model's parameters; `apply` changes values in place, and nothing
        else does but `load_public_state`. A new optimizer's are all zero, which is also what a checkpoint without them gives, and
        all values are finite. They count as part of the model: digests, checkpoints, the journal and members that share the model
        include them, so each costs as much as a master. Not copies. Most optimizers have none.
        """
        return {}

    @property
    def momentum(self) -> Mapping[str, Any]:
        """What this replica has gathered of its own gradients, by parameter name, in the masters' shapes. For people to look at.

        Its sign is that of gradients: masters move against it. Tensors may be copies, and are only read. Empty for an
        optimizer without momentum. The client asks for it only if statistics are wanted (`--optim-stats-steps`).
        """
        return {}

    @property
    def replay(self) -> Replay | None:
        """What a verifier needs to know of this optimizer to check what it sent; None if its training cannot be replayed."""
        return None

    @property
    def inner_steps(self) -> int:
        """Number of parts into which a share is cut, at least 1. A constant. 1: `inner_step` is never called."""
        return 1

    @abstractmethod
    def load_lookahead(self, *, learning_rate: float) -> None:
        """Write the weights for the next training step into the model's compute weights. Does not change the masters."""

    @abstractmethod
    def load_masters(self) -> None:
        """Write the masters into the model's compute weights (for evaluation)."""

    def inner_step(self, *, learning_rate: float) -> None:
        """Consume the gradients of one part of a share, and move the model's compute weights on: local weights of this replica.

        Neither masters nor public state change. `load_lookahead` and `load_masters` overwrite the local weights, and a share that
        is broken off leaves no trace in any later payload but in moments of gradients. `compress` takes the last part's gradients
        itself. learning_rate: the one that `compress` is given. Raises NonFiniteError for a gradient that is not finite; this
        call then changes nothing.
        """
        message = f"{type(self).__name__} has no method inner_step, which inner_steps = {self.inner_steps} needs"
        raise NotImplementedError(message)

    @abstractmethod
    def compress(self, step: int, *, learning_rate: float) -> bytes:
        """Consume the model's gradients and return this replica's payload for `step` (a versioned byte string).

        Remembers what was sent until `apply(step)` settles it. Raises NonFiniteError for a gradient that is not finite, and then
        changes nothing.
        """

    @abstractmethod
    def check(self, payload: bytes) -> None:
        """Validate a payload against our own parameter table. Raises PayloadRejected, never anything else.

        The check must give the same verdict on every member, so that all of them leave out a rejected payload. Any other
        exception means that there is no verdict: the member then does not attest to the payload, and downloads the model from
        the others if they accepted it. The client checks its own payloads before it sends them, and stops if its optimizer
        rejects one.
        """

    @abstractmethod
    def apply(self, step: int, payloads: Sequence[bytes], *, learning_rate: float, own_accepted: bool) -> None:
        """Apply the accepted payloads of `step`. Without payloads neither masters nor public state change.

        `step` increases from call to call; payloads that we sent for skipped steps count as not accepted. own_accepted: whether
        our own payload of that step (if we sent one) is among the accepted ones. An update that was sent and not accepted is
        kept and sent again, unless the optimizer documents that it drops it. Every payload must have passed `check`. Equal
        payloads count separately, since several members may send equal bytes. learning_rate: dimensionless step size, > 0.
        """

    @abstractmethod
    def load_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Replace the masters (float32, our names and shapes) and reset all private state. Used for joining and resync.

        The public state stays: the client loads that with `load_public_state`. parameters: may be a `LazyParameters`, and may
        hold our own tensors. Raises ModelError for missing, extra or wrongly shaped parameters, and then changes nothing.
        """

    def load_public_state(self, state: Mapping[str, Any]) -> None:
        """Replace the public state (float32, the names and shapes of `public_state`), and nothing else.

        state: may be a `LazyParameters`, and may hold our own tensors; every value is finite. Raises ModelError for other names
        or shapes, and then changes nothing (`parameters.check_public_state` compares them).
        """
        if state:
            message = f"this optimizer has no public state, got {', '.join(sorted(state)[:3])}"
            raise ModelError(message)

    def private_state(self) -> Mapping[str, Any]:
        """State that only this replica has and needs after a restart, such as momentum and residuals: float32 tensors by name.

        The client asks for it only when every payload that was sent is settled. Valid to read until the next call. May be empty.
        """
        return {}

    def load_private_state(self, state: Mapping[str, Any]) -> None:
        """Restore the `private_state` of a replica with the same settings and masters. This one then continues as that one would.

        Raises ModelError for other names or shapes and for values that are not finite, and then changes nothing.
        """
        if state:
            message = f"this optimizer has no private state, got {', '.join(sorted(state)[:3])}"
            raise ModelError(message)
