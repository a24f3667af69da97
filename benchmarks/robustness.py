"""What one liar of four does to the loss: DisTrO with signs, DisTrO with values, and AdamW, beside honest runs of each.

python -m benchmarks.robustness [--size 0.2M] [--steps 100] [--seed 0] [--optimizers signs,values,adamw] [--lies none,flip,...]
                                [--json]

Four members train a small Llama on Shakespeare, 16 sequences of 64 tokens a step, with the two steps' delay of a run; the last
member replaces its honest result:

flip     every value's sign
few      every sign, and one value of each chunk (AdamW: one in 64) as large as the format allows
huge     every sign, and all values as large as the format allows
one      every sign, and all values next to nothing but the largest of each chunk (AdamW: one in 64), which is as in `few`
random   normal numbers at the chunk's (AdamW: the result's) own root mean square, at the places of the honest result

Where signs travel, flip, few, huge and one are the same lie. Figures are validation losses after the last step, nats per token.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import llama
from psyche_core.builtin.adamw import HEADER, AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_optim_distro.chunks.layout import Layout, build_layout
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import Selection
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.value_format import ValueFormat

MEMBERS = 4
SEQUENCES = 4
LENGTH = 64
TOPK = 16
RATE, WARMUP = 2e-3, 20
DELAY = 2
LIES = ("none", "flip", "few", "huge", "one", "random")
OPTIMIZERS = ("signs", "values", "adamw")
NEXT_TO_NOTHING = 1e-30

Floats = NDArray[np.float64]
Lie = Callable[[bytes], bytes]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=llama.SIZES, default="0.2M", help="model (default: 0.2M)")
    parser.add_argument("--steps", type=int, default=100, help="steps of each training (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data and lies (default: 0)")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS), help="which, with commas between (default: all)")
    parser.add_argument("--lies", default=",".join(LIES), help="which, with commas between (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args()
    optimizers, lies = given.optimizers.split(","), given.lies.split(",")
    if not set(optimizers) <= set(OPTIMIZERS) or not set(lies) <= set(LIES):
        parser.error(f"--optimizers are some of {', '.join(OPTIMIZERS)}, --lies some of {', '.join(LIES)}")

    torch.set_num_threads(1)
    losses: dict[str, dict[str, float]] = {}
    for optimizer in optimizers:
        known: dict[str, float] = {}
        losses[optimizer] = {}
        for lie in lies:
            same = "flip" if optimizer == "signs" and lie in ("few", "huge", "one") else lie
            if same not in known:
                known[same] = round(train(optimizer, same, size=given.size, steps=given.steps, seed=given.seed), 4)
            losses[optimizer][lie] = known[same]
    figures = {"size": given.size, "members": MEMBERS, "steps": given.steps, "seed": given.seed, "loss": losses}
    sys.stdout.write(json.dumps(figures) + "\n" if given.json else _table(losses, lies))


def train(kind: str, lie: str, *, size: str, steps: int, seed: int) -> float:
    """The validation loss after so many steps. Raises AssertionError when the members' masters differ in the end."""
    models = [llama.build(size, seed=seed, sequence_length=LENGTH) for _ in range(MEMBERS)]
    members = [optimizer_of(kind, model) for model in models]
    liar = liar_of(kind, lie, models[0], np.random.default_rng(seed))
    waiting: dict[int, Sequence[bytes]] = {}
    for step in range(1, steps + 1 + DELAY):
        for member in members if step > DELAY else ():
            rate = rate_of(step, steps)
            member.apply(step - DELAY, waiting[step - DELAY], learning_rate=rate, own_accepted=True)
        if step <= steps:
            waiting[step] = _results(models, members, liar, step=step, rate=rate_of(step, steps), seed=seed)
    first = members[0].masters
    assert all(torch.equal(first[name], member.masters[name]) for member in members for name in first)
    members[0].load_masters()
    return models[0].loss(llama.batch(64, step=0, part="validation", sequence_length=LENGTH), micro_batch_size=64)


