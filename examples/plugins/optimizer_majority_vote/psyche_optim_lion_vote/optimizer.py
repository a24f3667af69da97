"""Each member sends the signs of Lion's update, and all move each weight by the learning rate towards the majority.

With g the gradient of a member's share, m its momentum and b1, b2 the setting `betas`, a step is

    vote = sign(b1 * m + (1 - b1) * g)        sent, one bit for each parameter
    m = b2 * m + (1 - b2) * g                 stays with the member
    w = w * (1 - lr * weight_decay) - lr * sign(sum of the accepted votes)

- Votes are counted in integers, and each step of a weight is two operations that are rounded once: the same bits everywhere.
- A bit cannot abstain. A vote that would be zero, as for tokens that a member has not seen yet, is a coin. Its seed follows
  from the member's other votes, so that the coins of members differ and usually cancel each other.
- A gradient has the share 1 - b1 of its weight in its own vote, and the rest in later ones, through the momentum. If the vote is
  not accepted, the momentum gets that share, too: later votes then say what this one said.
- A payload is a header (magic, version, hash of the parameter table) and the bits, each tensor padded to whole bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from psyche_core.errors import NonFiniteError, PayloadRejected
from psyche_core.interfaces import Model, Optimizer
from psyche_core.interfaces.parameters import check_private_state, replace_parameters
from psyche_optim_lion_vote.settings import LionVoteSettings

MAGIC = b"LiVo"
VERSION = 1


class LionVote(Optimizer):
    """See the module. Masters, and everything computed from them, are float32 on the CPU."""

    def __init__(self, settings: LionVoteSettings, model: Model) -> None:
        self._settings = settings
        self._compute: Mapping[str, torch.Tensor] = model.parameters
        self._masters = {
            name: tensor.detach().to("cpu", torch.float32, copy=True).contiguous() for name, tensor in self._compute.items()
        }
        self._momentum = {name: torch.zeros_like(master) for name, master in self._masters.items()}
        self._sent: dict[int, dict[str, torch.Tensor]] = {}  # by step: the gradients that were voted with
        table = "".join(f"{name} {tuple(master.shape)}\n" for name, master in self._masters.items())
        self._header = MAGIC + bytes([VERSION]) + hashlib.sha256(table.encode()).digest()[:8]
        self._sizes = {name: (master.numel() + 7) // 8 for name, master in self._masters.items()}

    @property
    def exact(self) -> bool:
        """True: see the module."""
        return True

    @property
    def max_payload_bytes(self) -> int:
        """The length of every payload."""
        return len(self._header) + sum(self._sizes.values())

    @property
    def masters(self) -> Mapping[str, torch.Tensor]:
        """float32 on the CPU, ascending by name."""
        return self._masters

    @property
    def momentum(self) -> Mapping[str, torch.Tensor]:
        """The running mean of this member's gradients."""
        return self._momentum

    def load_lookahead(self, *, learning_rate: float) -> None:  # noqa: ARG002  # nothing of what is still to be applied is guessed
        """Train at the masters."""
        self.load_masters()

    def load_masters(self) -> None:
        """Write the masters into the compute weights."""
        with torch.no_grad():
            for name, master in self._masters.items():
                self._compute[name].copy_(master)

    def compress(self, step: int, *, learning_rate: float) -> bytes:  # noqa: ARG002  # a vote has no size
        """The votes of momentum and gradient. Raises NonFiniteError, and then changes nothing."""
        gradients = {name: self._gradient(name) for name in self._masters}
        bad = [name for name, gradient in gradients.items() if not bool(gradient.isfinite().all())]
        if bad:
            message = f"the gradient of {bad[0]} in step {step} is not finite; nothing was sent"
            raise NonFiniteError(message)

        interpolation, decay = self._settings.betas
        positive, undecided = {}, {}
        for name, gradient in gradients.items():
            update = torch.lerp(gradient, self._momentum[name], interpolation).flatten().numpy()
            positive[name], undecided[name] = update > 0, update == 0
            self._momentum[name].lerp_(gradient, 1 - decay)
        self._sent[step] = gradients

        votes = hashlib.sha256(step.to_bytes(8, "little"))
        for name, tensor in positive.items():
            votes.update(np.packbits(tensor) if undecided[name].any() else b"")
        coins = np.random.default_rng(int.from_bytes(votes.digest(), "little"))
        for name, places in undecided.items():
            positive[name][places] = coins.integers(2, size=int(places.sum())).astype(bool)
        return self._header + b"".join(np.packbits(tensor).tobytes() for tensor in positive.values())

    def check(self, payload: bytes) -> None:
        """Every bit counts: length, header and padding. Raises PayloadRejected."""
        if len(payload) != self.max_payload_bytes:
            message = f"a LionVote payload of this model has {self.max_payload_bytes} bytes, got {len(payload)}"
            raise PayloadRejected(message)
        if not payload.startswith(self._header):
            message = f"the payload's header is not that of LionVote version {VERSION} with our parameter table"
            raise PayloadRejected(message)

        end = len(self._header)
        for name, master in self._masters.items():
            end += self._sizes[name]
            if payload[end - 1] & ((1 << -master.numel() % 8) - 1):
                message = f"the padding bits behind {name} must be zero"
                raise PayloadRejected(message)

    def apply(self, step: int, payloads: Sequence[bytes], *, learning_rate: float, own_accepted: bool) -> None:
        """Decay each weight, and move it by the learning rate against the majority; a draw moves nothing."""
        self._settle(step, own_accepted=own_accepted)
        if not payloads:
            return

        kept = max(0.0, 1.0 - learning_rate * self._settings.weight_decay)
        start = len(self._header)
        for name, master in self._masters.items():
            positive = np.zeros(master.numel(), dtype=np.int32)
            for payload in payloads:
                packed = np.frombuffer(payload, np.uint8, count=self._sizes[name], offset=start)
                positive += np.unpackbits(packed, count=master.numel())
            majority = np.sign(2 * positive - len(payloads)).astype(np.float32)
            master.mul_(kept).sub_(torch.from_numpy(majority).view_as(master), alpha=learning_rate)
            start += self._sizes[name]

    def load_parameters(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Replace the masters and forget the momentum. Raises ModelError, and then changes nothing."""
        replace_parameters(self._masters, parameters)
        self._sent.clear()
        for momentum in self._momentum.values():
            momentum.zero_()

    def private_state(self) -> Mapping[str, torch.Tensor]:
        """The momentum, by parameter name."""
        return self._momentum

    def load_private_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue as the replica with that state would. Raises ModelError, and then changes nothing."""
        check_private_state(state, self._momentum)
        for name, momentum in self._momentum.items():
            momentum.copy_(state[name])

    def _settle(self, step: int, *, own_accepted: bool) -> None:
        """Give back to the momentum what votes up to `step` said that were not accepted.

        A gradient g in the momentum has the share b1 * (1 - b2) * b2**k of a vote k steps later, b1 in all of them. Its own vote
        had 1 - b1, so this much of it comes back.
        """
        interpolation, decay = self._settings.betas
        share = (1 - interpolation) * (1 - decay) / interpolation
        for earlier in [known for known in self._sent if known <= step]:
            gradients = self._sent.pop(earlier)
            if earlier != step or not own_accepted:
                for name, gradient in gradients.items():
                    self._momentum[name].add_(gradient, alpha=share)

    def _gradient(self, name: str) -> torch.Tensor:
        """float32 on the CPU, a copy; zero for a parameter that the loss did not reach."""
        gradient = self._compute[name].grad
        if gradient is None:
            return torch.zeros_like(self._masters[name])
        return gradient.detach().to("cpu", torch.float32, copy=True).contiguous()
