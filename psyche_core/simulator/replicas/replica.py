"""The model of a simulated member: a few integers, and its training results.

It keeps the optimizer's contract: an apply depends on the masters, the step and the *set* of payloads, not on their order; with
no payloads the masters stay. Any other difference (a missing or doubled result, another step, another order of steps) gives
other numbers, so two replicas are equal exactly when the machine worked correctly.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from psyche_core.client.machine.actions import Share
from psyche_core.simulator.run_result import InvariantViolation

PIECES = 4
"""Numbers in the cheap model; two replicas can differ in each."""

_NUMBERS = struct.Struct(f"<{PIECES}Q")
"""Splits a payload's hash into one number for each piece."""

_MASK = 2**64 - 1
_SPREAD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Payload:
    """A trainer's result. samples: one bit for each sample it was trained on; valid: whether honest members accept it.

    content: the encoded result, if there is one (torch); the cheap model needs only the hash.
    """

    hash: bytes
    trainer: int
    samples: int
    valid: bool = True
    size: int = 32
    content: bytes = b""


EMPTY_RESULT = hashlib.sha256(b"").digest()
"""Hash of the payload of any result that is all zeros: the same bytes for everybody, in every round."""


def empty_payload(trainer: int, samples: int) -> Payload:
    """The payload with that hash. Equal bytes have one shape, so it is valid whoever makes it."""
    return Payload(EMPTY_RESULT, trainer, samples)


class Replica(Protocol):
    """One member's model."""

    @property
    def max_payload_bytes(self) -> int:
        """Upper bound for the size of valid payloads."""

    def train(self, step: int, share: Share, *, salt: bytes) -> tuple[bytes, bytes]:
        """Hash and content of a new result. salt: makes results differ that would otherwise be equal."""

    def check(self, payload: Payload) -> bool:
        """Whether the payload is valid."""

    def apply(self, step: int, payloads: Sequence[Payload], *, own_accepted: bool) -> None:
        """Apply results to the masters."""

    def digest(self) -> bytes:
        """Digest of all masters."""

    def snapshot(self) -> object:
        """The masters as an immutable value."""

    def restore(self, snapshot: object) -> None:
        """Replace the masters and forget everything else."""

    def corrupt(self, bit: int) -> None:
        """Flip one bit of the masters, like bad memory. bit: counted from the end of the last piece; the first few exist."""


class StepOrder:
    """Checks what optimizers rely on: no step is trained again before it is settled, none is applied after a later one.

    name: of the member.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._sent: set[int] = set()
        self._applied = 0

    def trains(self, step: int) -> None:
        """A result of this step was made."""
        if step in self._sent:
            raise InvariantViolation(
                "optimizers-see-steps-in-order", f"{self._name} trained step {step} again before it was settled"
            )

        self._sent.add(step)

    def applies(self, step: int) -> None:
        """The results of this step are applied; this settles it and all older ones."""
        if step < self._applied:
            raise InvariantViolation(
                "optimizers-see-steps-in-order", f"{self._name} applied step {step} after step {self._applied}"
            )

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
        """Returns the payload's own flag."""
        return payload.valid

    def apply(self, step: int, payloads: Sequence[Payload], *, own_accepted: bool) -> None:  # noqa: ARG002 - masters only
        """Add up each piece's numbers from the payloads, and mix the sum into the piece."""
        if not payloads:
            return

        numbers_by_piece = zip(*[_NUMBERS.unpack(payload.hash) for payload in payloads], strict=True)
        self._masters = tuple(
            [
                ((piece ^ step) * _SPREAD + sum(numbers)) & _MASK
                for piece, numbers in zip(self._masters, numbers_by_piece, strict=True)
            ]
        )

    def digest(self) -> bytes:
        """SHA-256 of the pieces."""
        return hashlib.sha256(repr(self._masters).encode()).digest()

    def snapshot(self) -> object:
        """The pieces."""
        return self._masters

    def restore(self, snapshot: object) -> None:
        """Replace the pieces."""
        assert isinstance(snapshot, tuple)
        self._masters = snapshot

    def corrupt(self, bit: int) -> None:
        """Flip one bit of the last piece."""
        self._masters = (*self._masters[:-1], self._masters[-1] ^ 1 << bit)
