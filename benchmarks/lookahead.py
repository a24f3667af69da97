"""What another look-ahead costs in loss: one that a verifier could follow without being shown the signs of delta.

    python -m benchmarks.lookahead [--size 0.2M] [--steps 200] [--seeds 3] [--members 4] [--json]

Members train a small Llama on Shakespeare with the example's DisTrO settings and the delay of a run: the results of a step are
applied before the next but one. Before it computes a gradient, a member moves its weights to where the results in flight may
move them:

    delta        by the signs of its delta, as a run does; a verifier must be shown them, one bit for each parameter
    payload      by its own result in flight, decoded: everybody has it, so nothing needs to be shown
    none         not at all

Figures: validation losses after the last step (nats per token), of each seed and in the mean.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tomllib

import torch

from benchmarks import llama
from benchmarks.robustness import DELAY, LENGTH, SEQUENCES, rate_of
from psyche_core.interfaces.model import Model
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings

AHEAD = ("delta", "payload", "none")
STATE = llama.EXAMPLE / "state.toml"


def example_settings() -> DistroSettings:
    """The optimizer's settings of the local testnet."""
    with STATE.open("rb") as file:
        return DistroSettings.model_validate(tomllib.load(file)["model"]["LLM"]["optimizer"]["Distro"])


class Decoder:
    """Decodes one result at a time: where it alone would move weights of zero."""

    def __init__(self, settings: DistroSettings, model: Model) -> None:
        self._optimizer = DistroOptimizer(settings.model_copy(update={"weight_decay": 0.0}), model)
        self._zeros = {name: torch.zeros_like(tensor) for name, tensor in self._optimizer.masters.items()}

    def add_to(self, model: Model, payload: bytes, *, step: int, rate: float) -> None:
        """Move a model's compute weights as the payload of this step would."""
        self._optimizer.load_parameters(self._zeros)
        self._optimizer.apply(step, [payload], learning_rate=rate, own_accepted=False)
        moved = self._optimizer.masters
        for name, parameter in model.parameters.items():
            parameter.data.add_(moved[name])


def train(ahead: str, *, size: str, steps: int, members: int, seed: int) -> float:
    """The validation loss after so many steps."""
    settings = example_settings()
    models = [llama.build(size, seed=seed, sequence_length=LENGTH) for _ in range(members)]
    optimizers = [DistroOptimizer(settings, model) for model in models]
    decoder = Decoder(settings, models[0])
    waiting: dict[int, list[bytes]] = {}
    for step in range(1, steps + 1 + DELAY):
        rate = rate_of(step, steps)
        if step > DELAY:
            for optimizer in optimizers:
                optimizer.apply(step - DELAY, waiting[step - DELAY], learning_rate=rate, own_accepted=True)
            del waiting[step - DELAY]
        if step > steps:
            continue
        results = []
        for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            if ahead == "delta":
                optimizer.load_lookahead(learning_rate=rate)
            else:
                optimizer.load_masters()
            if ahead == "payload":
                for flying in sorted(waiting):
                    decoder.add_to(model, waiting[flying][number], step=flying, rate=rate)
            share = llama.batch(SEQUENCES, step=step * members + number, seed=seed, sequence_length=LENGTH)
            model.gradients(share, micro_batch_size=SEQUENCES)
            results.append(optimizer.compress(step, learning_rate=rate))
        waiting[step] = results
    optimizers[0].load_masters()
    return models[0].loss(llama.batch(64, step=0, part="validation", sequence_length=LENGTH), micro_batch_size=64)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=llama.SIZES, default="0.2M", help="model (default: 0.2M)")
    parser.add_argument("--steps", type=int, default=200, help="steps of each training (default: 200)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: 3)")
    parser.add_argument("--members", type=int, default=4, help="members (default: 4)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args()

    torch.set_num_threads(1)
    losses: dict[str, list[float]] = {ahead: [] for ahead in AHEAD}
    for seed in range(given.seeds):
        for ahead in AHEAD:
            loss = train(ahead, size=given.size, steps=given.steps, members=given.members, seed=seed)
            losses[ahead].append(round(loss, 4))
            print(f"{ahead}, seed {seed}: {loss:.4f}", file=sys.stderr, flush=True)
    means = {ahead: round(statistics.mean(found), 4) for ahead, found in losses.items()}
    if given.json:
        facts = {"size": given.size, "steps": given.steps, "members": given.members}
        print(json.dumps({**facts, "loss": losses, "mean": means}))
        return

    for ahead in AHEAD:
        print(f"{ahead:8} {means[ahead]:7.3f}   {', '.join(f'{loss:.3f}' for loss in losses[ahead])}")


if __name__ == "__main__":
    main()
