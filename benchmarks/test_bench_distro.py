"""DisTrO's step beside DeMo as its paper writes it, and beside a forward and backward pass, for Llamas of 1, 6 and 20 million.

Run with `pytest benchmarks/test_bench_distro.py --benchmark-only`; what is compared stands in one group. `python -m
benchmarks.distro` takes turns between the ways and prints shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import llama
from benchmarks.demo_paper import DemoPaper, Sent
from benchmarks.distro import LEARNING_RATE, optimizers, results
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from psyche_optim_distro.optimizer import DistroOptimizer

THREADS = 2
TOKENS = 2048
MOST_PEERS = 32


@dataclass(slots=True)
class Subject:
    """One size, its two optimizers, and results of peers for both."""

    size: str
    model: Model
    optimizer: DistroOptimizer
    paper: DemoPaper
    ours: list[bytes]
    theirs: list[list[Sent]]
    samples: Samples
    step: int = 10**6

    def compress(self) -> bytes:
        """A steady-state step: the result before the last is settled, the last is subtracted."""
        self.step += 1
        self.optimizer.apply(self.step - 2, [], learning_rate=LEARNING_RATE, own_accepted=True)
        return self.optimizer.compress(self.step, learning_rate=LEARNING_RATE)


@pytest.fixture(scope="module", params=list(llama.SIZES))
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    model, (optimizer, paper) = llama.build(request.param), optimizers(llama.build(request.param))
    ours, theirs = results(model, optimizer, paper, MOST_PEERS)
    samples = llama.batch(TOKENS // llama.SEQUENCE, step=99)
    yield Subject(request.param, model, optimizer, paper, ours, theirs, samples)
    torch.set_num_threads(before)


def test_forward_backward(benchmark: BenchmarkFixture, subject: Subject) -> None:
    benchmark.group = f"{subject.size} compress"
    benchmark.pedantic(lambda: subject.model.gradients(subject.samples, micro_batch_size=subject.samples.count), rounds=3)  # type: ignore[no-untyped-call]  # the plugin leaves it untyped


def test_compress(benchmark: BenchmarkFixture, subject: Subject) -> None:
    benchmark.group = f"{subject.size} compress"
    benchmark(subject.compress)


def test_paper_compress(benchmark: BenchmarkFixture, subject: Subject) -> None:
    benchmark.group = f"{subject.size} compress"
    benchmark(lambda: subject.paper.compress(learning_rate=LEARNING_RATE))


@pytest.mark.parametrize("peers", [1, 8, 32])
@pytest.mark.parametrize("way", ["decoded", "checked", "paper"])
def test_apply(benchmark: BenchmarkFixture, subject: Subject, peers: int, way: str) -> None:
    """decoded: from bytes; checked: each payload was checked when it arrived, outside of what is measured."""
    benchmark.group = f"{subject.size} apply {peers}"
    payloads = subject.ours[:peers]

    def check() -> None:
        for payload in payloads:
            subject.optimizer.check(payload)

    apply: Callable[[], None] = {
        "paper": lambda: subject.paper.apply(subject.theirs[:peers], learning_rate=LEARNING_RATE),
    }.get(way, lambda: subject.optimizer.apply(0, payloads, learning_rate=LEARNING_RATE, own_accepted=False))
    benchmark.pedantic(apply, setup=check if way == "checked" else None, rounds=7, warmup_rounds=1)  # type: ignore[no-untyped-call]  # as above


def test_check(benchmark: BenchmarkFixture, subject: Subject) -> None:
    benchmark.group = f"{subject.size} per payload"
    benchmark(subject.optimizer.check, subject.ours[0])


def test_load_lookahead(benchmark: BenchmarkFixture, subject: Subject) -> None:
    benchmark.group = f"{subject.size} compress"
    benchmark(lambda: subject.optimizer.load_lookahead(learning_rate=LEARNING_RATE))
