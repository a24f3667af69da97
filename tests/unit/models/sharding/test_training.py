"""Training with a divided model is training with the whole one: payloads, 20 rounds, checkpoints. The transform runs once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from psyche_core.builtin.hf_models import create_auto, divide
from psyche_core.errors import ModelError, NonFiniteError
from psyche_core.hookspecs import ModelContext, Parallelism
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from psyche_core.models.hf.model import HfModel
from psyche_core.models.sharding.controller import RankController
from psyche_core.models.sharding.dtensor import DTensorEngine
from psyche_core.models.sharding.model import ShardedModel
from psyche_core.testing.model import ModelConformance, gradients_of
from psyche_core.testing.tiny_models import TIED_LLAMA
from psyche_core.training.checkpoints.checkpoint import save_checkpoint
from psyche_core.training.checkpoints.manifest import CheckpointFacts
from psyche_core.training.trainer import Trained, Trainer
from psyche_optim_distro.chunks.precision import Precision
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.settings import DistroSettings

samples = ModelConformance().samples
CONFIG = {**TIED_LLAMA, "hidden_size": 64, "intermediate_size": 128}
LEARNING_RATE = 1e-3
ROUNDS = 20


@pytest.fixture(scope="module")
def controller() -> Iterator[RankController]:
    torch.set_num_threads(1)
    controller = RankController(Parallelism(tensor=2), device_name="cpu")
    yield controller
    assert controller.close() == {1: 0}, "ranks that are told to end do so in good order"


@pytest.fixture
def context(tmp_path: Path) -> ModelContext:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(json.dumps(CONFIG))
    return ModelContext(source=tmp_path / "source", max_seq_len=16, seed=bytes(32), device="cpu")


def divided(context: ModelContext, controller: RankController, *, data: int = 1, tensor: int = 2) -> ShardedModel:
    parallelism = Parallelism(data=data, tensor=tensor)
    return divide(
        ModelContext(
            source=context.source,
            max_seq_len=context.max_seq_len,
            seed=context.seed,
            device="cpu",
            parallelism=parallelism,
            create_engine=DTensorEngine,
        ),
        controller=controller,
    )


def trainer_of(model: Model) -> tuple[Trainer, DistroOptimizer]:
    settings = DistroSettings(compression_decay=0.999, compression_topk=8, compression_chunk=64)
    optimizer = DistroOptimizer(settings, model, precision=Precision())  # float32: few near ties that rounding could swap
    return Trainer(model=model, optimizer=optimizer, learning_rate=lambda _: LEARNING_RATE, micro_batch_size=2), optimizer


def shares(model: Model) -> list[Samples]:
    return [samples(model, count=4, sequence_length=16, seed=step) for step in range(ROUNDS)]


def train(model: Model) -> tuple[list[bytes], list[float], dict[str, torch.Tensor]]:
    """Payloads, losses and masters of 20 rounds, each applied two steps late."""
    trainer, optimizer = trainer_of(model)
    done: list[Trained] = []
    for step, share in enumerate(shares(model), start=1):
        if step > 2:
            trainer.apply(step - 2, [done[step - 3].payload], own_accepted=True)
        done.append(trainer.train(step, share))
    return (
        [one.payload for one in done],
        [one.loss for one in done],
        {name: tensor.clone() for name, tensor in optimizer.masters.items()},
    )


def chosen(optimizer: DistroOptimizer, payload: bytes) -> set[tuple[int, int]]:
    selection = codec.decode(optimizer._layout, payload, values=optimizer._values)
    return set(zip(selection.chunks.tolist(), selection.indices.tolist(), strict=True))


@pytest.mark.parametrize("degree", [(1, 2), (2, 1)], ids=["tensor", "data"])
def test_twenty_rounds_are_those_of_one_process(
    context: ModelContext, controller: RankController, degree: tuple[int, int]
) -> None:
    """Here all payloads are equal, byte for byte. Elsewhere rounding may swap coefficients of nearly equal size, and with each
    the sign of some steps: so a few may differ, and masters in some values by a step or two of the learning rate."""
    whole, parted = create_auto(context), divided(context, controller, data=degree[0], tensor=degree[1])
    payloads, losses, masters = train(whole)
    others, other_losses, other_masters = train(parted)
    _, optimizer = trainer_of(whole)
    first, second = chosen(optimizer, payloads[0]), chosen(optimizer, others[0])
    assert len(first & second) >= 0.999 * len(first)
    for payload, other in zip(payloads, others, strict=True):
        assert abs(len(payload) - len(other)) <= 0.01 * len(payload)
    assert other_losses == pytest.approx(losses, abs=1e-4)
    far = sum(int(((other_masters[name] - tensor).abs() > 0.5 * LEARNING_RATE).sum()) for name, tensor in masters.items())
    assert far <= 0.01 * sum(tensor.numel() for tensor in masters.values())
    assert losses[-1] != losses[0]


def test_the_transform_runs_once(context: ModelContext, controller: RankController, monkeypatch: pytest.MonkeyPatch) -> None:
    """On rank 0 alone: other ranks know of gradients only. (In the reference every rank encodes everything.)"""
    model = divided(context, controller)
    trainer, optimizer = trainer_of(model)
    assert {name: tuple(tensor.shape) for name, tensor in optimizer.masters.items()} == {
        name: tuple(tensor.shape) for name, tensor in create_auto(context).parameters.items()
    }
    sent: list[str] = []
    send = controller._group.send  # type: ignore[union-attr]
    monkeypatch.setattr(controller._group, "send", lambda command: (sent.append(type(command).__name__), send(command))[1])
    trainer.train(1, shares(model)[0])
    assert sent == ["Work"]


def test_a_checkpoint_of_a_divided_model_is_any_models(context: ModelContext, controller: RankController, tmp_path: Path) -> None:
    model = divided(context, controller)
    trainer, optimizer = trainer_of(model)
    trainer.apply(0, [trainer.train(1, shares(model)[0]).payload], own_accepted=False)
    save_checkpoint(tmp_path / "saved", CheckpointFacts(run_id="run", step=1, epoch=0, data_index=4), write=trainer.save)
    again = ModelContext(source=tmp_path / "saved", max_seq_len=16, seed=bytes(32), device="cpu")
    given = samples(model, count=3)
    optimizer.load_masters()
    expected = model.loss(given, micro_batch_size=3)
    whole = create_auto(again)
    for name, tensor in optimizer.masters.items():
        assert torch.equal(tensor, whole.parameters[name]), name
    assert whole.loss(given, micro_batch_size=3) == pytest.approx(expected, abs=1e-6)
    assert divided(again, controller).loss(given, micro_batch_size=3) == expected
    assert whole.description == model.description


def test_what_is_refused_is_refused_as_by_the_whole_model_and_the_ranks_live_on(
    context: ModelContext, controller: RankController
) -> None:
    whole, model = create_auto(context), divided(context, controller)
    good = samples(model, count=2)
    for bad in (Samples((61).to_bytes(4, "little") * 4, 1, 4, 4), samples(model, count=1, sequence_length=17)):
        with pytest.raises(ModelError) as expected:
            whole.gradients(bad, micro_batch_size=1)
        with pytest.raises(ModelError) as got:
            model.gradients(bad, micro_batch_size=1)
        assert str(got.value) == str(expected.value)
    name = next(iter(model.parameters))
    kept = model.parameters[name].detach().clone()
    model.parameters[name].data.fill_(torch.nan)
    with pytest.raises(NonFiniteError):
        model.gradients(good, micro_batch_size=1)
    assert all(tensor.grad is None for tensor in model.parameters.values())
    model.parameters[name].data.copy_(kept)
    assert model.gradients(good, micro_batch_size=1) == pytest.approx(whole.gradients(good, micro_batch_size=1), abs=1e-6)


def test_gradients_of_a_batch_are_the_same_bits_each_time(context: ModelContext, controller: RankController) -> None:
    model = divided(context, controller)
    given = samples(model, count=3)
    loss, first = model.gradients(given, micro_batch_size=2), gradients_of(model)
    model.loss(given, micro_batch_size=1)
    assert model.gradients(given, micro_batch_size=2) == loss
    assert all(torch.equal(tensor, first[name]) for name, tensor in gradients_of(model).items())


def test_closing_a_model_leaves_a_crew_that_is_not_its_own(context: ModelContext, controller: RankController) -> None:
    divided(context, controller).close()
    assert isinstance(divided(context, controller), HfModel)
    assert controller.processes
