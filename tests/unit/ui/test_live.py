"""The panel and its plain substitute, drawn into memory."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from psyche_core.telemetry.events import (
    CheckpointSaved,
    Ended,
    EpochDigest,
    Leaving,
    ModelLoaded,
    ModelLoading,
    ModelSync,
    NetworkTotals,
    PathOfPeer,
    PeerPaths,
    PhaseChanged,
    Problem,
    Resynced,
    RunDescribed,
    ShareChecked,
    Started,
    StepApplied,
    StepTrained,
    Validated,
)
from psyche_core.ui.display import open_display
from psyche_core.ui.live import LINE_SECONDS, SHOWN_VIOLATIONS, Display, LineDisplay, LiveDisplay, dashboard, figures_line
from psyche_core.ui.run_metrics import RunMetrics


def some_metrics() -> RunMetrics:
    metrics = RunMetrics(run_id="first-light", total_steps=10)
    metrics.handle("server", 0.0, Started("server", "", "first-light", "x"))
    metrics.handle("server", 1.0, PhaseChanged("RoundTrain", 1, 3, 2, 2))
    for number, name in enumerate(("client-1", "client-2")):
        metrics.handle(name, 0.0, Started("client", f"{number}fedcba987654321", "first-light", "x"))
        for step in (1, 2):
            metrics.handle(name, 2.0 * step, StepTrained(0, step, 5.0 - step, 3000, 1.0, 500))
            metrics.handle(name, 2.0 * step, StepApplied(0, step, 2, 2, 0.1))
        metrics.handle(name, 5.0, NetworkTotals(1_500_000, 2_500_000, 1))
        metrics.handle(name, 5.0, EpochDigest(0, 2, "abcd" * 16))
    metrics.handle("client-1", 5.0, Validated(2, 3.125))
    return metrics


def drawn(metrics: RunMetrics, *, now: float = 5.0, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(dashboard(metrics, now=now, width=width))
    return stream.getvalue()


def test_the_panel_says_all_that_was_promised() -> None:
    text = drawn(some_metrics())
    for part in (
        "first-light", "RoundTrain", "epoch 1", "step 2/10", "2 clients",  # phase, epoch, step of total
        "16 s left",  # 4 s for 2 steps, 8 to go
        "loss 3.000", "█▁", "validation 3.125",  # curve
        "client-1", "client-2", "0fedcba9", "1.5 k", "1.5 MB", "2.5 MB", "0: abcdabcd =",  # rows
    ):  # fmt: skip
        assert part in text, part


def test_the_panel_says_how_many_are_reached_over_others() -> None:
    metrics = some_metrics()
    metrics.handle("client-2", 6.0, PeerPaths((PathOfPeer("aa", "relayed"),), over_others=19))
    assert "1 (1 relayed, 19 over others)" in drawn(metrics, width=140)


def test_a_step_that_some_have_not_reported_is_not_the_end_of_the_curve() -> None:
    """The curve's end jumped with each client that reported the step first."""
    metrics = some_metrics()
    metrics.handle("client-1", 6.0, StepTrained(1, 3, 9.0, 3000, 1.0, 500))
    assert [step for step, _ in metrics.mean_losses] == [1, 2, 3]
    assert "loss 3.000" in drawn(metrics)
    assert "loss 3.000" in figures_line(metrics, now=6.0)
    metrics.handle("client-2", 7.0, StepTrained(1, 3, 1.0, 3000, 1.0, 500))
    assert "loss 5.000" in drawn(metrics)


def test_who_waits_for_members_is_shown_how_many_are_needed() -> None:
    metrics = RunMetrics(run_id="first-light", total_steps=10)
    metrics.handle("server", 1.0, PhaseChanged("WaitingForMembers", 0, 1, 1, None, 2))
    assert "1 of 2 clients that are needed to start" in drawn(metrics)
    assert figures_line(metrics, now=2.0).endswith("1 of 2 clients that are needed to start")
    metrics.handle("server", 1.0, PhaseChanged("WaitingForMembers", 0, 1, 2, None, 2))
    assert figures_line(metrics, now=2.0).endswith(" 2 clients")
    metrics.handle("server", 1.0, PhaseChanged("WaitingForMembers", 0, 1, 1, None, 1))
    assert figures_line(metrics, now=2.0).endswith(" 1 client")


