"""What a simulated member trains: a model of a few whole numbers, and its results.

The contract is the optimizer's: an apply depends on the masters, the step and the *set* of payloads, not on their order, and with
none the masters stay. Everything else (a result missing, doubled, of another step, steps in another order) gives other numbers,
so two replicas are equal exactly when the machine did its duty.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from psyche_core.client.machine.events import Share
from psyche_core.simulator.failure import Broken

PIECES = 4
"""Numbers in the cheap model: the pieces in which two replicas can differ."""

_NUMBERS = struct.Struct(f"<{PIECES}Q")
"""How a payload's hash is read: what it says to each piece."""

_MASK = 2**64 - 1
_SPREAD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Payload:
    """A trainer's result. samples: the samples it was trained on, one bit each; valid: whether honest members' check takes it.

    content: the encoded result where there is one (torch); the cheap model needs the hash only.
    """

    hash: bytes
    trainer: int
    samples: int
    valid: bool = True
    size: int = 32
    content: bytes = b""


class Replica(Protocol):
    """One member's model."""

    @property
    def max_payload_bytes(self) -> int:
        """No valid payload is longer."""

    def train(self, step: int, share: Share, *, salt: bytes) -> tuple[bytes, bytes]:
        """Hash and content of a new result. salt: tells apart results that would be alike by chance."""

    def check(self, payload: Payload) -> bool:
        """Whether the payload fits."""

    def apply(self, step: int, payloads: Sequence[Payload], *, own_accepted: bool) -> None:
        """Put results into the masters."""

    def digest(self) -> bytes:
        """Digest of all masters."""

    def snapshot(self) -> object:
        """The masters as an immutable value."""

    def restore(self, snapshot: object) -> None:
        """Take other masters and forget everything else."""

    def spoil(self, bit: int) -> None:
        """Flip one bit of the masters, as bad memory does. bit: from the end of the last piece, the first few exist."""


class StepOrder:
    """What optimizers may count on: no step is trained again before it is settled, none is applied after a later one.

    name: of the member.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._sent: set[int] = set()
        self._applied = 0

    def trains(self, step: int) -> None:
        """A result of this step is made."""
        if step in self._sent:
            raise Broken("optimizers-see-steps-in-order", f"{self._name} trained step {step} again before it was settled")

        self._sent.add(step)

    def applies(self, step: int) -> None:
        """The results of this step are applied, which settles it and what is older."""
        if step < self._applied:
            raise Broken("optimizers-see-steps-in-order", f"{self._name} applied step {step} after step {self._applied}")

        self._applied = step
        self._sent = {sent for sent in self._sent if sent > step}


class HashReplica:
    """The cheap model."""

    max_payload_bytes = 64

    def __init__(self) -> None:
        self._masters: tuple[int, ...] = (0,) * PIECES

    def train(self, step: int, share: Share, *, salt: bytes) -> tuple[bytes, bytes]:
        """A hash of everything a result would depend on."""
        seen = ",".join(f"{batch.first}-{batch.last}" for batch in share)
        return hashlib.sha256(b"%b|%d|%b" % (salt, step, seen.encode())).digest(), b""

    def check(self, payload: Payload) -> bool:
        """As the payload says."""
        return payload.valid

    def apply(self, step: int, payloads: Sequence[Payload], *, own_accepted: bool) -> None:  # noqa: ARG002 - masters only
        """Sum what the payloads say to each piece; mix the sum into the piece."""
        if not payloads:
            return

        said = zip(*[_NUMBERS.unpack(payload.hash) for payload in payloads], strict=True)
        self._masters = tuple(
            [((piece ^ step) * _SPREAD + sum(numbers)) & _MASK for piece, numbers in zip(self._masters, said, strict=True)]
        )

    def digest(self) -> bytes:
        """SHA-256 of the pieces."""
        return hashlib.sha256(repr(self._masters).encode()).digest()

    def snapshot(self) -> object:
        """The pieces."""
        return self._masters

    def restore(self, snapshot: object) -> None:
        """Take other pieces."""
        assert isinstance(snapshot, tuple)
        self._masters = snapshot

    def spoil(self, bit: int) -> None:
        """Flip one bit of the last piece."""
        self._masters = (*self._masters[:-1], self._masters[-1] ^ 1 << bit)
