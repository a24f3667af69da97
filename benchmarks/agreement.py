"""What robust ways to count results take from a liar that no check has found, and what they cost honest runs.

    python -m benchmarks.agreement [--size 0.2M] [--steps 100] [--seeds 3] [--members 8] [--liars 2] [--json]

Signs travel (`quantize_1bit`). Members train a small Llama on Shakespeare as in `benchmarks.robustness`; the last ones replace
their honest results. A sender's agreement in a step is public and made of integers: at each coefficient that others sent, too,
one for the sign of their sum and minus one for the opposite. The ways:

    equal        every accepted result counts once, as in a run today
    excluded     a result does not count if its sender's agreement over the last ROUNDS steps is below none by SIGMAS standard
                 deviations of as many coins
    weighted     it counts twice where the agreement for each common coefficient is at least half of the members' median, once
                 where it is positive, and not where it is negative
    each         each result moves each parameter by one vote at most: the direction is the sign of the sum of the signs of all
                 results, each of them decoded alone (a vote clipped per sender)
    pairs        the same for two results at a time, which are drawn anew in each step (a median of means over groups)

and the lies:

    none         nobody lies
    flip         every sign
    half         every second sign
    alone        the signs of what no other member has sent: what the sender would do if it knew; it cannot, in a run
    random       random signs at the honest places

Figures: validation losses after the last step (nats per token), means over seeds; how many honest results did not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import llama
from benchmarks.robustness import DELAY, LENGTH, SEQUENCES, TOPK, distro_settings, optimizer_of, rate_of
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_optim_distro.chunks.layout import Layout, build_layout
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import Selection
from psyche_optim_distro.value_format import ValueFormat

WAYS = ("equal", "excluded", "weighted", "each", "pairs")
LIES = ("none", "flip", "half", "alone", "random")
GROUPED = {"each": 1, "pairs": 2}
"""Ways that decode so many results at a time."""
ROUNDS = 10
SIGMAS = 3.0
KIND = "signs"

Places = NDArray[np.int64]
Signs = NDArray[np.int64]


@dataclass(slots=True)
class Agreement:
    """The agreement of each sender with the others in the last ROUNDS steps. members: their number."""

    members: int
    steps: deque[list[tuple[int, int]]] = field(default_factory=lambda: deque(maxlen=ROUNDS))

    def add(self, sent: Sequence[tuple[Places, Signs]]) -> None:
        """Take in a step. sent: coefficients of each member, as numbers of the whole model, and their signs."""
        total = np.bincount(np.concatenate([places for places, _ in sent]), weights=np.concatenate([signs for _, signs in sent]))
        step = []
        for places, signs in sent:
            others = np.sign(total[places] - signs)
            step.append((int(np.sum(others * signs)), int(np.count_nonzero(others))))
        self.steps.append(step)

    def of(self, member: int) -> tuple[int, int]:
        """Sum of agreements, and number of common coefficients."""
        both = [step[member] for step in self.steps]
        return sum(agreed for agreed, _ in both), sum(common for _, common in both)

    def weights(self, way: str) -> list[int]:
        """How often each member's next result counts."""
        found = [self.of(member) for member in range(self.members)]
        if way in ("equal", *GROUPED) or not self.steps:
            return [1] * self.members
        if way == "excluded":
            return [int(agreed >= -SIGMAS * common**0.5) for agreed, common in found]

        shares = [agreed / max(1, common) for agreed, common in found]
        middle = statistics.median(shares)
        return [0 if share < 0 else 2 if share >= middle / 2 else 1 for share in shares]


class Grouped:
    """Moves masters in the direction that most groups of results would move them in. group: results in each."""

    def __init__(self, model: Model, group: int, seed: int) -> None:
        settings = distro_settings(KIND)
        self._decay = settings.weight_decay or 0.0
        self._group = group
        self._generator = np.random.default_rng(seed)
        self._decoder = DistroOptimizer(settings.model_copy(update={"weight_decay": 0.0}), model)
        self._zeros = {name: torch.zeros_like(tensor) for name, tensor in self._decoder.masters.items()}

    def apply(self, optimizers: Sequence[Optimizer], payloads: Sequence[bytes], *, step: int, rate: float) -> None:
        """Settle the step, and move all masters by `rate` at most."""
        total = {name: torch.zeros_like(tensor) for name, tensor in self._zeros.items()}
        order = self._generator.permutation(len(payloads))
        for at in range(0, len(payloads), self._group):
            self._decoder.load_parameters(self._zeros)
            counted = [payloads[number] for number in order[at : at + self._group]]
            self._decoder.apply(step, counted, learning_rate=rate, own_accepted=True)
            for name, moved in self._decoder.masters.items():
                total[name] += torch.sign(moved)
        for optimizer in optimizers:
            optimizer.apply(step, [], learning_rate=rate, own_accepted=True)
            for name, masters in optimizer.masters.items():
                masters.mul_(1 - rate * self._decay).add_(torch.sign(total[name]), alpha=rate)


def lie_about(lie: str, honest: Selection, others: Places, places: Places, generator: np.random.Generator) -> Selection:
    """What a liar sends. others: coefficients that others send. places: of the honest ones, as numbers of the whole model."""
    signs = honest.values
    match lie:
        case "flip":
            signs = -signs
        case "half":
            signs = np.where(np.arange(signs.size) % 2 == 0, -signs, signs)
        case "alone":
            signs = np.where(np.isin(places, others), signs, -signs)
        case "random":
            signs = generator.choice(np.array([-1.0, 1.0], dtype=np.float32), signs.size)
    return Selection(honest.chunks, honest.indices, signs.astype(np.float32))