def test_the_step_is_the_run_s_also_where_a_client_came_late() -> None:
    """The run was at step 293, and the panel of who had come late said 224: so many it had applied."""
    metrics = RunMetrics(run_id="first-light", total_steps=1000)
    metrics.handle("here", 0.0, Started("client", "0fedcba987654321", "first-light", "x"))
    metrics.handle("here", 1.0, PhaseChanged("Warmup", 4, 290, 3))
    assert "step 289/1000" in drawn(metrics)
    for step in (290, 291, 292):
        metrics.handle("here", 2.0, StepApplied(4, step, 3, 3, 0.1))
    metrics.handle("here", 3.0, PhaseChanged("RoundTrain", 4, 294, 3, 4))
    assert "step 293/1000" in drawn(metrics)
    assert " step 293/1000 " in figures_line(metrics, now=3.0)
    metrics.handle("here", 4.0, PhaseChanged("Warmup", 4, 12, 3))  # the run went back
    assert "step 11/1000" in drawn(metrics)


def one_member(*, lost: int, ours: bool | None, rounds: int = 60) -> RunMetrics:
    """The figures of one member after so many rounds, of which the last ones lost a share."""
    metrics = RunMetrics(run_id="first-light", of_member=True)
    metrics.handle("here", 0.0, Started("client", "0fedcba987654321", "first-light", "x"))
    metrics.handle("here", 1.0, PhaseChanged("RoundTrain", 0, rounds + 1, 3, rounds))
    for step in range(1, rounds + 1):
        short = step > rounds - lost
        applied = StepApplied(0, step, 2 if short else 3, 3, 0.1, ("a1b2c3d4",) if short else (), ours if short else None)
        metrics.handle("here", 1.0 + step, applied)
    return metrics


def test_a_program_without_coordinator_shows_its_steps() -> None:
    """As `psyche train-local`: its panel said "starting …" to the end, and complained of steps that were not applied."""
    metrics = RunMetrics(run_id="alone", of_member=True)
    assert "starting …" in drawn(metrics)
    metrics.handle("here", 0.0, described(total_steps=3))
    assert "starting …" in drawn(metrics)
    for step in (1, 2, 3):
        if step > 2:
            metrics.handle("here", 2.0 * step, StepApplied(0, step - 2, 1, 1, 0.1))
        metrics.handle("here", 2.0 * step, StepTrained(0, step, 5.0 - step, 3000, 1.0, 500))
    text = drawn(metrics)
    assert "training  step 1/3" in text
    assert "starting" not in text
    for step in (2, 3):
        metrics.handle("here", 7.0, StepApplied(0, step, 1, 1, 0.1))
    metrics.handle("here", 7.0, EpochDigest(0, 3, "abcd" * 16))
    metrics.handle("here", 7.0, Ended("trained 3 steps", success=True))
    text = drawn(metrics)
    assert "ended  step 3/3" in text
    assert "without applying" not in text


def described(*, total_steps: int) -> RunDescribed:
    return RunDescribed("alone", "a model", "HfLlama", "AdamW", total_steps, 16, 8, 8, 0)


def test_lost_rounds_are_one_line_of_a_member_s_panel_however_many_they_are() -> None:
    """18 of them were 36 lines, which never went away, and each blamed the machine of who looked at it."""
    whole, once, often = (drawn(one_member(lost=lost, ours=False), width=240) for lost in (0, 1, 18))
    assert "lost" not in whole
    assert len(often.splitlines()) == len(once.splitlines()) == len(whole.splitlines()) + 1
    assert "18 of 60 rounds lost shares, last in step 60 (2 of 3 count): results of other members (a1b2c3d4) reached too" in often
    assert "nothing to do here" in often


