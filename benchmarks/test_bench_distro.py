"""DisTrO's step at one million parameters (a Llama of 4 layers, width 128), one thread: compress, check and apply.

Run with `pytest benchmarks/test_bench_distro.py --benchmark-only`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from psyche_core.testing.toy_model import ToyModel
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings

WIDTH, HIDDEN, LAYERS, VOCABULARY = 128, 384, 4, 1024


def llama_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("q", "k", "v", "o"):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (WIDTH, WIDTH)
        shapes[prefix + "mlp.gate_proj.weight"] = (HIDDEN, WIDTH)
        shapes[prefix + "mlp.up_proj.weight"] = (HIDDEN, WIDTH)
        shapes[prefix + "mlp.down_proj.weight"] = (WIDTH, HIDDEN)
        shapes[prefix + "input_layernorm.weight"] = (WIDTH,)
        shapes[prefix + "post_attention_layernorm.weight"] = (WIDTH,)
    return shapes


class Bench:
    """A model with fresh random gradients on demand."""

    def __init__(self) -> None:
        self.model = ToyModel(llama_shapes())
        settings = DistroSettings(compression_topk=8, quantize_1bit=True, clip_grad_norm=1.0, weight_decay=0.1)
        self.optimizer = DistroOptimizer(settings, self.model)
        self.step = 0

    def compress(self) -> bytes:
        """A steady-state step: the result before the last is settled, the last is subtracted."""
        self.step += 1
        if self.step > 2:
            self.optimizer.apply(self.step - 2, [], learning_rate=1e-3, own_accepted=True)
        return self.optimizer.compress(self.step, learning_rate=1e-3)

    def random_gradients(self) -> None:
        for parameter in self.model.parameters.values():
            parameter.grad = 0.01 * torch.randn_like(parameter)


@pytest.fixture
def bench() -> Iterator[Bench]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    bench = Bench()
    bench.random_gradients()
    for _ in range(3):
        bench.compress()
    yield bench
    torch.set_num_threads(before)


def test_compress(benchmark: BenchmarkFixture, bench: Bench) -> None:
    benchmark(bench.compress)


@pytest.mark.parametrize("peers", [1, 3, 8])
def test_apply(benchmark: BenchmarkFixture, bench: Bench, peers: int) -> None:
    payloads = []
    for _ in range(peers):
        bench.random_gradients()
        payloads.append(bench.compress())
    benchmark(lambda: bench.optimizer.apply(0, payloads, learning_rate=1e-3, own_accepted=False))


def test_check(benchmark: BenchmarkFixture, bench: Bench) -> None:
    payload = bench.compress()
    benchmark(bench.optimizer.check, payload)


def test_load_lookahead(benchmark: BenchmarkFixture, bench: Bench) -> None:
    benchmark(lambda: bench.optimizer.load_lookahead(learning_rate=1e-3))