def train(way: str, lie: str, *, size: str, steps: int, members: int, liars: int, seed: int) -> tuple[float, int]:
    """The validation loss after so many steps, and how many honest results did not count."""
    models = [llama.build(size, seed=seed, sequence_length=LENGTH) for _ in range(members)]
    optimizers: list[Optimizer] = [optimizer_of(KIND, model) for model in models]
    layout = layout_of(models[0])
    generator = np.random.default_rng(seed)
    grouped = Grouped(models[0], GROUPED[way], seed) if way in GROUPED else None
    agreement = Agreement(members)
    honest = members if lie == "none" else members - liars
    waiting: dict[int, list[tuple[bytes, int]]] = {}
    lost = 0
    for step in range(1, steps + 1 + DELAY):
        if step > DELAY:
            results_due, rate = waiting.pop(step - DELAY), rate_of(step, steps)
            if grouped is None:
                _apply(optimizers, results_due, step=step - DELAY, rate=rate)
            else:
                grouped.apply(optimizers, [payload for payload, _ in results_due], step=step - DELAY, rate=rate)
        if step > steps:
            continue
        results = _results(models, optimizers, step=step, steps=steps, seed=seed)
        decoded = [codec.decode(layout, payload, values=ValueFormat.SIGNS) for payload in results]
        numbers = [numbers_of(layout, each) for each in decoded]
        for liar in range(honest, members):
            others = np.concatenate([numbers[member] for member in range(members) if member != liar])
            decoded[liar] = lie_about(lie, decoded[liar], others, numbers[liar], generator)
            results[liar] = codec.encode(layout, decoded[liar], values=ValueFormat.SIGNS)
        weights = agreement.weights(way)
        lost += weights[:honest].count(0)
        waiting[step] = list(zip(results, weights, strict=True))
        agreement.add([(places, each.values.astype(np.int64)) for places, each in zip(numbers, decoded, strict=True)])
    optimizers[0].load_masters()
    loss = models[0].loss(llama.batch(64, step=0, part="validation", sequence_length=LENGTH), micro_batch_size=64)
    return loss, lost


def layout_of(model: Model) -> Layout:
    """The parameter table of all members."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.parameters.items()}
    return build_layout(shapes, chunk=distro_settings(KIND).compression_chunk, topk=TOPK)


def numbers_of(layout: Layout, selection: Selection) -> Places:
    """Each coefficient's number in the whole model: those of different chunks differ."""
    largest = max(entry.size for entry in layout.classes)
    return selection.chunks.astype(np.int64) * largest + selection.indices


def _results(models: Sequence[Model], optimizers: Sequence[Optimizer], *, step: int, steps: int, seed: int) -> list[bytes]:
    rate, found = rate_of(step, steps), []
    for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        optimizer.load_lookahead(learning_rate=rate)
        share = llama.batch(SEQUENCES, step=step * len(models) + number, seed=seed, sequence_length=LENGTH)
        model.gradients(share, micro_batch_size=SEQUENCES)
        found.append(optimizer.compress(step, learning_rate=rate))
    return found


def _apply(optimizers: Sequence[Optimizer], results: list[tuple[bytes, int]], *, step: int, rate: float) -> None:
    counted = [payload for payload, weight in results for _ in range(weight)]  # equal payloads count separately
    for optimizer, (_, weight) in zip(optimizers, results, strict=True):
        optimizer.apply(step, counted, learning_rate=rate, own_accepted=weight > 0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=llama.SIZES, default="0.2M", help="model (default: 0.2M)")
    parser.add_argument("--steps", type=int, default=100, help="steps of each training (default: 100)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: 3)")
    parser.add_argument("--members", type=int, default=8, help="members (default: 8)")
    parser.add_argument("--liars", type=int, default=2, help="of them (default: 2)")
    parser.add_argument("--lies", default=",".join(LIES), help="which, with commas between (default: all)")
    parser.add_argument("--ways", default=",".join(WAYS), help="which, with commas between (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args()
    lies, ways = given.lies.split(","), given.ways.split(",")
    if not set(lies) <= set(LIES) or not set(ways) <= set(WAYS):
        parser.error(f"--lies are some of {', '.join(LIES)}, --ways some of {', '.join(WAYS)}")

    torch.set_num_threads(1)
    losses: dict[str, dict[str, list[float]]] = {}
    lost: dict[str, dict[str, int]] = {}
    for way in ways:
        losses[way], lost[way] = {}, {}
        for lie in lies:
            runs = [
                train(way, lie, size=given.size, steps=given.steps, members=given.members, liars=given.liars, seed=seed)
                for seed in range(given.seeds)
            ]
            losses[way][lie] = [round(loss, 4) for loss, _ in runs]
            lost[way][lie] = sum(count for _, count in runs)
            print(f"{way}, {lie}: {losses[way][lie]}, {lost[way][lie]} honest results did not count", file=sys.stderr, flush=True)
    if given.json:
        facts = {"size": given.size, "steps": given.steps, "members": given.members, "liars": given.liars}
        print(json.dumps({**facts, "loss": losses, "honest_results_lost": lost}))
        return

    print(f"{'':10}" + "".join(f"{lie:>9}" for lie in lies))
    for way in ways:
        print(f"{way:10}" + "".join(f"{statistics.mean(losses[way][lie]):9.3f}" for lie in lies))


if __name__ == "__main__":
    main()
