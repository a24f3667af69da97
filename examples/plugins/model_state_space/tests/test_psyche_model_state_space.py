"""What is particular to StateSpace."""

import json
from pathlib import Path

import pytest
import torch
from psyche_model_state_space.hooks import create
from psyche_model_state_space.model import Layer, create_model

from psyche_core.errors import ModelError
from psyche_core.hookspecs import ModelContext


def test_a_configuration_without_a_width_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 61}')
    with pytest.raises(ModelError, match="hidden_size"):
        create(ModelContext(source=tmp_path, max_seq_len=8, seed=bytes(32), device="cpu"))


def test_a_layer_is_the_recurrence_step_by_step() -> None:
    torch.manual_seed(1)
    layer = Layer(8, 6)
    torch.nn.init.uniform_(layer.decay, -2.0, 2.0)
    x = torch.randn(2, 5, 8)
    signal, gate = layer.inner(layer.norm(x)).chunk(2, dim=-1)
    state = torch.zeros(2, 6)
    for step in range(5):
        state = torch.sigmoid(layer.decay) * state + signal[:, step]
        expected = x[:, step] + layer.outer(state * torch.nn.functional.silu(gate[:, step]))
        torch.testing.assert_close(layer(x)[:, step], expected)


def test_no_position_sees_a_later_one(tmp_path: Path) -> None:
    config = {"vocab_size": 61, "hidden_size": 16, "state_size": 24, "num_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = create_model(ModelContext(source=tmp_path, max_seq_len=8, seed=bytes(32), device="cpu"))
    ids = torch.arange(8)[None]
    changed = ids.clone()
    changed[0, 5] = 60
    with torch.no_grad():
        one, other = model.module(ids), model.module(changed)
    assert torch.equal(one[:, :5], other[:, :5])
    assert not torch.equal(one[:, 5:], other[:, 5:])
