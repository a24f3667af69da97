"""`AdamW`: dense baseline optimizer. Every replica sends its own AdamW direction; all apply the mean of the accepted ones.

- Moments stay with the sender, like DisTrO's δ, and `apply` only moves weights. So `apply` depends on nothing but masters,
  payloads and learning rate, and a member that joins late agrees with the others from its first round on. (Moments of the mean
  gradient would have to be shared with every joiner.) With one replica this is AdamW; with several it is the mean of theirs.
- The sent direction is m̂ / (√v̂ + ε) in bfloat16, clipped to the largest value AdamW can produce. Peers' values are clipped to
  the same, so a dishonest peer moves a weight no further than an honest one could.
- Masters and moments are kept, and computed, on the CPU. `apply` uses float64 and one rounded operation per tensor operation (no
  fused multiply-add, no reduction), over payloads sorted by SHA-256. So it gives the same bits on every machine and thread
  count. This requires IEEE arithmetic: it does not hold if a program flushes denormals (`torch.set_flush_denormal`).

The optimizer does not know which member sent which payload. A payload that was not accepted is not sent again; its gradient
remains only in the moments.

Payload: b"PsyAdamW", u8 version, 8 bytes of the SHA-256 of the parameter table, then per parameter in ascending order of name its
values as little-endian bfloat16.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.errors import NonFiniteError, PayloadRejected
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.parameters import check_private_state, replace_parameters
from psyche_core.interfaces.rate_groups import RateGroups

MAGIC: Final = b"PsyAdamW"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sB8s")
MAX_SQUARED_NORM: Final = 1e37
"""A gradient with a larger squared norm would overflow the float32 second moment, which would then stay infinite."""


class AdamW(Optimizer):
    """Dense AdamW; see the module. Formulas: Loshchilov and Hutter, Decoupled Weight Decay Regularization, algorithm 2.

    Raises ConfigError for `rates` that do not fit the model's parameters.
    """

    def __init__(self, settings: AdamWSettings, model: Model) -> None:
        self._settings = settings
        self._compute: Mapping[str, torch.Tensor] = model.parameters
        self._masters = {
            name: tensor.detach().to("cpu", torch.float32, copy=True).contiguous() for name, tensor in self._compute.items()
        }
        groups = settings.rates or RateGroups()
        self._rates = groups.tensor_rates({name: tuple(master.shape) for name, master in self._masters.items()})
        self._first = {name: torch.zeros_like(master) for name, master in self._masters.items()}
        self._second = {name: torch.zeros_like(master) for name, master in self._masters.items()}
        self._compressed = 0  # compress calls so far, the t of the bias corrections
        self._count = sum(master.numel() for master in self._masters.values())
        table = "".join(f"{name} {tuple(master.shape)}\n" for name, master in self._masters.items())
        self._header = HEADER.pack(MAGIC, VERSION, hashlib.sha256(table.encode()).digest()[:8])
        self._limit = float(torch.tensor(settings.bound).to(torch.bfloat16)) * (1 + 2**-7)  # one bfloat16 step of slack

    @property
    def exact(self) -> bool:
        """True; the module docstring gives the reason."""
        return True

    @property
    def max_payload_bytes(self) -> int:
        """The length of every payload: 17 bytes and two per parameter value."""
        return len(self._header) + 2 * self._count

    @property
    def masters(self) -> Mapping[str, torch.Tensor]:
        """float32 master weights on the CPU, ascending by name."""
        return self._masters

    @property
    def momentum(self) -> Mapping[str, torch.Tensor]:
        """The first moments, without their bias correction."""
        return self._first

    def load_lookahead(self, *, learning_rate: float) -> None:  # noqa: ARG002 - the contract's; AdamW trains at its masters
        """Write the masters into the compute weights."""
        self.load_masters()

    def load_masters(self) -> None:
        """Write the masters into the compute weights."""
        with torch.no_grad():
            for name, master in self._masters.items():
                self._compute[name].copy_(master)

    def compress(self, step: int, *, learning_rate: float) -> bytes:  # noqa: ARG002 - the learning rate is used in apply
        """Update the moments with the gradients; the payload is m̂ / (√v̂ + ε).

        Raises NonFiniteError and then changes nothing.
        """
        gradients = {name: self._gradient(name) for name in self._masters}
        squares = math.fsum(float(torch.sum(gradient.double().square())) for gradient in gradients.values())
        clip = self._settings.clip_grad_norm
        scale = min(1.0, clip / (math.sqrt(squares) + 1e-6)) if clip else 1.0
        if not squares * scale * scale < MAX_SQUARED_NORM:  # in this form NaN is rejected, too
            message = f"the gradient of step {step} is not finite or too large: its squared norm is {squares}; nothing was sent"
            raise NonFiniteError(message)

        self._compressed += 1
        return self._header + b"".join(self._direction(name, gradient * scale) for name, gradient in gradients.items())

    def check(self, payload: bytes) -> None:
        """Reject a payload of another length, version or parameter table, or with values that AdamW cannot produce.

        Raises PayloadRejected.
        """
        if len(payload) != self.max_payload_bytes:
            message = f"an AdamW payload of this model has {self.max_payload_bytes} bytes, got {len(payload)}"
            raise PayloadRejected(message)
        if payload[: len(self._header)] != self._header:
            message = (
                "the payload's header is not that of AdamW version 1 with our parameter table; are all members on one version?"
            )
            raise PayloadRejected(message)

        # NaN compares false with everything, so test that all are within, not that any is outside
        if not bool(np.all(np.abs(self._values(payload, 0, self._count)) <= self._limit)):
            message = f"the payload holds values that are not finite or beyond {self._limit:.4g}, which AdamW cannot produce"
            raise PayloadRejected(message)

    def apply(self, step: int, payloads: Sequence[bytes], *, learning_rate: float, own_accepted: bool) -> None:  # noqa: ARG002
        """Move the masters by the mean direction: θ ← θ·(1 - lr·λ) - lr·f·mean. Every payload has the same weight.

        f is the tensor's factor of the rate, and λ its weight decay, see `psyche_core.interfaces.rate_groups`.
        """
        if not payloads:
            return

        ordered = sorted(payloads, key=lambda payload: hashlib.sha256(payload).digest())
        offset = 0
        for name, master in self._masters.items():
            rate = self._rates[name]
            total = torch.zeros(master.numel(), dtype=torch.float64)
            for payload in ordered:
                total += torch.from_numpy(self._values(payload, offset, master.numel()).astype(np.float64))
            total /= len(ordered)
            total *= rate.step(learning_rate)
            moved = master.double().flatten()
            moved *= rate.kept(learning_rate, self._settings.weight_decay)
            moved -= total
            master.copy_(moved.view_as(master))
            offset += master.numel()

    def load_parameters(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Replace the masters and reset the moments. Raises ModelError for other names or shapes, and then changes nothing."""
        replace_parameters(self._masters, parameters)
        for moment in (*self._first.values(), *self._second.values()):
            moment.zero_()
        self._compressed = 0

    def private_state(self) -> Mapping[str, torch.Tensor]:
        """Both moments by parameter name, and the number of gradients in them."""
        first = {f"first.{name}": tensor for name, tensor in self._first.items()}
        second = {f"second.{name}": tensor for name, tensor in self._second.items()}
        return {**first, **second, "compressed": torch.tensor([float(self._compressed)])}

    def load_private_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore the moments. Raises ModelError for other names or shapes, or values that are not finite."""
        check_private_state(state, self.private_state())
        for name in self._masters:
            self._first[name].copy_(state[f"first.{name}"])
            self._second[name].copy_(state[f"second.{name}"])
        self._compressed = round(float(state["compressed"][0]))

    def _gradient(self, name: str) -> torch.Tensor:
        """A float32 gradient on the CPU; zero for a parameter the loss did not reach."""
        gradient = self._compute[name].grad
        return torch.zeros_like(self._masters[name]) if gradient is None else gradient.detach().to("cpu", torch.float32)

    def _direction(self, name: str, gradient: torch.Tensor) -> bytes:
        """Update both moments of a parameter and return its direction as bfloat16 bytes."""
        first_decay, second_decay = self._settings.betas
        first = self._first[name].lerp_(gradient, 1 - first_decay)
        second = self._second[name].mul_(second_decay).addcmul_(gradient, gradient, value=1 - second_decay)
        scale = (second / (1 - second_decay**self._compressed)).sqrt_().add_(self._settings.eps)
        direction = (first / (1 - first_decay**self._compressed)).div_(scale)
        bound = self._settings.bound
        bits = direction.clamp_(-bound, bound).to(torch.bfloat16).contiguous().view(torch.int16)
        return bits.numpy().astype("<i2", copy=False).tobytes()

    def _values(self, payload: bytes, offset: int, count: int) -> NDArray[np.float32]:
        """`count` values of a payload from value number `offset` on. bfloat16 is the upper half of a float32."""
        bits = np.frombuffer(payload, dtype="<u2", count=count, offset=len(self._header) + 2 * offset)
        return (bits.astype(np.uint32) << 16).view(np.float32)