def test_many_broken_guarantees_do_not_make_the_panel_taller_than_the_terminal() -> None:
    metrics = some_metrics()
    metrics.violations += [f"guarantee {number}" for number in range(30)]
    text = drawn(metrics)
    assert "25 earlier complaints are not shown" in text
    assert text.count("guarantee ") == SHOWN_VIOLATIONS
    assert "guarantee 29" in text


def test_a_testnet_that_may_lose_shares_says_so_in_its_panel_and_rarely_in_its_lines() -> None:
    stream = io.StringIO()
    metrics = RunMetrics(run_id="first-light", total_steps=60, allow_lost_shares=True)
    display = LineDisplay(metrics, Console(file=stream, width=80))
    for step in range(1, 21):
        for name in ("client-1", "client-2"):
            event = StepApplied(0, step, 1, 2, 0.1)
            metrics.handle(name, float(step), event)
            display.show(name, event)
    assert metrics.violations == []
    assert "20 of 20 rounds lost shares" in drawn(metrics, width=240)
    lines = [line.partition(" lost shares")[0] for line in stream.getvalue().splitlines() if "lost shares" in line]
    assert lines == ["1 of 1 round", *(f"{lost} of {lost} rounds" for lost in (2, 4, 8, 16))]


def test_kills_and_resyncs_are_counted_where_there_are_any() -> None:
    metrics = some_metrics()
    assert "kills" not in drawn(metrics) + figures_line(metrics, now=5.0)
    metrics.killed("client-2")
    metrics.handle("client-2", 6.0, Started("client", "x", "first-light", "x"))
    metrics.handle("client-2", 7.0, Resynced(1, 2))
    assert "1 kills, 1 resyncs" in drawn(metrics)
    assert " · 1 kills, 1 resyncs · " in figures_line(metrics, now=7.0)


def test_of_a_model_being_fetched_only_begin_and_end_are_worth_a_line() -> None:
    stream = io.StringIO()
    metrics = RunMetrics(run_id="r")
    display = LineDisplay(metrics, Console(file=stream, width=80))
    for pieces in range(5):
        display.show("client-1", ModelSync(3, pieces, 4, 10 * pieces))
    first, last = stream.getvalue().splitlines()
    assert "0 of 4 pieces" in first
    assert "4 of 4 pieces" in last


@pytest.mark.parametrize("kind", [LineDisplay, LiveDisplay])
def test_a_failed_check_has_one_line_however_many_tell_it_and_a_passed_one_none(kind: type[Display]) -> None:
    stream = io.StringIO()
    with kind(RunMetrics(run_id="r"), Console(file=stream, width=160)) as display:
        for source in ("server", "client-1"):
            display.show(source, ShareChecked(0, 4, "a1b2c3d4", "00000000", "passed"))
            display.show(source, ShareChecked(0, 5, "a1b2c3d4", "00000000", "undecided"))
    lines = [line for line in stream.getvalue().splitlines() if "share of" in line]
    assert [line.partition("the share")[0] for line in lines] == ["server: epoch 0, round 5: "]


def test_replicas_that_differ_are_shown_as_such() -> None:
    metrics = some_metrics()
    metrics.handle("client-2", 6.0, EpochDigest(1, 4, "11" * 32))
    metrics.handle("client-1", 6.0, EpochDigest(1, 4, "22" * 32))
    text = drawn(metrics)
    assert "1: 22222222 ≠" in text
    assert "replicas differ at the end of epoch 1" in text


def test_an_empty_book_can_be_drawn() -> None:
    assert "starting" in drawn(RunMetrics(run_id="r"))


def test_no_line_of_the_panel_is_wider_than_the_terminal() -> None:
    assert max(map(len, drawn(some_metrics(), width=80).splitlines())) <= 80


