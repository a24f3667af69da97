"""How DisTrO's step grows with the model and with the number of senders: time and memory.

Each model size is measured in a process of its own, whose memory holds nothing else; this file is also its program. There is no
forward or backward pass: gradients and other members' payloads are random, payloads as long as real ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, cast

import numpy as np
import torch

from benchmarks.growth.curves import Curve, curve
from benchmarks.memory import forget_peak, peak, resident
from psyche_core.interfaces.model import Model
from psyche_core.training.malloc_tuning import give_back_memory
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import Selection
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.value_format import ValueFormat

WIDTHS = {"1M": 128, "4M": 256, "16M": 512, "64M": 1024, "256M": 2048, "1B": 4096}
"""Width of a Llama's layers by its number of parameters. It has LAYERS of them, so that only matrices grow."""

LAYERS = 5
TOPK = 8
LEARNING_RATE = 1e-3
TURNS = 3
"""Times that everything is measured; the least counts."""

MB = 10**6


class RandomModel:
    """Parameters of a Llama's shapes in bfloat16 with random gradients; it computes nothing."""

    def __init__(self, width: int) -> None:
        hidden = width * 11 // 4 // 64 * 64
        shapes: dict[str, tuple[int, ...]] = {"embedding": (1024, width)}
        for layer in range(LAYERS):
            shapes |= {f"layers.{layer}.{name}": (width, width) for name in ("q", "k", "v", "o")}
            shapes |= {f"layers.{layer}.{name}": (hidden, width) for name in ("up", "gate")}
            shapes |= {f"layers.{layer}.down": (width, hidden), f"layers.{layer}.norm": (width,)}
        self.parameters: dict[str, torch.Tensor] = {}
        for name, shape in sorted(shapes.items()):
            parameter = torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02).requires_grad_()
            parameter.grad = torch.empty(shape, dtype=torch.bfloat16).normal_()
            self.parameters[name] = parameter


