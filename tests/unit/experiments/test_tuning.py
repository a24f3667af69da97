"""The search for settings: what is drawn, what trains on, and that it ends."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import ConfigError
from psyche_core.experiments.tuning import (
    Axis,
    Candidate,
    Plan,
    Trial,
    at_edges,
    axis,
    best_of,
    candidates,
    changed,
    check_axes,
    due_trials,
    plan_within,
    rung_lengths,
    winner,
)

PLAN = Plan(lengths=(10, 30, 90), candidates=9, eta=3)


def test_axes_are_read_as_people_write_them() -> None:
    assert axis("rate=0.001:0.01") == Axis("rate", 0.001, 0.01)
    assert axis("compression_topk=8:64") == Axis("compression_topk", 8, 64, whole=True)
    assert axis("a.b=1,2.5,true,clip") == Axis("a.b", choices=(1, 2.5, True, "clip"))


@pytest.mark.parametrize(
    "text", ["", "rate", "rate=", "=1:2", "rate=2:1", "rate=0:1", "rate=-1:1", "rate=a:b", "rate=1:inf", "rate=1:2:3"]
)
def test_other_axes_are_named_in_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"got {text!r}")) as refused:
        axis(text)
    assert "\n" not in str(refused.value)


@given(st.floats(1e-6, 1.0), st.floats(1.01, 1e6), st.floats(0, 1, exclude_max=True))
def test_values_of_a_range_lie_within_it(low: float, ratio: float, position: float) -> None:
    value = Axis("rate", low, low * ratio).value(position)
    assert low * 0.99 <= value <= low * ratio * 1.01, "three digits are kept"


@pytest.mark.parametrize("text", ["rate=abc", "rate=0.1,abc", "rest=true", "rate=inf", "rate=nan,1", "rest=0,1"])
def test_a_rate_is_a_number_above_zero(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--vary (rate|rest) takes numbers above 0, got "):
        axis(text)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (("rate=1:2", "rate=2:3"), "--vary names rate twice; give one of them"),
        (("rates.head=1:2", "rest=1:2"), "--vary names rest and rates.head, which both change rates.head; give one of them"),
        (("rest=1:2", "rates.norm=1:2"), "--vary names rates.norm and rest, which both change rates.norm; give one of them"),
    ],
)
def test_a_setting_is_varied_once(texts: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        check_axes([axis(text) for text in texts])
    check_axes([axis("rate=1:2"), axis("rates.matrix=1:2"), axis("rest=1:2")])


def test_the_first_candidate_is_the_run_file_and_more_of_them_change_none() -> None:
    axes = (Axis("rate", 0.001, 0.016), Axis("topk", choices=(8, 16)))
    few, many = candidates(axes, 4, seed=7), candidates(axes, 40, seed=7)
    assert many[:4] == few
    assert few[0] == Candidate(0, {})
    assert [each.number for each in many] == list(range(40))
    below = sum(each.values["rate"] < 0.004 for each in many[1:])
    assert 15 <= below <= 24, "evenly on a logarithmic scale"
    assert {each.values["topk"] for each in many[1:]} == {8, 16}
    assert candidates(axes, 4, seed=8) != few


def test_a_candidate_changes_only_what_it_names() -> None:
    settings = {"topk": 8, "rates": {"head": 2.0, "reference_width": 64}}
    new = changed(settings, {"rate": 0.1, "rest": 5.0, "topk": 16, "deep.er": 1})
    assert new == {"topk": 16, "rates": {"head": 5.0, "embedding": 5.0, "norm": 5.0, "reference_width": 64}, "deep": {"er": 1}}
    assert settings == {"topk": 8, "rates": {"head": 2.0, "reference_width": 64}}


def test_rungs_grow_by_eta_up_to_all_steps() -> None:
    assert rung_lengths(200, shortest=20, eta=3) == (22, 66, 200)
    assert rung_lengths(200, shortest=150, eta=3) == (200,)


def test_the_best_third_trains_on_and_the_run_file_is_trained_to_the_end() -> None:
    losses: dict[Trial, float] = {}
    seen = []
    while due := due_trials(PLAN, losses):
        seen.append([trial.candidate for trial in due])
        losses |= {trial: 10.0 - trial.candidate - trial.rung for trial in due}
    assert seen == [list(range(9)), [8, 7, 6], [8, 0]]
    assert winner(losses) == Trial(2, 8, 0)
    assert sum(PLAN.lengths[trial.rung] for trial in losses) == PLAN.steps == 9 * 10 + 3 * 30 + 2 * 90


def test_a_stopped_search_goes_on_where_it_was() -> None:
    losses = {Trial(0, number, 0): float(number) for number in range(9) if number != 4}
    assert due_trials(PLAN, losses) == [Trial(0, 4, 0)]


def test_what_diverged_does_not_train_on() -> None:
    losses = {Trial(0, number, 0): math.inf if number < 6 else 5.0 for number in range(9)}
    assert [trial.candidate for trial in due_trials(PLAN, losses)] == [6, 7, 8]


@given(
    st.integers(2, 40),
    st.integers(2, 5),
    st.integers(1, 3),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_every_search_ends_with_the_steps_that_were_planned_or_fewer(
    count: int, eta: int, rungs: int, seeds: int, random: object
) -> None:
    plan = Plan(lengths=tuple(10 * eta**rung for rung in range(rungs)), candidates=count, eta=eta, seeds=seeds)
    losses: dict[Trial, float] = {}
    while due := due_trials(plan, losses):
        assert not losses.keys() & set(due)
        losses[due[0]] = random.choice((random.random(), math.inf))  # type: ignore[attr-defined]
    spent = sum(plan.lengths[trial.rung] for trial in losses)
    assert spent <= plan.steps
    best = winner(losses)
    assert best is not None
    assert best.rung == rungs - 1
    assert best.candidate == best_of(losses, rungs - 1)[0]
    assert any(trial.candidate == 0 and trial.rung == rungs - 1 for trial in losses)


@given(st.floats(1, 1e6), st.integers(1, 3))
def test_a_budget_is_used_and_kept(total: float, seeds: int) -> None:
    lengths = (20, 60, 180)
    plan = plan_within(total, lengths=lengths, eta=3, seeds=seeds)
    smallest = Plan(lengths=lengths, candidates=2, eta=3, seeds=seeds)
    assert plan.steps <= max(total, smallest.steps)
    more = Plan(lengths=lengths, candidates=plan.candidates + 1, eta=3, seeds=seeds)
    assert plan.candidates == 256 or more.steps > total


def test_a_best_value_at_the_end_of_its_range_is_reported() -> None:
    axes = (Axis("rate", 0.001, 0.01), Axis("rest", 1, 16), Axis("topk", choices=(8, 16)))
    assert at_edges(axes, Candidate(3, {"rate": 0.0096, "rest": 4.0, "topk": 16})) == [axes[0]]
    assert at_edges(axes, Candidate(0, {})) == []
