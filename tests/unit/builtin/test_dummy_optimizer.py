"""The optimizer that changes nothing: run files may name it, weights stay, other bytes are refused."""

from __future__ import annotations

import pytest
import torch

from psyche_core.builtin.dummy_optimizer import PAYLOAD, DummyOptimizer
from psyche_core.errors import ModelError, PayloadRejected
from psyche_core.hookspecs import OptimizerContext, OptimizerRegistration
from psyche_core.plugins import PluginRegistry, validate_settings
from psyche_core.testing.toy_model import ToyModel, toy_samples


def test_a_run_file_names_it_and_training_changes_nothing() -> None:
    registration = PluginRegistry.discover().load("optimizer", "Dummy")
    assert isinstance(registration, OptimizerRegistration)
    settings = validate_settings(registration, None, where="the test")
    model = ToyModel()
    first = {name: tensor.detach().clone() for name, tensor in model.parameters.items()}
    optimizer = registration.create(OptimizerContext(settings=settings, model=model))
    for step in (1, 2, 3):
        optimizer.load_lookahead(learning_rate=0.1)
        model.gradients(toy_samples(step), micro_batch_size=4)
        payload = optimizer.compress(step, learning_rate=0.1)
        optimizer.check(payload)
        assert len(payload) <= optimizer.max_payload_bytes
        optimizer.apply(step, [payload, payload], learning_rate=0.1, own_accepted=True)
    assert all(torch.equal(first[name], master) for name, master in optimizer.masters.items())


def test_other_payloads_and_parameters_are_refused() -> None:
    optimizer = DummyOptimizer(ToyModel())
    for payload in (b"", PAYLOAD[:-1], PAYLOAD + b"x"):
        with pytest.raises(PayloadRejected, match="always the same 9 bytes"):
            optimizer.check(payload)
    with pytest.raises(ModelError):
        optimizer.load_parameters({})
    doubled = {name: master * 2 for name, master in optimizer.masters.items()}
    optimizer.load_parameters(doubled)
    assert all(torch.equal(doubled[name], master) for name, master in optimizer.masters.items())