def measure(sizes: Sequence[str], senders: Sequence[int], *, threads: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Figures of each size by its name, as `_measured` describes them."""
    found = {}
    for size in sizes:
        say(f"optimizer: {size} parameters")
        command = [sys.executable, "-m", "benchmarks.growth.optimizer", size, "--threads", str(threads)]
        command += ["--senders", ",".join(map(str, senders))]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            say(f"optimizer: {size} failed with exit status {done.returncode} (memory?); it is left out")
        else:
            found[size] = json.loads(done.stdout)
    return found


def curves(found: dict[str, Any]) -> list[Curve]:
    """Each cost over parameters and over senders."""

    def over_parameters(title: str, unit: str, cost: Callable[[dict[str, Any]], float | None]) -> Curve:
        costs = [(each["parameters"], cost(each)) for each in found.values()]
        return curve(title, unit, "parameters", [(size, value) for size, value in costs if value is not None])

    senders = sorted({int(count) for each in found.values() for count in each["apply_ms"]})
    titles = {"compress": "compress", "check": "check of one result"}
    made = [over_parameters(title, "ms", itemgetter(f"{name}_ms")) for name, title in titles.items()]
    made += [over_parameters(_results(count), "ms", partial(_apply_ms, count=count)) for count in senders]
    memory = {"at_rest": "at rest", "compress_peak": "of compress, highest", "apply_peak": "of the largest apply, highest"}
    made += [over_parameters(f"memory {title}", "MB", itemgetter(f"{name}_mb")) for name, title in memory.items()]
    for title, each in found.items():
        for name, unit, costs in (("apply", "ms", "apply_ms"), ("memory of apply", "MB", "apply_peak_by_senders_mb")):
            made.append(
                curve(f"{name}, {title} parameters", unit, "senders", [(int(count), cost) for count, cost in each[costs].items()])
            )
    return made


def _results(count: int) -> str:
    return f"apply of {count} result" + ("s" if count > 1 else "")


def _apply_ms(figures: dict[str, Any], count: int) -> float | None:
    found: float | None = figures["apply_ms"].get(str(count))
    return found


def _measured(size: str, senders: Sequence[int]) -> dict[str, Any]:
    """What one size costs.

    compress_ms: gradients to payload. check_ms: one payload. apply_ms: by number of senders, whose payloads were checked before.
    at_rest_mb: resident memory beyond masters, delta, weights and gradients. compress_peak_mb, apply_peak_mb: the same at the
    highest point of a compress, and of an apply of most senders; apply_peak_by_senders_mb of each number. payload_bytes: of one.
    """
    _load_libraries()
    model = RandomModel(WIDTHS[size])
    give_back_memory()
    before = resident()
    optimizer = _optimizer(model)
    parameters = sum(parameter.numel() for parameter in model.parameters.values())
    needed = 2 * 4 * parameters
    step = iter(range(1, 10**6))

    def compress() -> bytes:
        number = next(step)
        optimizer.apply(number - 2, [], learning_rate=LEARNING_RATE, own_accepted=True)  # as a client does
        return optimizer.compress(number, learning_rate=LEARNING_RATE)

    for _ in range(3):
        compress()  # then delta holds two results that are not settled, as later
    give_back_memory()
    at_rest = resident() - before - needed
    forget_peak()
    compress_ms = min(_ms(compress) for _ in range(TURNS))
    compress_peak = peak() - before - needed
    payloads = [_random_payload(optimizer, seed) for seed in range(max(senders))]
    kept = sum(map(len, payloads))
    check_ms = min(_ms(lambda: optimizer.check(payloads[0])) for _ in range(TURNS))
    apply_ms, peaks = {}, {}
    for count in senders:
        times = []
        for _ in range(TURNS):
            for payload in payloads[:count]:
                optimizer.check(payload)
            give_back_memory()
            forget_peak()
            number = next(step)
            times.append(_ms(lambda: optimizer.apply(number, payloads[:count], learning_rate=LEARNING_RATE, own_accepted=False)))  # noqa: B023 - called at once
        apply_ms[str(count)] = round(min(times), 3)
        peaks[str(count)] = round((peak() - before - needed - kept) / MB, 2)
    return {
        "parameters": parameters,
        "compiled": optimizer.compiled,
        "compress_ms": round(compress_ms, 3),
        "check_ms": round(check_ms, 3),
        "apply_ms": apply_ms,
        "at_rest_mb": round(at_rest / MB, 2),
        "compress_peak_mb": round(compress_peak / MB, 2),
        "apply_peak_mb": max(peaks.values()),
        "apply_peak_by_senders_mb": peaks,
        "payload_bytes": len(payloads[0]),
    }


def _optimizer(model: RandomModel) -> DistroOptimizer:
    return DistroOptimizer(DistroSettings(compression_topk=TOPK, quantize_1bit=True, clip_grad_norm=1.0), cast("Model", model))


def _load_libraries() -> None:
    """Let a small optimizer work: what it loads and compiles is not the measured one's memory."""
    small = _optimizer(RandomModel(64))
    payload = small.compress(1, learning_rate=LEARNING_RATE)
    small.check(payload)
    small.apply(1, [payload], learning_rate=LEARNING_RATE, own_accepted=True)


def _random_payload(optimizer: DistroOptimizer, seed: int) -> bytes:
    """A payload of a stranger: `topk` coefficients of each chunk at random places, with random signs."""
    layout, random = optimizer._layout, np.random.default_rng(seed)
    chunks, indices = [], []
    for entry in layout.classes:
        count, topk = entry.chunks.size, entry.topk
        first = random.integers(0, entry.size, size=(count, 1))
        gap = max(1, entry.size // topk)
        places = (first + gap * np.arange(topk) + random.integers(0, gap, size=(count, topk))) % entry.size
        places.sort(axis=1)
        different = np.ones_like(places, dtype=bool)
        different[:, 1:] = places[:, 1:] != places[:, :-1]
        chunks.append(np.broadcast_to(entry.chunks[:, None], places.shape)[different])
        indices.append(places[different])
    joined = np.concatenate(chunks)
    signs = random.integers(0, 2, size=joined.size).astype(np.float32) * 2 - 1
    return codec.encode(layout, Selection(joined, np.concatenate(indices), signs), values=ValueFormat.SIGNS)


def _ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    """Measure one size and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=WIDTHS)
    parser.add_argument("--senders", default="1,8,32,256")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    print(json.dumps(_measured(given.size, [int(count) for count in given.senders.split(",")])))


if __name__ == "__main__":
    main()
