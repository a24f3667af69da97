"""The figures of a step beside its loss: computed from the state and from when steps end."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from party import QUICK, TABLE, Party, trainers
from psyche_core.client.runtime.reports.step_figures import NEWEST_STEPS, StepFigureMaker, TrainedStep, described
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import new_state
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.telemetry import events as telemetry
from psyche_core.types import BatchId


def state_of(*, step: int, height: int = 0, epoch: int = 0) -> CoordinatorState:
    """In a round of 10 samples, 100 samples into the run."""
    run = parse_run_file(QUICK.format(**TABLE), source="world")
    state = new_state("world", run.config, run.model, instance=bytes(32))
    played = Round(height, step, 1, (0,), (BatchId(90, 94), BatchId(95, 99)))
    return replace(
        state,
        progress=replace(state.progress, step=step, epoch=epoch, data_index=100),
        epoch=replace(state.epoch, rounds=(played,)),
    )


def trained(step: int, *, height: int = 0, loss: float = 2.0, seconds: float = 3.0) -> TrainedStep:
    return TrainedStep(step, height, loss, seconds, 0.01, 1.5, 256)


def test_a_first_step_has_no_speed_yet() -> None:
    state = state_of(step=7)
    length = state.model.LLM.max_seq_len
    figures = StepFigureMaker().trained(trained(7), state, now=50.0)
    assert figures.perplexity == pytest.approx(math.exp(2.0))
    assert figures.confidence == pytest.approx(1 - 2.0 / math.log(256))
    assert (figures.learning_rate, figures.gradient_norm) == (0.01, 1.5)
    assert (figures.batch_tokens, figures.total_tokens) == (10 * length, 100 * length)
    assert (figures.tokens_per_second, figures.efficiency, figures.wait_seconds) == (None, None, None)


def test_speed_efficiency_and_waiting_follow_from_when_steps_end() -> None:
    """A step of 4 s, of which 2 s train and 0.5 s apply."""
    maker = StepFigureMaker()
    maker.trained(trained(1), state_of(step=1), now=10.0)
    maker.applied(0.5)
    state = state_of(step=2)
    figures = maker.trained(trained(2, seconds=2.0), state, now=14.0)
    assert figures.wait_seconds == pytest.approx(1.5)
    assert figures.efficiency == pytest.approx(0.5)
    assert figures.tokens_per_second == pytest.approx(10 * state.model.LLM.max_seq_len / 4.0)
    later = maker.trained(trained(3, seconds=2.0), state_of(step=3), now=18.0)
    assert later.wait_seconds == pytest.approx(2.0), "what was applied before counts once"


def test_only_the_newest_steps_count() -> None:
    maker = StepFigureMaker()
    for number in range(2 * NEWEST_STEPS):  # slow at first
        maker.trained(trained(number, seconds=1.0), state_of(step=number), now=100.0 * number)
    for number in range(NEWEST_STEPS + 1):
        figures = maker.trained(trained(number, seconds=1.0), state_of(step=number), now=10_000.0 + 2 * number)
    assert figures.efficiency == pytest.approx(0.5)


def test_another_epoch_begins_anew() -> None:
    maker = StepFigureMaker()
    maker.trained(trained(1), state_of(step=1), now=1.0)
    figures = maker.trained(trained(2), state_of(step=2, epoch=1), now=1000.0)
    assert (figures.efficiency, figures.wait_seconds) == (None, None)


def test_a_round_that_the_state_no_longer_holds_has_no_batch() -> None:
    state = state_of(step=9, height=5)
    assert StepFigureMaker().trained(trained(9, height=1), state, now=1.0).batch_tokens is None
    assert StepFigureMaker().trained(trained(4, height=5), state, now=1.0).batch_tokens is None, "of another epoch's round"


@pytest.mark.parametrize("loss", [800.0, math.inf, math.nan])
def test_a_loss_beyond_all_bounds_is_no_error(loss: float) -> None:
    figures = StepFigureMaker().trained(trained(1, loss=loss), state_of(step=1), now=1.0)
    assert figures.perplexity == math.inf


def test_a_run_is_described_by_its_state() -> None:
    state = state_of(step=1)
    told = described(state.run_id, state.config, state.model)
    assert (told.run_id, told.total_steps, told.sequence_length) == ("world", 6, state.model.LLM.max_seq_len)
    assert (told.optimizer, told.architecture) == (state.model.LLM.optimizer.name, state.model.LLM.architecture)


@pytest.mark.slow
async def test_a_client_tells_them_and_counts_what_it_sends_and_fetches() -> None:
    party = Party(trainers(), total_steps=4)
    await party.play()
    told = party.events[0]
    assert [event.run_id for event in told if isinstance(event, telemetry.RunDescribed)] == ["world"]
    figures = [event for event in told if isinstance(event, telemetry.StepFigures)]
    steps = [event.step for event in told if isinstance(event, telemetry.StepTrained)]
    assert [event.step for event in figures] == steps == [1, 2, 3, 4]
    assert figures[0].confidence == pytest.approx(1 - 4.0 / math.log(256))
    assert all(event.batch_tokens for event in figures)
    assert [event.total_tokens for event in figures] == sorted(event.total_tokens for event in figures)
    assert figures[1].tokens_per_second is not None
    totals = [event for event in told if isinstance(event, telemetry.NetworkTotals)][-1]
    assert totals.broadcasts_sent >= 4
    assert totals.messages_received >= 8
    assert totals.downloads_started == 8, "of each step the results of two others"
    assert (totals.downloads_finished, totals.downloads_failed) == (8, 0)
    fetched = [event for event in told if isinstance(event, telemetry.ResultsFetched)]
    rounds = [(event.epoch, event.height) for event in fetched]
    assert rounds == sorted(set(rounds)), "each round once"
    assert 2 <= sum(event.results for event in fetched) <= 8, "what came after an epoch's last round belongs to none"
    assert totals.download_bytes > 8 * len("good")
