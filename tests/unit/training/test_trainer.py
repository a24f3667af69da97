from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3

from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.hf_models import create_llama
from psyche_core.errors import ModelError, NonFiniteError, PayloadRejected
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.testing.model import gradients_of, weights_of
from psyche_core.training.inner_steps import parts_of
from psyche_core.training.trainer import Trainer
from tests.unit.training.trainer_cases import LLAMA, samples


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def build_model(source: Path) -> Model:
    return create_llama(ModelContext(source=source, max_seq_len=16, seed=bytes(32), device="cpu"))


def build(source: Path, *, learning_rate: float = 0.003, micro_batch_size: int = 2) -> tuple[Model, Optimizer, Trainer]:
    model = build_model(source)
    optimizer = AdamW(AdamWSettings(weight_decay=0.0), model)
    trainer = Trainer(model=model, optimizer=optimizer, learning_rate=lambda _: learning_rate, micro_batch_size=micro_batch_size)
    return model, optimizer, trainer


class Ledger(Optimizer):
    """Writes down what it is asked."""

    def __init__(self, model: Model) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._inner = AdamW(AdamWSettings(), model)

    exact = True
    max_payload_bytes = 5

    @property
    def masters(self) -> Mapping[str, Any]:
        return self._inner.masters

    def load_lookahead(self, *, learning_rate: float) -> None:
        self.calls.append(("load_lookahead", learning_rate))

    def load_masters(self) -> None:
        self.calls.append(("load_masters",))

    def compress(self, step: int, *, learning_rate: float) -> bytes:
        self.calls.append(("compress", step, learning_rate))
        return b"sent"

    def check(self, payload: bytes) -> None:
        raise PayloadRejected(payload.decode())

    def apply(self, step: int, payloads: Sequence[bytes], *, learning_rate: float, own_accepted: bool) -> None:
        self.calls.append(("apply", step, list(payloads), learning_rate, own_accepted))

    def load_parameters(self, parameters: Mapping[str, Any]) -> None:
        raise NotImplementedError


def test_each_call_gets_the_learning_rate_of_its_step(source: Path) -> None:
    model = build_model(source)
    ledger = Ledger(model)
    trainer = Trainer(model=model, optimizer=ledger, learning_rate=lambda step: step / 8, micro_batch_size=1)
    trained = trainer.train(1, samples(0))
    trainer.train(2, samples(1))
    trainer.apply(1, [b"x", b"y"], own_accepted=True)
    assert ledger.calls == [
        ("load_lookahead", 0.0),
        ("compress", 1, 1 / 8),
        ("load_lookahead", 1 / 8),
        ("compress", 2, 2 / 8),
        ("apply", 1, [b"x", b"y"], 3 / 8, True),
    ]
    trainer.apply(2, [b"z"], own_accepted=False, learning_rate=0.75)
    assert ledger.calls[-1] == ("apply", 2, [b"z"], 0.75, False), "a rate that is given comes before the schedule's"
    assert trainer.rate_of(1) == 3 / 8
    assert (trained.step, trained.tokens, trained.payload) == (1, 64, b"sent")
    assert trained.seconds > 0
    assert trained.loss == pytest.approx(model.loss(samples(0), micro_batch_size=4), abs=1e-5)
    assert trainer.max_payload_bytes == 5
    assert trainer.vocab_size == 61
    with pytest.raises(PayloadRejected, match="bad"):
        trainer.check(b"bad")


class InParts(Ledger):
    """The same with inner steps."""

    inner_steps = 3

    def inner_step(self, *, learning_rate: float) -> None:
        self.calls.append(("inner_step", learning_rate))


def test_an_optimizer_with_inner_steps_gets_a_share_in_parts(source: Path) -> None:
    model = build_model(source)
    ledger = InParts(model)
    trainer = Trainer(model=model, optimizer=ledger, learning_rate=lambda step: step / 8, micro_batch_size=1)
    trained = trainer.train(1, samples(0, count=4))
    inner = ("inner_step", 1 / 8)
    assert ledger.calls == [("load_lookahead", 0.0), inner, inner, ("compress", 1, 1 / 8)]
    assert trained.loss == pytest.approx(model.loss(samples(0, count=4), micro_batch_size=4), abs=1e-5)
    ledger.calls.clear()
    trainer.train(2, samples(0, count=1))
    assert [name for name, *_ in ledger.calls] == ["load_lookahead", "compress"], "one sample is one part"


def test_an_optimizer_without_inner_steps_gets_the_share_itself(source: Path) -> None:
    share = samples(0)
    assert parts_of(share, 1)[0] is share
    with pytest.raises(NotImplementedError, match="Ledger has no method inner_step"):
        Ledger(build_model(source)).inner_step(learning_rate=0.1)


