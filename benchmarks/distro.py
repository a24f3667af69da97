"""What a DisTrO step costs, beside the forward and backward pass of the same model and beside DeMo as its paper writes it.

    python -m benchmarks.distro [--sizes 1M,6M,20M] [--peers 1,8,32] [--tokens 2048] [--threads 2] [--plain] [--json]

For each size, on the CPU, after a few real training steps:

    forward_backward_ms   gradients of `tokens` tokens
    compress_ms           gradient to payload, coding included: momentum, transform, top-k, Golomb-Rice
    divided_compress_ms   the same with `gradient_beta2`: gradients are divided by their running root mean square
    apply_ms              accepted payloads of so many peers to moved weights, decoding included
    apply_checked_ms      the same where payloads were checked when they arrived, as a client does while it trains
    paper_compress_ms, paper_apply_ms   the same of benchmarks.demo_paper, without any coding
    extra_memory_mb       memory of the optimizer beyond masters, delta and the model's own weights, at rest and at the peak of a
                          compress and an apply of most peers

    compiled              whether our work was done by compiled code: where numba is installed, and without --plain

The ways take turns, the short ones thrice while forward and backward come once, and the best counts, so other work on the
machine counts little. Goals at 20M, two threads, 2048 tokens: compress and apply of 32 peers at most 5 % of forward and backward
each, three times faster than the paper's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from benchmarks import llama
from benchmarks.demo_paper import DemoPaper, Sent
from benchmarks.memory import forget_peak, peak, resident
from psyche_core.interfaces.model import Model
from psyche_core.training.malloc_tuning import give_back_memory
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings

LEARNING_RATE = 1e-3
TURNS = 7
SHORT_TURNS = 3
TOPK = 8
WARM_STEPS = 3
MB = 10**6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="20M", help=f"comma-separated, of {', '.join(llama.SIZES)} (default: 20M)")
    parser.add_argument("--peers", default="1,8,32", help="payloads applied at once (default: 1,8,32)")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of a forward and backward pass (default: 2048)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default: 2)")
    parser.add_argument("--plain", action="store_true", help="our work by torch even where numba is installed")
    parser.add_argument("--json", action="store_true", help="one JSON object; a list of them for several sizes")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    peers = [int(count) for count in given.peers.split(",")]
    if given.memory_of:
        sys.stdout.write(json.dumps(_extra_memory(given.memory_of, max(peers), compiled=not given.plain)) + "\n")
        return

    found = []
    for size in given.sizes.split(","):
        figures = measure(size, peers, given.tokens, compiled=not given.plain)
        found.append({**figures, "extra_memory_mb": _memory_of(size, peers, compiled=not given.plain)})
        if not given.json:
            sys.stdout.write(_table(found[-1]))
    if given.json:
        sys.stdout.write(json.dumps(found[0] if len(found) == 1 else found) + "\n")


def measure(size: str, peers: list[int], tokens: int, *, compiled: bool) -> dict[str, Any]:
    """Milliseconds of the module's docstring."""
    model, optimizer, paper = llama.build(size), *optimizers(llama.build(size), compiled=compiled)
    ours, theirs = results(model, optimizer, paper, max(peers))
    samples = llama.batch(tokens // llama.SEQUENCE, step=99)
    steps = iter(range(10**6, 2 * 10**6))
    dividing = DistroOptimizer(our_settings(gradient_beta2=0.99), llama.build(size), compiled=compiled)
    for name, parameter in model.parameters.items():
        dividing._parameters[name].grad = parameter.grad

    def compress(by: DistroOptimizer) -> None:
        step = next(steps)
        by.apply(step - 2, [], learning_rate=LEARNING_RATE, own_accepted=True)
        by.compress(step, learning_rate=LEARNING_RATE)

    def check(count: int) -> None:
        for payload in ours[:count]:
            optimizer.check(payload)

    def apply(count: int) -> None:
        optimizer.apply(0, ours[:count], learning_rate=LEARNING_RATE, own_accepted=False)

    ways: dict[str, Callable[[], object]] = {
        "compress": partial(compress, optimizer),
        "divided_compress": partial(compress, dividing),
        "paper_compress": lambda: paper.compress(learning_rate=LEARNING_RATE),
    }
    for count in peers:
        ways[f"apply {count}"] = partial(apply, count)
        ways[f"checked {count}"] = partial(apply, count)
        ways[f"paper_apply {count}"] = partial(paper.apply, theirs[:count], learning_rate=LEARNING_RATE)
    before = {f"checked {count}": partial(check, count) for count in peers}
    best = _best_ms(lambda: model.gradients(samples, micro_batch_size=samples.count), ways, before)
    return {
        "params": llama.parameter_count(model),
        "compiled": optimizer.compiled,
        "forward_backward_ms": best["forward_backward"],
        "compress_ms": best["compress"],
        "divided_compress_ms": best["divided_compress"],
        "apply_ms": {str(count): best[f"apply {count}"] for count in peers},
        "apply_checked_ms": {str(count): best[f"checked {count}"] for count in peers},
        "paper_compress_ms": best["paper_compress"],
        "paper_apply_ms": {str(count): best[f"paper_apply {count}"] for count in peers},
    }


def our_settings(**more: float) -> DistroSettings:
    """Settings of our optimizer, and more of them."""
    return DistroSettings(compression_topk=TOPK, quantize_1bit=True, clip_grad_norm=1.0, weight_decay=0.1, **more)


def optimizers(model: Model, *, compiled: bool = True) -> tuple[DistroOptimizer, DemoPaper]:
    return DistroOptimizer(our_settings(), model, compiled=compiled), DemoPaper(dict(model.parameters), topk=TOPK)


def results(model: Model, optimizer: DistroOptimizer, paper: DemoPaper, count: int) -> tuple[list[bytes], list[list[Sent]]]:
    """Results of `count` peers: of real gradients, each on other text. The optimizers' own model gets the last gradients."""
    own = optimizer._parameters
    ours, theirs = [], []
    for step in range(1, WARM_STEPS + count + 1):
        model.gradients(llama.batch(4, step=step), micro_batch_size=4)
        for name, parameter in model.parameters.items():
            own[name].grad = parameter.grad
        ours.append(optimizer.compress(step, learning_rate=LEARNING_RATE))
        theirs.append(paper.compress(learning_rate=LEARNING_RATE))
        optimizer.apply(step, [], learning_rate=LEARNING_RATE, own_accepted=True)
    return ours[WARM_STEPS:], theirs[WARM_STEPS:]


def _best_ms(
    forward_backward: Callable[[], object], ways: Mapping[str, Callable[[], object]], before: Mapping[str, Callable[[], object]]
) -> dict[str, float]:
    """The best of some turns. before: what is done before a way and not counted."""
    best = dict.fromkeys(("forward_backward", *ways), float("inf"))

    def look(name: str, way: Callable[[], object]) -> None:
        before.get(name, lambda: None)()
        began = time.perf_counter()
        way()
        best[name] = min(best[name], 1e3 * (time.perf_counter() - began))

    for _ in range(TURNS):
        look("forward_backward", forward_backward)
        for _ in range(SHORT_TURNS):
            for name, way in ways.items():
                look(name, way)
    return {name: round(value, 2) for name, value in best.items()}


# ------------------------------------------------------------------------------------------------ memory, in a process of its own


def _memory_of(size: str, peers: list[int], *, compiled: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.distro", "--memory-of", size, "--peers", str(max(peers)), "--threads", "1"]
    command += [] if compiled else ["--plain"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _extra_memory(size: str, peers: int, *, compiled: bool) -> dict[str, float]:
    """Beyond masters and delta, in MB. Another model's optimizer runs before: what it loads of libraries is nobody's memory."""
    small = llama.build("1M")
    other = optimizers(small, compiled=compiled)[0]
    small.gradients(llama.batch(1, step=1), micro_batch_size=1)
    other.apply(1, [other.compress(1, learning_rate=LEARNING_RATE)], learning_rate=LEARNING_RATE, own_accepted=True)
    del small, other
    model = llama.build(size)
    model.gradients(llama.batch(1, step=1), micro_batch_size=1)
    give_back_memory()  # what the C library keeps of what was freed belongs to nobody
    before = resident()
    optimizer = DistroOptimizer(our_settings(), model, compiled=compiled)
    payloads = []
    for step in range(1, peers + 1):
        payloads.append(optimizer.compress(step, learning_rate=LEARNING_RATE))
        optimizer.apply(step, [], learning_rate=LEARNING_RATE, own_accepted=True)
    needed = 2 * 4 * llama.parameter_count(model)
    give_back_memory()
    rest = resident() - before - needed
    forget_peak()
    optimizer.compress(peers + 1, learning_rate=LEARNING_RATE)
    compress = peak() - before - needed
    give_back_memory()
    forget_peak()
    optimizer.apply(peers + 1, payloads, learning_rate=LEARNING_RATE, own_accepted=True)
    apply = peak() - before - needed
    figures = {"rest": rest, "compress_peak": compress, "apply_peak": apply, "model": needed // 2}
    return {name: round(value / MB, 1) for name, value in figures.items()}


def _table(figures: Mapping[str, Any]) -> str:
    whole = figures["forward_backward_ms"]
    how = "compiled" if figures["compiled"] else "by torch"
    lines = [f"{figures['params'] / 1e6:.1f} M parameters: forward and backward {whole:.0f} ms; ours is {how}"]
    rows = [("compress", figures["compress_ms"], figures["paper_compress_ms"])]
    rows += [("divided", figures["divided_compress_ms"], figures["paper_compress_ms"])]
    rows += [(f"apply {count}", ms, figures["paper_apply_ms"][count]) for count, ms in figures["apply_ms"].items()]
    rows += [(f"checked {count}", ms, figures["paper_apply_ms"][count]) for count, ms in figures["apply_checked_ms"].items()]
    for name, ms, paper in rows:
        lines.append(
            f"  {name:10} {ms:8.1f} ms  {ms / whole:6.1%} of it  {paper / ms:5.1f} x faster than the paper's ({paper:.0f} ms)"
        )
    lines.append(f"  memory     {figures['extra_memory_mb']}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
