"""`Dummy`: an optimizer that changes nothing, to try a network without learning.

Every payload is the same few bytes, so results cost nothing to send; all replicas keep the first weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from psyche_core.errors import PayloadRejected
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.parameters import replace_parameters

PAYLOAD: Final = b"PsyDummy\x01"


class DummyOptimizer(Optimizer):
    """Keeps the model's weights as they are."""

    def __init__(self, model: Model) -> None:
        self._compute: Mapping[str, torch.Tensor] = model.parameters
        self._masters = {
            name: tensor.detach().to("cpu", torch.float32, copy=True).contiguous() for name, tensor in self._compute.items()
        }

    @property
    def exact(self) -> bool:
        """True: nothing changes."""
        return True

    @property
    def max_payload_bytes(self) -> int:
        """The length of every payload."""
        return len(PAYLOAD)

    @property
    def masters(self) -> Mapping[str, torch.Tensor]:
        """float32 master weights on the CPU, ascending by name."""
        return self._masters

    def load_lookahead(self, *, learning_rate: float) -> None:  # noqa: ARG002 - the contract's
        """Write the masters into the compute weights."""
        self.load_masters()

    def load_masters(self) -> None:
        """Write the masters into the compute weights."""
        with torch.no_grad():
            for name, master in self._masters.items():
                self._compute[name].copy_(master)

    def compress(self, step: int, *, learning_rate: float) -> bytes:  # noqa: ARG002 - the contract's
        """Return the payload; gradients are not read."""
        return PAYLOAD

    def check(self, payload: bytes) -> None:
        """Reject all other bytes. Raises PayloadRejected."""
        if payload != PAYLOAD:
            message = f"a payload of the Dummy optimizer is always the same {len(PAYLOAD)} bytes, got {len(payload)} others"
            raise PayloadRejected(message)

    def apply(self, step: int, payloads: Sequence[bytes], *, learning_rate: float, own_accepted: bool) -> None:
        """Change nothing."""

    def load_parameters(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Replace the masters. Raises ModelError for other names or shapes, and then changes nothing."""
        replace_parameters(self._masters, parameters)
