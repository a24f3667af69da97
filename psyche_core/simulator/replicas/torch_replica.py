"""The model of a simulated member with `trainer="torch"`: a tiny torch model with the built-in AdamW and the real trainer.

It runs the same scripts, slowly: real payload bytes are encoded, checked and applied; real masters are digested and
transferred.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.client.machine.actions import Share
from psyche_core.errors import PayloadRejected
from psyche_core.interfaces.data import Samples
from psyche_core.simulator.replicas.replica import Payload
from psyche_core.testing.toy_model import ToyModel
from psyche_core.training.trainer import Trainer

SHAPES: dict[str, tuple[int, ...]] = {"embed.weight": (12, 8), "layers.0.norm.weight": (8,), "layers.0.mlp.weight": (8, 8)}

LEARNING_RATE = 0.01

Masters = tuple[tuple[str, bytes], ...]
"""float32 little-endian bytes by parameter name."""


class TorchReplica:
    """See the module."""

    def __init__(self) -> None:
        model = ToyModel(SHAPES)
        settings = AdamWSettings.model_validate({"betas": [0.9, 0.95], "weight_decay": 0.1, "eps": 1e-8})
        self._optimizer = AdamW(settings, model)
        self._trainer = Trainer(
            model=model, optimizer=self._optimizer, learning_rate=lambda _: LEARNING_RATE, micro_batch_size=64
        )

    @property
    def max_payload_bytes(self) -> int:
        """The optimizer's limit."""
        return self._optimizer.max_payload_bytes

    def train(self, step: int, share: Share, *, salt: bytes) -> tuple[bytes, bytes]:  # noqa: ARG002 - gradients differ by themselves
        """Train for real; returns hash and bytes of the payload."""
        indices = [index for batch in share for index in range(batch.first, batch.last + 1)]
        tokens = b"".join(index.to_bytes(8, "little") for index in indices)
        payload = self._trainer.train(step, Samples(tokens, len(indices), 4, 2)).payload
        return hashlib.sha256(payload).digest(), payload

    def check(self, payload: Payload) -> bool:
        """The optimizer's own check; a liar's invalid payload is truncated first."""
        try:
            self._trainer.check(payload.content if payload.valid else payload.content[:-1])
        except PayloadRejected:
            return False

        return True

    def apply(self, step: int, payloads: Sequence[Payload], *, own_accepted: bool) -> None:
        """Apply for real."""
        self._trainer.apply(step, [payload.content for payload in payloads], own_accepted=own_accepted)

    def digest(self) -> bytes:
        """The real full digest."""
        return self._trainer.full_digest()

    def snapshot(self) -> object:
        """The masters' bytes."""
        return tuple((name, tensor.numpy().tobytes()) for name, tensor in self._optimizer.masters.items())

    def restore(self, snapshot: object) -> None:
        """Load other masters."""
        assert isinstance(snapshot, tuple)
        self._optimizer.load_parameters(
            {name: torch.frombuffer(bytearray(raw), dtype=torch.float32).reshape(SHAPES[name]) for name, raw in snapshot}
        )

    def corrupt(self, bit: int) -> None:
        """Flip one bit of the last parameter."""
        masters = self.snapshot()
        assert isinstance(masters, tuple)
        *rest, (name, raw) = masters
        at = len(raw) - 1 - bit // 8
        self.restore((*rest, (name, raw[:at] + bytes((raw[at] ^ 1 << bit % 8,)) + raw[at + 1 :])))
