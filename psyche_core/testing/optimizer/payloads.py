"""Conformance of an optimizer's payloads: what `check` accepts and rejects; part of `OptimizerConformance`."""

from __future__ import annotations

import random
import tracemalloc

import torch

from psyche_core.errors import PayloadRejected
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.optimizer.base import OptimizerTests
from psyche_core.testing.optimizer.replicas import shared
from psyche_core.testing.sentences import raises, shown
from psyche_core.testing.toy_model import TOY_SHAPES, toy_samples

FUZZED_PAYLOADS = 300
MEMORY_PER_CHECK = 64
"""`check` may allocate at most this many times `max_payload_bytes`, plus one MiB."""


class PayloadTests(OptimizerTests):
    """Valid, damaged and foreign payloads."""

    def test_valid_payloads_pass_and_fit(self) -> None:
        """Zero, tiny and large gradients give payloads that pass `check` and are not longer than `max_payload_bytes`."""
        optimizer = self.replica().optimizer
        spiky = self.replica()
        for step, scale in enumerate((0.0, 1e-30, 1.0, 1e4), start=1):
            spiky.model.gradients(toy_samples(step), micro_batch_size=1)
            for parameter in spiky.model.parameters.values():
                assert parameter.grad is not None, "the toy model gives every parameter a gradient; was .grad taken away?"
                parameter.grad.mul_(scale)

            payload = spiky.optimizer.compress(step, learning_rate=self.learning_rate)
            optimizer.check(payload)
            assert len(payload) <= optimizer.max_payload_bytes, (
                f"a payload must not be longer than max_payload_bytes, {optimizer.max_payload_bytes}, got {len(payload)} bytes "
                f"for gradients times {scale:g}"
            )

    @pytest.mark.parametrize("cut", [1, 2, 7, 100])
    def test_truncated_and_lengthened_payloads_are_rejected(self, cut: int) -> None:
        """Every byte counts: a shorter or longer payload is invalid."""
        optimizer, payload = self.replica().optimizer, self.payload()
        spoilt = (payload[:-cut], payload[:cut], payload + bytes(cut), payload[cut:], payload * (cut + 1))
        for bad in (each for each in spoilt if each != payload):  # of a short payload the first 100 bytes are the whole
            wanted = f"check must raise PayloadRejected for {len(bad)} bytes of a payload that has {len(payload)}"
            with raises(PayloadRejected, wanted):
                optimizer.check(bad)

    def test_payloads_of_another_model_are_rejected(self) -> None:
        """Payloads of a model with another name, shape or number of parameters."""
        payload = self.payload()
        renamed = {("x" + name if name == "odd.bias" else name): shape for name, shape in TOY_SHAPES.items()}
        turned = {**TOY_SHAPES, "embed.weight": (64, 96)}
        fewer = {name: shape for name, shape in TOY_SHAPES.items() if name != "odd.single"}
        for shapes, other in ((renamed, "another name"), (turned, "another shape"), (fewer, "one fewer")):
            with raises(PayloadRejected, f"check must raise PayloadRejected for one of a model with {other} of a parameter"):
                self.replica(shapes).optimizer.check(payload)

    def test_fuzzed_payloads_are_rejected_or_harmless_in_bounded_memory(self) -> None:
        """Random bytes, flipped bits and overwritten lengths raise PayloadRejected, or leave the masters finite when applied."""
        replica, payload, rng = self.replica(), self.payload(), random.Random(5)
        limit = MEMORY_PER_CHECK * replica.optimizer.max_payload_bytes + 2**20
        survivors = []
        for number in range(FUZZED_PAYLOADS):
            bad = _spoil(payload, number, rng)
            tracemalloc.start()
            try:
                replica.optimizer.check(bad)
                survivors.append(bad)
            except PayloadRejected:
                pass
            finally:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()

            assert peak <= limit, (
                f"check must take little memory whatever the payload says, at most {limit} bytes here, got {peak} for the "
                f"damaged payload {shown(bad)}; compare lengths before you make buffers of them"
            )

        for good in survivors[:20]:
            replica.optimizer.apply(1, [good], learning_rate=self.learning_rate, own_accepted=False)
        wrong = [name for name, tensor in shared(replica.optimizer).items() if not bool(torch.isfinite(tensor).all())]
        assert not wrong, (
            "payloads that check lets pass must leave masters and public state finite when they are applied, NaN or infinite are "
            f"now {shown(wrong)}; check must raise PayloadRejected for such values"
        )

    def test_garbage_is_rejected(self) -> None:
        """Zeros, ones and random bytes of many lengths."""
        optimizer, rng = self.replica().optimizer, random.Random(6)
        for length in (0, 1, 5, 22, 100, optimizer.max_payload_bytes, optimizer.max_payload_bytes + 1):
            for filler in (bytes(length), b"\xff" * length, rng.randbytes(length)):
                with raises(PayloadRejected, f"check must raise PayloadRejected for {length} bytes {shown(filler)}"):
                    optimizer.check(filler)


def _spoil(payload: bytes, number: int, rng: random.Random) -> bytes:
    """Damage a payload in one of three ways.

    A bit near the start or anywhere is flipped, or four bytes are overwritten with a value that reads as a huge length.
    """
    spoiled = bytearray(payload)
    at = rng.randrange(min(64, len(payload)) if number % 3 == 0 else len(payload))
    if number % 3 == 2:
        spoiled[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\xff\xff\xff\x7f"])[: len(payload) - at]
    else:
        spoiled[at] ^= 1 << rng.randrange(8)
    return bytes(spoiled)
