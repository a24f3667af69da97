"""The convergence experiment: what a recipe with rate groups trains and how tables name it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from psyche_core.config.run_config import Choice
from psyche_core.experiments.convergence import (
    BETAS,
    CLIP,
    EPSILON,
    PLAIN_ADAMW,
    WEIGHT_DECAY,
    Recipe,
    Task,
    sparseloco_recipes,
    train_plain_adamw,
)
from psyche_core.interfaces.data import Samples
from psyche_core.testing.toy_model import ToyModel, toy_samples

RATES: dict[str, Any] = {"embedding": 8.0, "norm": 3.0, "weight_decay": {"norm": 0.0, "matrix": 5.0}}


@pytest.mark.parametrize(
    ("name", "rate", "decay"), [("embed.weight", 8.0, 1.0), ("odd.bias", 3.0, 0.0), ("layers.10.mlp.weight", 1.0, 5.0)]
)
def test_plain_adamw_takes_the_step_of_the_tensor_s_group(name: str, rate: float, decay: float) -> None:
    """AdamW's first step is the rate in the gradient's direction; the decay has the run's rate in it, as the optimizers' own."""
    model = ToyModel()
    before = {each: parameter.detach().clone() for each, parameter in model.parameters.items()}
    model.gradients(toy_samples(1), micro_batch_size=8)
    gradient = model.parameters[name].grad
    assert gradient is not None
    direction = torch.sign(gradient)

    schedule = Choice("Constant", {"base_lr": 0.01, "warmup_init_lr": 0.0, "warmup_steps": 0})
    task = Task([[toy_samples(1)]], toy_samples(9), every=1)
    train_plain_adamw(task, model, Recipe(PLAIN_ADAMW, 0.01, {"rates": RATES}), schedule=schedule, seed=0)
    expected = before[name] * (1 - 0.01 * WEIGHT_DECAY * decay) - 0.01 * rate * direction
    torch.testing.assert_close(model.parameters[name].detach(), expected, rtol=0, atol=1e-4 * rate)


def test_recipes_that_differ_in_their_groups_have_other_titles() -> None:
    """A report knows what was trained by its title."""
    plain = {"compression_topk": 8, "compression_decay": 0.999, "quantize_1bit": True}
    named: dict[str, Any] = {"by_name": [{"pattern": "*.gate.*", "rate": 2.0}]}
    tables: list[dict[str, Any]] = [{}, {"rates": {"norm": 3.0}}, {"rates": RATES}, {"rates": {**RATES, **named}}]
    titles = [Recipe("Distro", 0.001, {**plain, **table}).title for table in tables]
    assert titles[0] == "Distro 1 bit, top 8, decay 0.999, rate 0.001"
    assert titles[1] == f"{titles[0]}, norm 3"
    assert titles[2] == f"{titles[0]}, embedding 8, norm 3, decay of norm 0, decay of matrix 5"
    assert titles[3] == f"{titles[2]}, rate of *.gate.* 2"
    assert Recipe(PLAIN_ADAMW, 0.001, {"rates": {"norm": 3.0}}).title == "AdamW, rate 0.001, norm 3"


def test_recipes_of_sparseloco_say_what_differs() -> None:
    titles = [recipe.title for recipe in sparseloco_recipes(topk=(8, 64), rate=0.002, inner_steps=4, outer_rate=1.5)]
    assert titles[0] == "SparseLoCo 4 steps, top 8, decay 0.95, outer 1.5, rate 0.002"
    assert len(set(titles)) == 2


def test_a_delay_applies_the_same_gradients_later() -> None:
    """With a delay of two, the first two gradients are those of the first weights, and so are both updates."""
    schedule = Choice("Constant", {"base_lr": 0.01, "warmup_init_lr": 0.0, "warmup_steps": 0})
    task = Task([[toy_samples(1)], [toy_samples(2)]], toy_samples(9), every=1)
    delayed, expected = ToyModel(), ToyModel()
    outcome = train_plain_adamw(task, delayed, Recipe(PLAIN_ADAMW, 0.01, {"delay": 2}), schedule=schedule, seed=0)
    gradients = []
    for number in (1, 2):
        expected.gradients(toy_samples(number), micro_batch_size=8)
        torch.nn.utils.clip_grad_norm_(list(expected.parameters.values()), CLIP)
        gradients.append([each.grad.clone() for each in expected.parameters.values() if each.grad is not None])
    plain = torch.optim.AdamW(expected.parameters.values(), lr=0.01, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY)
    for gradient in gradients:
        for parameter, own in zip(expected.parameters.values(), gradient, strict=True):
            parameter.grad = own
        plain.step()
    for name, parameter in expected.parameters.items():
        torch.testing.assert_close(delayed.parameters[name], parameter, rtol=1e-6, atol=1e-7)
    assert [step for step, _ in outcome.losses] == [0, 0, 2]


def test_look_ahead_trains_on_weights_moved_on_by_the_last_update_and_gives_them_back() -> None:
    schedule = Choice("Constant", {"base_lr": 0.01, "warmup_init_lr": 0.0, "warmup_steps": 0})
    seen: list[torch.Tensor] = []

    class Watched(ToyModel):
        def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:
            seen.append(self.parameters["embed.weight"].detach().clone())
            return super().gradients(samples, micro_batch_size=micro_batch_size)

    task = Task([[toy_samples(number)] for number in (1, 2, 3, 4)], toy_samples(9), every=1)
    train_plain_adamw(task, Watched(), Recipe(PLAIN_ADAMW, 0.01, {"delay": 2, "look_ahead": True}), schedule=schedule, seed=0)
    ahead, seen = seen, []
    train_plain_adamw(task, Watched(), Recipe(PLAIN_ADAMW, 0.01, {"delay": 2}), schedule=schedule, seed=0)
    assert torch.equal(ahead[0], seen[0])
    assert torch.equal(ahead[1], seen[1])
    update = seen[2] - seen[0]
    assert update.abs().max() > 0.005
    torch.testing.assert_close(ahead[2], seen[2] + update, rtol=0, atol=1e-6)
    torch.testing.assert_close(ahead[3], 2 * seen[3] - seen[2], rtol=0, atol=1e-6)


def test_recipes_that_differ_in_what_makes_a_step_have_other_titles() -> None:
    plain = {"compression_topk": 8, "compression_decay": 0.999, "quantize_1bit": True}
    tables: list[dict[str, Any]] = [{}, {"compression_subtract": 0.5}, {"second_stage": "clip"}]
    titles = [Recipe("Distro", 0.001, {**plain, **table}).title for table in tables]
    assert titles[1:] == [f"{titles[0]}, subtract 0.5", f"{titles[0]}, clip"]
    assert Recipe(PLAIN_ADAMW, 0.001, {"delay": 2, "look_ahead": True}).title == "AdamW, rate 0.001, delay 2, look-ahead"
