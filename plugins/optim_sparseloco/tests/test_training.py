"""Members that train a small Llama together as in a run, with their own local weights between results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from psyche_core.builtin.hf_models import create_llama
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces.data import Samples
from psyche_core.testing.tiny_models import LLAMA, VOCABULARY
from psyche_core.training.local_run import LocalRun
from psyche_core.training.trainer import Trainer
from psyche_optim_sparseloco.optimizer import SparseLoCo
from psyche_optim_sparseloco.settings import SparseLoCoSettings

LENGTH = 16


def build(folder: Path, *, inner_steps: int) -> Trainer:
    (folder / "config.json").write_text(json.dumps(dict(LLAMA)))
    model = create_llama(ModelContext(source=folder, max_seq_len=LENGTH, seed=bytes(32), device="cpu"))
    settings = SparseLoCoSettings(inner_steps=inner_steps, topk=32, chunk_size=1024, clip_grad_norm=1.0)
    return Trainer(
        model=model,
        optimizer=SparseLoCo(settings, model),
        learning_rate=lambda step: 0.005 * min(1.0, step / 5),
        micro_batch_size=4,
    )


def samples(seed: int, *, count: int) -> Samples:
    """Sequences that count upwards from anywhere, modulo the vocabulary."""
    begin = np.random.default_rng(seed).integers(0, VOCABULARY, (count, 1))
    rows = (begin + np.arange(LENGTH)) % VOCABULARY
    return Samples(rows.astype("<u2").tobytes(), count, LENGTH, 2)


@pytest.mark.parametrize("inner_steps", [1, 4])
def test_the_loss_falls_and_members_stay_equal(tmp_path: Path, inner_steps: int) -> None:
    trainers = [build(tmp_path, inner_steps=inner_steps) for _ in range(3)]
    run, held_out = LocalRun(trainers), samples(999, count=16)
    before = trainers[0].evaluate(held_out)
    for step in range(1, 31):
        done = run.train(step, [samples(10 * step + number, count=4) for number in range(3)])
        assert done.payload_bytes <= trainers[0].max_payload_bytes
        assert len({trainer.full_digest() for trainer in trainers}) == 1
    run.finish()
    assert len({trainer.full_digest() for trainer in trainers}) == 1
    assert trainers[2].evaluate(held_out) < before - 1.0


def test_more_inner_steps_learn_more_from_as_many_results(tmp_path: Path) -> None:
    """30 results of four samples each: what inner steps are for."""
    losses = []
    for inner_steps in (1, 4):
        trainer = build(tmp_path, inner_steps=inner_steps)
        run = LocalRun([trainer])
        for step in range(1, 31):
            run.train(step, [samples(step, count=4)])
        run.finish()
        losses.append(trainer.evaluate(samples(999, count=16)))
    assert losses[1] < losses[0] - 0.3
