"""The convergence experiment: what a recipe with rate groups trains and how tables name it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from psyche_core.config.run_config import Choice
from psyche_core.experiments.convergence import PLAIN_ADAMW, WEIGHT_DECAY, Recipe, Task, train_plain_adamw
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