def _results(
    models: Sequence[Model], members: Sequence[Optimizer], liar: Lie, *, step: int, rate: float, seed: int
) -> list[bytes]:
    """All members' payloads of a step, the liar's last."""
    payloads = []
    for number, (model, member) in enumerate(zip(models, members, strict=True)):
        member.load_lookahead(learning_rate=rate)
        share = llama.batch(SEQUENCES, step=step * MEMBERS + number, seed=seed, sequence_length=LENGTH)
        model.gradients(share, micro_batch_size=SEQUENCES)
        payloads.append(member.compress(step, learning_rate=rate))
    payloads[-1] = liar(payloads[-1])
    members[0].check(payloads[-1])
    return payloads


def rate_of(step: int, steps: int) -> float:
    """Up to RATE, then along a cosine to a tenth of it."""
    warmed = min(1.0, step / WARMUP)
    left = 0.5 + 0.5 * math.cos(math.pi * min(1.0, max(0, step - WARMUP) / max(1, steps - WARMUP)))
    return RATE * (0.1 + 0.9 * min(warmed, left))


def optimizer_of(kind: str, model: Model) -> Optimizer:
    """One member's."""
    if kind == "adamw":
        return AdamW(AdamWSettings(clip_grad_norm=1.0), model)

    return DistroOptimizer(distro_settings(kind), model)


def distro_settings(kind: str) -> DistroSettings:
    """Of signs or values."""
    return DistroSettings(compression_topk=TOPK, quantize_1bit=kind == "signs", clip_grad_norm=1.0, weight_decay=0.1)


def liar_of(kind: str, lie: str, model: Model, generator: np.random.Generator) -> Lie:
    """What makes a lie of an honest payload."""
    if lie == "none":
        return lambda payload: payload

    if kind == "adamw":
        bound = AdamWSettings().bound
        return lambda payload: _dense_lie(payload, lie, bound, generator)

    settings = distro_settings(kind)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.parameters.items()}
    layout = build_layout(shapes, chunk=settings.compression_chunk, topk=TOPK)
    return lambda payload: _sparse_lie(payload, lie, layout, settings.values, generator)


def _sparse_lie(payload: bytes, lie: str, layout: Layout, form: ValueFormat, generator: np.random.Generator) -> bytes:
    honest = codec.decode(layout, payload, values=form)
    starts = np.flatnonzero(np.diff(honest.chunks, prepend=-1))
    values = honest.values.astype(np.float64)
    lies = _lies(values, starts, lie, codec.MAX_VALUE, generator).astype(np.float32)
    return codec.encode(layout, Selection(honest.chunks, honest.indices, codec.as_sent(lies, form)), values=form)


def _dense_lie(payload: bytes, lie: str, bound: float, generator: np.random.Generator) -> bytes:
    bits = np.frombuffer(payload, "<u2", offset=HEADER.size).astype(np.uint32) << 16
    values = bits.view(np.float32).astype(np.float64)
    starts = np.arange(0, values.size, 64) if lie != "random" else np.zeros(1, np.int64)
    lies = _lies(values, starts, lie, bound, generator).clip(-bound, bound)
    sent = torch.from_numpy(lies).to(torch.bfloat16).view(torch.int16).numpy()
    return payload[: HEADER.size] + sent.astype("<i2").tobytes()


def _lies(values: Floats, starts: NDArray[np.int64], lie: str, largest: float, generator: np.random.Generator) -> Floats:
    """In place of honest values [n], which come in parts that begin at `starts`."""
    against = -np.sign(values)
    if lie == "flip":
        return -values

    if lie == "huge":
        return against * largest

    if lie == "random":
        counts = np.diff(starts, append=values.size)
        root = np.sqrt(np.add.reduceat(values * values, starts) / counts)
        noise: NDArray[np.float64] = generator.standard_normal(values.size) * np.repeat(root, counts)
        return noise

    places = np.array([part[np.argmax(np.abs(values[part]))] for part in np.split(np.arange(values.size), starts[1:])])
    lies = -values if lie == "few" else against * NEXT_TO_NOTHING
    lies[places] = against[places] * largest
    return lies


def _table(losses: dict[str, dict[str, float]], lies: Sequence[str]) -> str:
    lines = [f"{'':8}" + "".join(f"{lie:>9}" for lie in lies)]
    lines += [f"{kind:8}" + "".join(f"{row[lie]:9.3f}" for lie in lies) for kind, row in losses.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