def test_lines_come_every_few_seconds_and_at_once_for_what_matters() -> None:
    now = [100.0]
    stream = io.StringIO()
    metrics = some_metrics()
    display = LineDisplay(metrics, Console(file=stream, width=80), clock=lambda: now[0])
    display.show("testnet")
    now[0] += LINE_SECONDS / 2
    display.show("testnet")
    display.show("client-1", StepTrained(0, 3, 2.0, 3000, 1.0, 500))
    assert len(stream.getvalue().splitlines()) == 1, "too early for another line"
    display.show("client-1", Validated(2, 3.125))
    now[0] += LINE_SECONDS / 2
    display.show("testnet")
    figures, event, again = stream.getvalue().splitlines()
    assert figures.startswith("epoch 1 RoundTrain · step 2/10 · loss 3.000 · 3.0 k tokens/s · sent 3.0 MB · received 5.0 MB")
    assert event == "client-1: validation after step 2: loss 3.1250"
    assert again.startswith("epoch 1")


def test_the_live_panel_prints_complaints_above_itself_and_ends_complete() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, height=40, force_terminal=True, color_system=None)
    with LiveDisplay(some_metrics(), console) as display:
        display.show("client-2", Problem("warning", "a peer is slow"))
    text = stream.getvalue()
    assert "client-2: warning: a peer is slow" in text
    assert text.rstrip().endswith("\x1b[?25h") or "╯" in text[-40:]


def test_a_client_that_leaves_says_so_in_its_panel() -> None:
    """After Ctrl-C the panel stayed at "RoundTrain … step 27 3 clients" until the process was gone."""
    metrics = one_member(lost=0, ours=None, rounds=27)
    assert "leaving" not in drawn(metrics)
    metrics.handle("here", 90.0, Leaving("SIGINT", saves=True))
    assert "leaving · RoundTrain  epoch 0  step 27  3 clients" in drawn(metrics)
    metrics.handle("here", 91.0, Ended("left the run as asked", success=True))
    assert "ended in RoundTrain  epoch 0  step 27  3 clients" in drawn(metrics)
    metrics.handle("here", 92.0, PhaseChanged("Finished", 1, 28, 3))
    assert "│ Finished  epoch 1" in drawn(metrics)


def below_the_panel(shown: str) -> list[str]:
    return shown.rpartition("╯")[2].splitlines()


def test_how_a_client_ended_stands_below_its_panel(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether a checkpoint was saved, and why the client ended, was told to pipes only."""
    with open_display("live", title="r") as sink:
        sink(Started("client", "ab" * 32, "r", "x"))
        sink(CheckpointSaved(20, "out/step-20"))
        sink(Leaving("SIGINT", saves=True))
        sink(CheckpointSaved(27, "out/step-27"))
        sink(Ended("left the run as asked", success=True))
    shown = capsys.readouterr().out
    assert "here: SIGINT: leaving the run cleanly after saving a checkpoint; a second SIGINT" in shown
    assert below_the_panel(shown) == ["checkpoint of step 27 saved in out/step-27", "left the run as asked"]


def test_a_failure_stands_below_the_panel_and_only_there(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with open_display("live", title="r") as sink:
            sink(Started("client", "ab" * 32, "r", "x"))
            sink(Ended("no disk is left", success=False))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    shown = capsys.readouterr().out
    assert below_the_panel(shown) == ["no disk is left"]
    assert shown.count("no disk is left") == 1


def test_a_client_that_starts_over_has_not_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with open_display("live", title="r") as sink:
        sink(Started("client", "ab" * 32, "r", "x"))
        sink(Ended("the coordinator was restored from an earlier state", success=False))
        sink(Started("client", "ab" * 32, "r", "x"))
    assert "was restored from" not in capsys.readouterr().out


def test_a_client_s_panel_has_above_it_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    with open_display("live", title="r") as sink:
        sink(ModelLoading("'model' (HfLlama)"))
        sink(ModelLoaded(1_060_000, 40.0))
    shown = capsys.readouterr().out
    assert "loading the model 'model' (HfLlama) ...\nmodel of 1.06 M parameters ready after 40.0 s\n" in shown
