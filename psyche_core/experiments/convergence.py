"""Measures how an optimizer's settings change the loss: trains the same small model on the same tokens for each recipe and seed.

A seed determines the first weights and the order of the data, which are the same for every recipe. DisTrO and SparseLoCo are
trained by several members that share each batch, with the delay of two steps that a run has. AdamW is the plain optimizer on the
whole batch, without delay unless its recipe has one, so it is the best possible result. Every recipe uses the run file's schedule
with its own base rate. The table shows means and the spread over seeds; it does not name a best recipe.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from psyche_core.config.run_config import Choice
from psyche_core.coordinator.learning_rate import learning_rate
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.rate_groups import RateGroups
from psyche_core.training.local_run import LocalRun
from psyche_core.training.trainer import Trainer

PLAIN_ADAMW = "AdamW"
SPARSELOCO = "SparseLoCo"
BETAS, EPSILON, WEIGHT_DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """An optimizer with settings.

    optimizer: `AdamW`, or a plugin's name. rate: base learning rate of the schedule. settings: the plugin's; for AdamW they are
    `rates`, see `psyche_core.interfaces.rate_groups`; `delay`, the number of steps between computing a gradient and applying it
    (0 as in ordinary training, 2 as in a run); and `look_ahead`, whether weights that lack updates are extrapolated by the last
    update.
    """

    optimizer: str
    rate: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The settings that differ between recipes, for tables."""
        groups = _words(self.settings.get("rates") or {})
        if self.optimizer == PLAIN_ADAMW:
            delay = f", delay {self.settings['delay']}" if self.settings.get("delay") else ""
            ahead = ", look-ahead" if self.settings.get("look_ahead") else ""
            return f"AdamW, rate {self.rate:g}{delay}{ahead}{groups}"
        if self.optimizer == SPARSELOCO:
            chosen = "{inner_steps} steps, top {topk}, decay {error_decay:g}, outer {outer_rate:g}".format_map(self.settings)
            return f"{self.optimizer} {chosen}, rate {self.rate:g}{groups}"

        subtract = self.settings.get("compression_subtract", 1.0)
        kept = f", subtract {subtract:g}" if subtract != 1 else ""
        beta2 = self.settings.get("gradient_beta2")
        kept += "" if beta2 is None else f", beta2 {beta2:g}"
        stage = f", {self.settings['second_stage']}" if self.settings.get("second_stage") else ""
        kind = "1 bit" if self.settings.get("quantize_1bit") else f"{self.settings.get('value_bits', 16)} bit"
        return (
            f"{self.optimizer} {kind}, top {self.settings['compression_topk']}, decay {self.settings['compression_decay']:g}, "
            f"rate {self.rate:g}{kept}{stage}{groups}"
        )

    def as_settings(self) -> dict[str, Any]:
        """Return settings and base rate, for JSON."""
        return {**self.settings, "learning_rate": self.rate}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training.

    losses: (applied steps, validation loss in nats per token). bytes_per_step: mean size of one member's results.
    """

    recipe: Recipe
    seed: int
    losses: tuple[tuple[int, float], ...]
    bytes_per_step: float

    @property
    def validation_loss(self) -> float:
        """The last validation loss, in nats per token."""
        return self.losses[-1][1]

    def as_table(self) -> dict[str, Any]:
        """Return the outcome as a table for JSON."""
        return {
            "optimizer": self.recipe.optimizer,
            "settings": self.recipe.as_settings(),
            "seed": self.seed,
            "validation_loss": round(self.validation_loss, 4),
            "bytes_per_step": round(self.bytes_per_step),
            "losses": [[step, round(loss, 4)] for step, loss in self.losses],
        }

    @classmethod
    def of_table(cls, table: Mapping[str, Any]) -> Outcome:
        """Read the table that `as_table` made."""
        settings = dict(table["settings"])
        recipe = Recipe(table["optimizer"], settings.pop("learning_rate"), settings)
        losses = tuple((step, loss) for step, loss in table["losses"])
        return cls(recipe, table["seed"], losses, table["bytes_per_step"])


def usual_recipes(
    *, topk: Sequence[int] = (8, 16, 64), decays: Sequence[float] = (0.999, 0.995), adamw_rate: float, distro_rate: float
) -> Iterator[Recipe]:
    """Yield AdamW, and DisTrO with values and with signs for each number of coefficients and each decay."""
    yield Recipe(PLAIN_ADAMW, adamw_rate)
    for quantize in (False, True):
        for keep in topk:
            for decay in decays:
                settings = {
                    "clip_grad_norm": CLIP,
                    "weight_decay": WEIGHT_DECAY,
                    "compression_decay": decay,
                    "compression_topk": keep,
                    "compression_chunk": 64,
                    "quantize_1bit": quantize,
                }
                yield Recipe("Distro", distro_rate, settings)


def sparseloco_recipes(
    *, topk: Sequence[int] = (8, 16, 64), rate: float, inner_steps: int, outer_rate: float
) -> Iterator[Recipe]:
    """Yield SparseLoCo for each number of values in a chunk. A chunk has as many elements as one of DisTrO."""
    for keep in topk:
        settings = {
            "clip_grad_norm": CLIP,
            "weight_decay": WEIGHT_DECAY,
            "inner_steps": inner_steps,
            "topk": keep,
            "chunk_size": 4096,
            "error_decay": 0.95,
            "outer_rate": outer_rate,
        }
        yield Recipe(SPARSELOCO, rate, settings)


@dataclass(frozen=True, slots=True)
class Task:
    """The data of every training with one seed.

    rounds: each step's shares, one per member, in the order of their samples. held_out: data on which the loss is measured,
    every `every` steps.
    """

    rounds: Sequence[Sequence[Samples]]
    held_out: Samples
    every: int
    micro_batch_size: int = 8


def scaled_schedule(schedule: Choice, rate: float, *, steps: int) -> Choice:
    """Return a schedule with base rate `rate`, all other rates scaled in proportion, and `steps` steps in total."""
    table = dict(schedule.settings or {})
    factor = rate / table["base_lr"]
    scaled = {key: value * factor if key.endswith("_lr") else value for key, value in table.items()}
    if "total_steps" in scaled:
        scaled["total_steps"] = max(steps, scaled["warmup_steps"] + 1)
    return Choice(schedule.name, scaled)


def train_plain_adamw(task: Task, model: Model, recipe: Recipe, *, schedule: Choice, seed: int) -> Outcome:
    """Train with full gradients. bytes_per_step is the size of float32 gradients, which a member would send.

    They are applied at once, or with the recipe's `delay` d before step s + d, as results are in a run. With `look_ahead`, the
    gradient is computed at weights to which the last update is added once for each update that they lack.
    """
    parameters = list(model.parameters.values())
    optimizer = _adamw(model, recipe)
    delay, look_ahead = int(recipe.settings.get("delay", 0)), bool(recipe.settings.get("look_ahead", False))
    losses = [(0, model.loss(task.held_out, micro_batch_size=task.micro_batch_size))]
    waiting: deque[list[Tensor | None]] = deque()
    moved: list[Tensor] = []
    applied = 0

    @torch.no_grad()
    def apply() -> None:
        nonlocal applied, moved
        applied += 1
        for parameter, gradient in zip(parameters, waiting.popleft(), strict=True):
            parameter.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(schedule, applied) * group["rate"]
        before = [parameter.detach().clone() for parameter in parameters] if look_ahead else []
        optimizer.step()
        moved = [parameter.detach() - old for parameter, old in zip(parameters, before, strict=bool(before))]

    for step, shares in enumerate(task.rounds, start=1):
        if delay and step > delay:
            apply()
        masters = _move(parameters, moved, times=len(waiting))
        model.gradients(_together(shares), micro_batch_size=task.micro_batch_size)
        _restore(parameters, masters)
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        waiting.append([None if parameter.grad is None else parameter.grad.clone() for parameter in parameters])
        if not delay:
            apply()
        if step % task.every == 0 and step < len(task.rounds):
            losses.append((applied, model.loss(task.held_out, micro_batch_size=task.micro_batch_size)))
    while waiting:
        apply()
    losses.append((applied, model.loss(task.held_out, micro_batch_size=task.micro_batch_size)))
    return Outcome(recipe, seed, tuple(losses), 4.0 * sum(parameter.numel() for parameter in parameters))


def _adamw(model: Model, recipe: Recipe) -> torch.optim.AdamW:
    """Make AdamW with the recipe's rate groups. Each group's `rate` is its factor of the learning rate."""
    groups = RateGroups.model_validate(recipe.settings.get("rates") or {})
    rates = groups.tensor_rates({name: tuple(parameter.shape) for name, parameter in model.parameters.items()})
    each = []
    for name, parameter in model.parameters.items():
        rate = rates[name]
        decay = WEIGHT_DECAY * rate.weight_decay / rate.rate  # torch multiplies it by the tensor's rate, a run by the run's rate
        each.append({"params": [parameter], "rate": rate.rate, "weight_decay": decay})
    return torch.optim.AdamW(each, lr=recipe.rate, betas=BETAS, eps=EPSILON)


@torch.no_grad()
def _move(parameters: Sequence[Tensor], moved: Sequence[Tensor], *, times: int) -> list[Tensor]:
    """Add an update `times` times, if there is one. Return the values before; an empty list if nothing was added."""
    if not moved or not times:
        return []

    before = [parameter.detach().clone() for parameter in parameters]
    for parameter, step in zip(parameters, moved, strict=True):
        parameter.add_(step, alpha=times)
    return before


@torch.no_grad()
def _restore(parameters: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Undo `_move`."""
    for parameter, value in zip(parameters, before, strict=bool(before)):
        parameter.copy_(value)