def test_parts_of_a_share_keep_all_columns_and_differ_by_one_sample() -> None:
    rows = [bytes([row]) * 4 for row in range(5)]
    labels, places = ([bytes([row + base]) * 8 for row in range(5)] for base in (20, 40))
    lengths = tuple((1, 1) if row % 2 else (2,) for row in range(5))
    share = Samples(b"".join(rows), 5, 2, 2, b"".join(labels), b"".join(places), lengths)
    parts = parts_of(share, 3)
    assert [part.count for part in parts] == [2, 2, 1]
    assert parts[1] == Samples(b"".join(rows[2:4]), 2, 2, 2, b"".join(labels[2:4]), b"".join(places[2:4]), lengths[2:4])
    assert [part.count for part in parts_of(share, 9)] == [1] * 5


def test_two_replicas_with_overlapped_rounds_stay_equal_and_learn(source: Path) -> None:
    """The client's order of calls: apply(s - 2), then train(s); the last two steps are applied in the drain."""
    replicas = [build(source)[2] for _ in range(2)]
    held_out = samples(99, count=8)
    before = replicas[0].evaluate(held_out)
    sent: dict[int, list[bytes]] = {}
    for step in range(1, 41):
        for index, trainer in enumerate(replicas):
            if step > 2:
                order = sent[step - 2] if index == 0 else sent[step - 2][::-1]
                trainer.apply(step - 2, order, own_accepted=True)
        assert replicas[0].full_digest() == replicas[1].full_digest()
        sent[step] = [trainer.train(step, samples(10 * step + index)).payload for index, trainer in enumerate(replicas)]
        for trainer in replicas:
            for payload in sent[step]:
                trainer.check(payload)
    for trainer in replicas:
        for step in (39, 40):
            trainer.apply(step, sent[step], own_accepted=True)
    assert replicas[0].full_digest() == replicas[1].full_digest()
    assert replicas[0].evaluate(held_out) == replicas[1].evaluate(held_out)
    assert replicas[0].evaluate(held_out) < before - 0.5


def test_evaluation_shows_the_masters_and_does_not_show_in_training(source: Path) -> None:
    results = []
    for evaluates in (False, True):
        model, optimizer, trainer = build(source)
        trainer.train(1, samples(1))
        trainer.apply(1, [trainer.train(2, samples(2)).payload], own_accepted=True)
        if evaluates:
            digest = trainer.full_digest()
            loss = trainer.evaluate(samples(3))
            assert all(torch.equal(tensor, optimizer.masters[name]) for name, tensor in weights_of(model).items())
            assert loss == pytest.approx(model.loss(samples(3), micro_batch_size=4), abs=1e-6)
            assert trainer.full_digest() == digest
        results.append((trainer.train(3, samples(4)).payload, trainer.full_digest()))
    assert results[0] == results[1]


def test_micro_batch_size_does_not_change_gradients_beyond_rounding(source: Path) -> None:
    found = []
    for micro_batch_size in (1, 3, 8):
        model, _, trainer = build(source, micro_batch_size=micro_batch_size)
        loss = trainer.train(1, samples(1, count=8)).loss
        found.append((loss, gradients_of(model)))
    for loss, gradients in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, found[0][1][name], rtol=1e-5, atol=1e-5)


def test_loss_that_is_not_finite_sends_nothing_and_training_goes_on(source: Path) -> None:
    _, optimizer, trainer = build(source)
    before = trainer.full_digest()
    norm = optimizer.masters["model.norm.weight"]
    kept = norm.clone()
    norm.fill_(float("inf"))
    with pytest.raises(NonFiniteError):
        trainer.train(1, samples(1))
    norm.copy_(kept)
    assert trainer.full_digest() == before
    fresh = build(source)[2]
    assert trainer.train(1, samples(1)).payload == fresh.train(1, samples(1)).payload


def test_samples_of_another_vocabulary_are_refused(source: Path) -> None:
    _, _, trainer = build(source)
    with pytest.raises(ModelError, match="token id 61"):
        trainer.train(1, Samples(struct.pack("<4H", 1, 2, 61, 3), 1, 4, 2))


def test_saved_checkpoint_holds_the_masters(source: Path, tmp_path: Path) -> None:
    _, _, trainer = build(source)
    trainer.apply(1, [trainer.train(1, samples(1)).payload], own_accepted=True)
    trainer.save(tmp_path / "run-step1")
    model, _, again = build(tmp_path / "run-step1")
    assert again.full_digest() == trainer.full_digest()
    assert model.loss(samples(2), micro_batch_size=2) == trainer.evaluate(samples(2))


def test_micro_batches_must_not_be_empty(source: Path) -> None:
    with pytest.raises(ValueError, match="micro_batch_size"):
        build(source, micro_batch_size=0)


def test_full_digest_follows_its_description(source: Path) -> None:
    _, optimizer, trainer = build(source)
    expected = blake3(b"psyche/model-digest/2")
    for name, master in sorted(optimizer.masters.items()):
        expected.update(struct.pack("<I", len(name)) + name.encode())
        expected.update(struct.pack(f"<I{master.dim()}Q", master.dim(), *master.shape))
        values = struct.pack(f"<{master.numel()}f", *master.flatten().tolist())
        for begin in range(0, len(values), 4 << 20):
            expected.update(blake3(values[begin : begin + (4 << 20)]).digest())
    assert trainer.full_digest() == expected.digest()
