"""What the measurement of replays plans, forges and concludes."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.config.run_config import Choice, LLMConfig, ModelConfig
from psyche_core.coordinator.learning_rate import learning_rate
from psyche_core.experiments.lazy_work import forged, least_scores, random_payload, scores
from psyche_core.experiments.replay_report import as_table, as_text, proposal
from psyche_core.experiments.replay_run import PEAK, START, phases_of, shortened_schedule
from psyche_core.experiments.replayed_training import (
    ALL_BUT_ONE,
    COPY,
    QUARTER,
    RANDOM,
    Arithmetic,
    MeasuredShare,
    Plan,
    ReplayedTraining,
    kinds_of_arithmetic,
    measured_shares,
)
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.replay import ChunkGroup, Replay
from psyche_core.plugins import PluginRegistry
from psyche_core.testing.tiny_models import LLAMA, VOCABULARY
from psyche_core.training.build import Compute, build_model, build_optimizer, build_trainer
from psyche_core.training.local_run import LocalRun
from psyche_core.training.shared_tensors import shared_digest
from psyche_core.verification.replay import Rule, payload_agreement


class Rotated(Replay):
    """Two groups of chunks whose transform turns pairs of elements by 30 degrees."""

    groups = (ChunkGroup(6, 16, 3), ChunkGroup(3, 4, 4))
    decay = 0.99

    def delta(self, rows: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    def taken(self, step: int, rows: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    def contribution(self, gradients: Mapping[str, Any], rows: Sequence[Any], *, learning_rate: float) -> list[Any]:
        raise NotImplementedError

    def coefficients(self, chunks: Sequence[Any]) -> list[Any]:
        return [turned(chunk, np.pi / 6) for chunk in chunks]

    def elements(self, coefficients: Sequence[Any]) -> list[Any]:
        return [turned(chunk, -np.pi / 6) for chunk in coefficients]

    def sent(self, payload: bytes, rows: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    def positions(self, payload: bytes) -> Any:
        raise NotImplementedError


def turned(chunk: Any, angle: float) -> Any:
    even, odd = chunk[:, ::2], chunk[:, 1::2]
    found = np.empty_like(chunk)
    found[:, ::2] = np.cos(angle) * even - np.sin(angle) * odd
    found[:, 1::2] = np.sin(angle) * even + np.cos(angle) * odd
    return found


def normal(seed: int) -> list[Any]:
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(group.count, group.size)) for group in Rotated.groups]


@given(st.integers(0, 1000), st.booleans())
def test_a_forged_delta_explains_its_payload_and_little_more_changes(seed: int, trained: bool) -> None:
    replay = Rotated()
    base, known = normal(seed), normal(seed + 1)
    target = random_payload(replay, [group.count for group in replay.groups], np.random.default_rng(seed + 2))
    claim = forged(replay, base, known if trained else None, target)
    delta = [one + other for one, other in zip(base, claim, strict=True)]
    for group, coefficients, values in zip(replay.groups, replay.coefficients(delta), target, strict=True):
        assert (np.count_nonzero(values, axis=1) == group.topk).all()
        if group.topk < group.size:
            assert payload_agreement(coefficients, values, topk=group.topk).passes(Rule())
        assert (coefficients * np.sign(values) >= -1e-9).all()
    nothing = forged(replay, base, known, [np.zeros_like(one) for one in base])
    assert all(np.allclose(one, other) for one, other in zip(nothing, known, strict=True)), "who forges nothing claims the truth"


def test_the_best_scale_is_found() -> None:
    one, before = normal(1), [np.zeros_like(part) for part in normal(1)]
    assert least_scores([2.0 * part for part in one], one, before, floor=0.0).max() < 1e-12
    assert scores([2.0 * part for part in one], one, before, floor=0.0).min() > 0.1
    other = normal(2)
    assert least_scores(one, other, before, floor=0.0).mean() <= scores(one, other, before, floor=0.0).mean() + 1e-12


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 60))
def test_measured_shares_are_spread_over_steps_and_members(steps: int, members: int, each: int) -> None:
    found = measured_shares(phases_of(2 * steps + 2, steps), members, each=each)
    for phase in (START, PEAK):
        own = [place for place, name in found.items() if name == phase]
        length = sum(name == phase for name in phases_of(2 * steps + 2, steps).values())
        assert len(own) == min(each, length * members)
        counted = Counter(member for _, member in own)
        assert max(counted.values()) - min([*counted.values(), *([0] if len(counted) < min(members, len(own)) else [])]) <= 1


def test_every_dtype_is_tried_with_every_batch_and_device_and_threads_with_the_first() -> None:
    tried = kinds_of_arithmetic(dtypes=["float32", "bfloat16"], micro_batches=[8, 1], threads=[1, 2], devices=["cpu"])
    assert tried == [
        Arithmetic("float32", 8, 1),
        Arithmetic("bfloat16", 8, 1),
        Arithmetic("float32", 1, 1),
        Arithmetic("bfloat16", 1, 1),
        Arithmetic("float32", 8, 2),
    ]
    assert kinds_of_arithmetic(dtypes=["float32"], micro_batches=[8], threads=[1, 1], devices=["cuda", "cpu"])[1].device == "cpu"


def test_a_long_warm_up_is_shortened_so_that_the_peak_is_reached() -> None:
    schedule = Choice(
        "Cosine", {"base_lr": 1.0, "warmup_init_lr": 0.0, "final_lr": 0.1, "warmup_steps": 500, "total_steps": 9000}
    )
    short, warmup = shortened_schedule(schedule, 60)
    assert (warmup, (short.settings or {})["warmup_steps"], (short.settings or {})["total_steps"]) == (30, 30, 9000)
    assert list(phases_of(6, 3).values()) == [START] * 3 + [PEAK] * 3
    assert list(phases_of(4, 0).values()) == [START] * 2 + [PEAK] * 2


def test_members_train_as_in_a_run(tmp_path: Path) -> None:
    """The same payloads as those of trainers, whatever is recomputed in between."""
    (tmp_path / "config.json").write_text(json.dumps(dict(LLAMA)))
    llm = LLMConfig.model_validate(
        {
            "max_seq_len": 8,
            "architecture": "HfAuto",
            "checkpoint": {"Hub": {"repo_id": "model"}},
            "data_type": "Pretraining",
            "data_location": "Dummy",
            "lr_schedule": {"Constant": {"base_lr": 0.01, "warmup_init_lr": 0.0, "warmup_steps": 3}},
            "optimizer": {"Distro": {"compression_topk": 8, "compression_chunk": 16, "quantize_1bit": True}},
        }
    )
    load = PluginRegistry.discover().load
    tokens = np.random.default_rng(0).integers(2, VOCABULARY, (6, 2, 4 * 8)).astype("<u2")
    rounds = [[Samples(row.tobytes(), 4, 8, 2) for row in pair] for pair in tokens]
    compute = Compute(device="cpu", micro_batch_size=4)
    trainers = [
        build_trainer(registry_load=load, model_config=ModelConfig(LLM=llm), run_id="alike", source=tmp_path, compute=compute)
        for _ in range(2)
    ]
    local = LocalRun(trainers)
    for step, shares in enumerate(rounds, start=1):
        local.train(step, shares)

    models = {
        ("cpu", dtype): build_model(load, llm, compute, run_id="alike", source=tmp_path) for dtype in ("float32", "bfloat16")
    }
    optimizers = [build_optimizer(load, llm.optimizer, models["cpu", "float32"]) for _ in range(2)]
    plan = Plan(
        seed=0,
        rounds=rounds,
        rate=lambda step: learning_rate(llm.lr_schedule, step),
        compared=kinds_of_arithmetic(dtypes=["float32", "bfloat16"], micro_batches=[4, 1], threads=[1], devices=["cpu"]),
        measured=measured_shares(phases_of(6, 3), 2, each=3),
        draws=5,
    )
    found = [share for _, own in ReplayedTraining(plan, models, optimizers).run() for share in own]
    assert len(found) == 6
    for trainer, optimizer in zip(trainers, optimizers, strict=True):
        assert trainer.full_digest() == shared_digest(optimizer)


def share(step: int, honest: float, lazy: Mapping[str, float]) -> MeasuredShare:
    lowered = np.linspace(0.8, 1.0, 20)
    return MeasuredShare(
        0,
        step,
        0,
        START if step < 6 else PEAK,
        {("one", "other"): honest * lowered},
        {kind: score / lowered for kind, score in lazy.items()},
        1.0,
        0,
        0.05,
    )


def test_the_threshold_lies_between_and_is_tried_on_other_shares() -> None:
    shares = [share(step, 0.004, {RANDOM: 0.9, QUARTER: 0.16, ALL_BUT_ONE: 0.01}) for step in range(12)]
    found = proposal(shares, Rule())
    assert found.threshold == pytest.approx(0.044)  # the root of 3 times 0.004 times 0.16
    assert (found.false_positives, found.false_negatives[QUARTER], found.false_negatives[ALL_BUT_ONE]) == (0.0, 0.0, 1.0)
    assert found.ejected[QUARTER] > 0.99
    assert found.ejected[ALL_BUT_ONE] == found.honest_ejected == 0.0
    shares[1] = share(1, 0.06, {QUARTER: 0.04})  # has no part in the choice
    found = proposal(shares, Rule())
    assert found.threshold == pytest.approx(0.044)
    assert 0 < found.false_positives < 0.2
    assert 0 < found.false_negatives[QUARTER] < 0.2
    assert found.false_positive_bound > 0.5


def test_where_rounding_is_as_large_as_cheating_there_is_no_threshold_and_the_usual_one_would_eject_everybody() -> None:
    shares = [share(step, 0.3, {COPY: 0.2}) for step in range(12)]
    found = proposal(shares, Rule())
    assert found.threshold is None
    assert found.false_negatives[COPY] == 0.0
    assert found.ejected[COPY] > 0.99
    assert found.honest_ejected > 0.99
    assert "No threshold: honest work reaches 0.3" in as_text(shares, Rule())
    assert "[model.verification]" not in as_text(shares, Rule())


def test_what_is_proposed_for_the_run_file_is_allowed_in_one() -> None:
    """The default of the second number is larger than a small first one."""
    shares = [share(step, 1e-4, {QUARTER: 4e-3}) for step in range(12)]
    text = as_text(shares, Rule())
    table = text.partition("For the run file:")[2].partition("\n\n")[0]
    said = tomllib.loads(table)["model"]["verification"]
    assert 0 < said["median_threshold"] <= said["threshold"] < Rule().median_threshold


def test_tables_for_programs_and_people_say_the_same() -> None:
    shares = [share(step, 0.004, {QUARTER: 0.16, ALL_BUT_ONE: 0.02}) for step in range(12)]
    table, text = as_table(shares, Rule()), as_text(shares, Rule())
    assert table["threshold"]["proposed"] == pytest.approx(0.044)
    assert "Threshold: 0.044" in text
    assert table["median_threshold"]["false_positives"] == 0.0
    assert 0.004 < table["median_threshold"]["proposed"] < 0.02
    assert (
        f"  [model.verification]\n  threshold = 0.044\n  median_threshold = {table['median_threshold']['proposed']:.2g}\n" in text
    )
    assert table["overlap"] == {"honest_max": 0.05, "payloads": 12}
    assert [row["phase"] for row in table["honest"]] == [START, PEAK]