def train_members(task: Task, trainers: Sequence[Trainer], recipe: Recipe, *, seed: int) -> Outcome:
    """Train several members, each with its own optimizer, with the same delay as in a run.

    trainers: made for this recipe and its schedule.
    """
    run, first = LocalRun(trainers), trainers[0]
    losses, sizes = [(0, first.evaluate(task.held_out))], []
    for step, shares in enumerate(task.rounds, start=1):
        sizes.append(run.train(step, shares).payload_bytes)
        if step % task.every == 0 and step < len(task.rounds):
            losses.append((run.applied, first.evaluate(task.held_out)))
    run.finish()
    losses.append((run.applied, first.evaluate(task.held_out)))
    return Outcome(recipe, seed, tuple(losses), statistics.fmean(sizes))


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a table of recipes by mean final loss, best first, with the spread over seeds."""
    by_recipe: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_recipe.setdefault(outcome.recipe.title, []).append(outcome)
    rows = []
    for title, same in by_recipe.items():
        losses = [outcome.validation_loss for outcome in same]
        spread = f"{min(losses):.4f} to {max(losses):.4f}" if len(losses) > 1 else ""
        rows.append((statistics.fmean(losses), title, spread, statistics.fmean(outcome.bytes_per_step for outcome in same)))
    lines = [f"{'':44} {'loss':>8}  {'over seeds':18} {'bytes a step':>12}"]
    lines += [f"{title:44} {loss:8.4f}  {spread:18} {round(size):12,}" for loss, title, spread, size in sorted(rows)]
    return "\n".join(lines)


def _words(rates: Mapping[str, Any]) -> str:
    """Return rate groups in few words, for tables; empty for none."""
    decays = {f"decay of {kind}": factor for kind, factor in rates.get("weight_decay", {}).items()}
    plain = {key: value for key, value in rates.items() if key not in ("weight_decay", "by_name")} | decays
    named = {
        f"{what} of {entry['pattern']}": entry[key]
        for entry in rates.get("by_name", ())
        for key, what in (("rate", "rate"), ("weight_decay", "decay"), ("kind", "kind"))
        if key in entry
    }
    every = (plain | named).items()
    return "".join(f", {key} {value:g}" if isinstance(value, (int, float)) else f", {key} {value}" for key, value in every)


def _together(shares: Sequence[Samples]) -> Samples:
    """Return all members' samples as one batch."""
    first = shares[0]
    tokens = b"".join(share.tokens for share in shares)
    return Samples(tokens, sum(share.count for share in shares), first.sequence_length, first.token_size)
