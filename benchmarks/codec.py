"""How small DisTrO's payload is, and what coding it costs, on the gradient of a 20 M-parameter Llama after a few real steps.

python -m benchmarks.codec [--size 20M] [--topk 8] [--steps 4] [--json]

bytes            the payload of the last step: header, positions and signs
bound_bytes      what positions and signs need if all subsets are equally likely: per chunk of n places with c coefficients
                 log2 C(n, c) + c bits. A real gradient is not uniform, so a code may be shorter
reference_bytes  the reference's layout: per coefficient a position of 1, 2 or 4 bytes and a bit
uniform_share    bytes by bound for as many positions drawn uniformly: how good the code itself is (goal: at most 1.05)
encode_ms, decode_ms, compress_ms   one thread; coding and decoding one peer, and the whole compress (goal: the two under 10 %)
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import llama
from psyche_optim_distro.chunks.layout import Layout, build_layout
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import Selection
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.value_format import ValueFormat

LEARNING_RATE = 1e-3
SEQUENCES = 16
REPEATS = 9


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=llama.SIZES, default="20M", help="model (default: 20M)")
    parser.add_argument("--topk", type=int, default=8, help="coefficients per chunk (default: 8)")
    parser.add_argument("--steps", type=int, default=4, help="training steps before the one that is measured (default: 4)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(given.size, topk=given.topk, steps=given.steps)
    sys.stdout.write(json.dumps(figures) + "\n" if given.json else _table(figures))


def measure(size: str, *, topk: int, steps: int) -> dict[str, Any]:
    """The figures of the module's docstring."""
    model = llama.build(size)
    optimizer = DistroOptimizer(DistroSettings(compression_topk=topk, quantize_1bit=True, clip_grad_norm=1.0), model)
    for step in range(1, steps + 1):
        optimizer.load_lookahead(learning_rate=LEARNING_RATE)
        model.gradients(llama.batch(SEQUENCES, step=step), micro_batch_size=SEQUENCES)
        began = time.perf_counter()
        payload = optimizer.compress(step, learning_rate=LEARNING_RATE)
        compress_ms = 1e3 * (time.perf_counter() - began)
        optimizer.apply(step, [payload], learning_rate=LEARNING_RATE, own_accepted=True)

    shapes = {name: tuple(tensor.shape) for name, tensor in model.parameters.items()}
    layout = build_layout(shapes, chunk=64, topk=topk)
    selection = codec.decode(layout, payload, values=ValueFormat.SIGNS)
    uniform = codec.encode(layout, _uniform(layout, selection), values=ValueFormat.SIGNS)
    bound = _bound_bits(layout, selection) / 8
    return {
        "params": llama.parameter_count(model),
        "bytes": len(payload),
        "bound_bytes": round(bound),
        "reference_bytes": _reference_bytes(layout),
        "uniform_share": round(len(uniform) / bound, 4),
        "encode_ms": _median_ms(lambda: codec.encode(layout, selection, values=ValueFormat.SIGNS)),
        "decode_ms": _median_ms(lambda: codec.decode(layout, payload, values=ValueFormat.SIGNS)),
        "compress_ms": round(compress_ms, 2),
    }


def _counts(layout: Layout, selection: Selection) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Coefficients per chunk."""
    return np.bincount(selection.chunks, minlength=layout.chunk_base.size)


def _bound_bits(layout: Layout, selection: Selection) -> float:
    counts = _counts(layout, selection)
    return sum(
        math.log2(math.comb(entry.size, int(count))) + int(count)
        for entry in layout.classes
        for count in counts[entry.chunks].tolist()
    )


def _reference_bytes(layout: Layout) -> int:
    """Reference: modeling 1.5 and 1.11. Every chunk sends its whole top-k there."""
    total = 0
    for entry in layout.classes:
        width = 1 if entry.size <= 2**8 else 2 if entry.size <= 2**16 else 4
        total += entry.chunks.size * entry.topk * width + math.ceil(entry.chunks.size * entry.topk / 8)
    return total


def _uniform(layout: Layout, selection: Selection) -> Selection:
    """As many coefficients in every chunk, at places drawn uniformly."""
    random = np.random.default_rng(5)
    counts = _counts(layout, selection)
    chunks = [chunk for entry in layout.classes for chunk in entry.chunks.tolist()]
    sizes = {chunk: entry.size for entry in layout.classes for chunk in entry.chunks.tolist()}
    indices = [np.sort(random.choice(sizes[chunk], counts[chunk], replace=False)) for chunk in chunks]
    return Selection(np.repeat(np.array(chunks), counts[chunks]), np.concatenate(indices), selection.values)


def _median_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(times), 2)


def _table(figures: dict[str, Any]) -> str:
    lines = [f"{name:16} {value:>12,}" for name, value in figures.items()]
    lines.append(f"{'bytes by bound':16} {figures['bytes'] / figures['bound_bytes']:>12.3f}")
    lines.append(f"{'coding share':16} {(figures['encode_ms'] + figures['decode_ms']) / figures['compress_ms']:>12.1%}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
