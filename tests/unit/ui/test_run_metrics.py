"""The book of a run: figures from event streams, and every broken promise noted."""

from __future__ import annotations

import pytest

from psyche_core.telemetry.events import (
    Ended,
    EpochDigest,
    Event,
    NetworkTotals,
    PhaseChanged,
    ReplicasDiffer,
    Resynced,
    Started,
    StepApplied,
    StepTrained,
    Validated,
)
from psyche_core.ui.run_metrics import RunMetrics

GOOD, BAD = "aa" * 32, "bb" * 32


def trained(step: int, *, epoch: int = 0, loss: float = 2.0) -> StepTrained:
    return StepTrained(epoch, step, loss, tokens=1000, seconds=0.5, payload_bytes=700)


def applied(step: int, *, epoch: int = 0, accepted: int = 2, of: int = 2) -> StepApplied:
    return StepApplied(epoch, step, accepted, of, seconds=0.1)


def play(*entries: tuple[str, Event], metrics: RunMetrics | None = None) -> RunMetrics:
    """Enter events one second apart."""
    metrics = metrics or RunMetrics(run_id="r", total_steps=2)
    for moment, (source, event) in enumerate(entries):
        metrics.handle(source, 100.0 + moment, event)
    return metrics


def perfect_run() -> list[tuple[str, Event]]:
    entries: list[tuple[str, Event]] = [("server", Started("server", "", "r", "127.0.0.1:1"))]
    for name in ("a", "b"):
        entries.append((name, Started("client", name * 64, "r", "127.0.0.1:1")))
        if name == "a":
            entries.append((name, Validated(0, 6.0)))
    for step in (1, 2):
        for name in ("a", "b"):
            entries += [(name, trained(step, loss=6.0 - step)), (name, applied(step))]
    entries += [("a", EpochDigest(0, 2, GOOD)), ("b", EpochDigest(0, 2, GOOD)), ("a", Validated(2, 3.5))]
    entries += [(name, Ended("done", success=True)) for name in ("a", "b", "server")]
    return entries


def test_a_perfect_run_breaks_no_promise() -> None:
    metrics = play(*perfect_run())
    assert metrics.violations == []
    assert metrics.unfinished() == []
    assert (metrics.steps, metrics.epochs, metrics.identical) == (2, 1, True)
    assert metrics.mean_losses == [(1, 5.0), (2, 4.0)]
    assert metrics.validation == [(0, 6.0), (2, 3.5)]
    assert metrics.server_ended is not None
    assert set(metrics.clients) == {"a", "b"}, "the server is no client"


def test_training_time_goes_from_the_first_step_begun_to_the_last_applied() -> None:
    metrics = play(("a", trained(1)), ("a", applied(1)), ("a", NetworkTotals(1, 2, 3)))
    assert metrics.train_seconds == pytest.approx(1.5)  # trained at 100 after 0.5 s, applied at 101


def test_tokens_per_second_are_over_wall_time() -> None:
    metrics = play(("a", trained(1)), ("a", applied(1)), ("a", trained(2)))
    assert metrics.clients["a"].tokens_per_second == pytest.approx(500.0)  # 1000 tokens in the two seconds since step 1


def test_one_step_gives_no_rate_yet() -> None:
    assert play(("a", trained(1))).clients["a"].tokens_per_second == 0.0


def test_the_server_s_phase_is_believed_over_a_client_s() -> None:
    metrics = play(
        ("server", Started("server", "", "r", "x")),
        ("server", PhaseChanged("RoundTrain", 1, 5, 2)),
        ("a", PhaseChanged("Warmup", 0, 1, 2)),
    )
    assert metrics.phase is not None
    assert metrics.phase.phase == "RoundTrain"


def test_without_a_server_a_client_s_phase_counts() -> None:
    metrics = play(("here", PhaseChanged("Warmup", 0, 1, 2)))
    assert metrics.phase is not None
    assert metrics.phase.phase == "Warmup"


def test_different_digests_are_noted_at_once_and_name_both() -> None:
    metrics = play(("a", EpochDigest(0, 2, GOOD)), ("b", EpochDigest(0, 2, BAD)))
    (violation,) = metrics.violations
    assert "epoch 0" in violation
    assert GOOD[:16] in violation
    assert BAD[:16] in violation
    assert not metrics.identical


def test_what_a_client_says_of_a_peer_s_digest_counts_too() -> None:
    assert "differ" in play(("a", ReplicasDiffer(1, GOOD, BAD, "peer"))).violations[0]


def test_a_refused_share_is_a_lost_round() -> None:
    (violation,) = play(("a", trained(1)), ("a", applied(1, accepted=1))).violations
    assert "lost" in violation
    assert "1 of 2" in violation


def test_a_step_applied_twice_is_noted() -> None:
    assert "twice" in play(("a", applied(1)), ("a", applied(1))).violations[0]


def test_a_drain_round_loses_nothing() -> None:
    metrics = play(("a", applied(3, accepted=0, of=0)), ("a", applied(3, accepted=0, of=0)))
    assert metrics.violations == []
    assert metrics.steps == 0


def test_an_epoch_that_ends_without_its_last_step_applied_is_noted() -> None:
    (violation,) = play(("a", trained(1)), ("a", applied(1)), ("a", trained(2)), ("a", EpochDigest(0, 2, GOOD))).violations
    assert "step 2" in violation


def test_a_step_of_the_next_epoch_may_still_be_open_at_the_epoch_s_end() -> None:
    assert play(("a", trained(1, epoch=1)), ("a", EpochDigest(0, 0, GOOD))).violations == []


def test_a_step_never_applied_shows_at_the_end() -> None:
    entries = [entry for entry in perfect_run() if entry != ("b", applied(2)) and not isinstance(entry[1], EpochDigest)]
    metrics = play(*entries)
    assert metrics.violations == []
    assert metrics.unfinished() == ["b trained step 2 that it never applied"]


def test_a_missing_digest_is_not_identical() -> None:
    entries = [entry for entry in perfect_run() if entry != ("b", EpochDigest(0, 2, GOOD))]
    metrics = play(*entries)
    assert not metrics.identical
    assert metrics.epochs == 0
    assert metrics.unfinished() == ["b reported no digest for epoch 0"]


def test_no_digest_at_all_is_not_identical() -> None:
    assert not play(("a", trained(1)), ("a", applied(1))).identical


def test_a_client_that_fails_or_stays_silent_is_noted() -> None:
    metrics = play(("a", Ended("the model is gone", success=False)), ("b", trained(1)), ("b", applied(1)))
    assert metrics.violations == ["a ended without success: the model is gone"]
    assert metrics.unfinished() == ["b never reported its end"]


def test_nobody_is_not_a_perfect_run() -> None:
    assert RunMetrics(run_id="r").unfinished() == ["no client reported any event"]


def test_a_client_that_was_expected_and_never_spoke_is_missed() -> None:
    metrics = RunMetrics(run_id="r", total_steps=2)
    metrics.expect("c")
    play(*perfect_run(), metrics=metrics)
    assert list(metrics.clients) == ["c", "a", "b"]
    assert not metrics.identical
    assert "c never reported its end" in metrics.unfinished()


def test_a_server_that_stops_without_a_word_is_missed() -> None:
    metrics = play(*perfect_run()[:-1])
    assert metrics.unfinished() == ["the server never reported that the run finished"]


# ------------------------------------------------------------------------------------------------ members that are meddled with


def with_death(*after: tuple[str, Event], steps: int = 2) -> RunMetrics:
    """A run of a, b and c in which c is killed after step 1 and its share of step 2 is not accepted; then `after`."""
    metrics = RunMetrics(run_id="r", total_steps=steps)
    metrics.handle("server", 0.0, Started("server", "", "r", "x"))
    for name in "abc":
        metrics.handle(name, 1.0, Started("client", name, "r", "x"))
    for name in "abc":
        play((name, trained(1)), (name, applied(1, accepted=3, of=3)), (name, trained(2)), metrics=metrics)
    metrics.killed("c")
    for name in "ab":
        play((name, applied(2, accepted=2, of=3)), metrics=metrics)
    return play(*after, metrics=metrics)


def closing(*names: str, epoch: int = 0, step: int = 2) -> list[tuple[str, Event]]:
    return [(name, EpochDigest(epoch, step, GOOD)) for name in names]


def ending(*names: str) -> list[tuple[str, Event]]:
    return [(name, Ended("done", success=True)) for name in names]


STARTED_AGAIN = ("c", Started("client", "c", "r", "x"))


def test_a_refused_share_can_be_allowed_and_is_counted_then() -> None:
    metrics = RunMetrics(run_id="r", total_steps=2, allow_lost_shares=True)
    play(("a", trained(1)), ("a", applied(1, accepted=1)), ("b", applied(1, accepted=1)), metrics=metrics)
    assert metrics.violations == []
    assert metrics.requeued == {(0, 1): 1}


def test_a_share_of_a_killed_client_is_handed_out_again_not_lost() -> None:
    metrics = with_death(*closing("a", "b"), *ending("a", "b", "server"))
    assert (metrics.violations, metrics.unfinished()) == ([], [])
    assert metrics.requeued == {(0, 2): 1}
    assert (metrics.kills, metrics.identical, metrics.epochs) == (1, True, 1)


def test_what_the_dead_said_last_is_not_entered() -> None:
    metrics = with_death(("c", applied(2, accepted=3, of=3)))
    assert metrics.violations == []
    assert not metrics.clients["c"].whole


def test_a_client_that_comes_back_with_the_others_model_goes_on_from_there() -> None:
    metrics = with_death(STARTED_AGAIN, ("c", Resynced(0, 2)), *closing("a", "b", "c"), *ending("a", "b", "c", "server"))
    assert (metrics.violations, metrics.unfinished()) == ([], [])
    assert metrics.resyncs == 1
    assert metrics.clients["c"].whole


def test_one_that_comes_back_and_skips_a_step_is_noted() -> None:
    metrics = with_death(STARTED_AGAIN, ("c", Resynced(0, 2)), ("c", applied(4, accepted=3, of=3)), steps=4)
    assert metrics.violations == ["c applied step 4, but its masters were those after step 2"]


def test_one_that_comes_back_without_the_others_model_is_noted() -> None:
    metrics = with_death(STARTED_AGAIN, ("c", applied(2, accepted=2, of=3)))
    assert metrics.violations == ["c came late and applied step 2 without the others' masters"]


def test_one_that_begins_again_with_the_first_step_has_lost_nothing() -> None:
    metrics = with_death(STARTED_AGAIN, ("c", applied(1, accepted=3, of=3)), ("c", applied(2, accepted=2, of=3)))
    assert metrics.violations == []


def test_clients_that_apply_different_shares_of_a_step_are_noted() -> None:
    metrics = with_death(("a", applied(3, accepted=3, of=3)), ("b", applied(3, accepted=2, of=3)), steps=3)
    assert metrics.violations == ["accepted work was lost: of step 3, b applied 2 shares, another client 3"]


def test_an_epoch_closed_with_old_masters_is_noted() -> None:
    metrics = with_death(STARTED_AGAIN, ("c", Resynced(0, 1)), *closing("a", "b", "c"))
    assert metrics.violations == ["c ended epoch 0 after step 2, but its masters are those after step 1"]


def test_an_epoch_that_ends_after_different_steps_is_noted() -> None:
    metrics = with_death(*closing("a"), *closing("b", step=3))
    assert any("b ended epoch 0 after step 3, another client after step 2" in violation for violation in metrics.violations)


def test_a_step_of_a_cut_epoch_is_trained_again_under_its_number() -> None:
    cut = [(name, applied(3, accepted=0, of=2)) for name in "ab"]
    again = [(name, applied(3, epoch=1, accepted=2, of=2)) for name in "ab"]
    metrics = with_death(*cut, *closing("a", "b"), *again, *closing("a", "b", epoch=1, step=3), *ending("a", "b", "server"))
    assert (metrics.violations, metrics.unfinished()) == ([], [])
    assert metrics.steps == 3


def test_others_still_owe_every_epoch_when_one_is_killed() -> None:
    metrics = with_death(*closing("a"), *ending("a", "b", "server"))
    assert metrics.unfinished() == ["b reported no digest for epoch 0"]
    assert not metrics.identical


def test_an_epoch_that_only_one_of_several_closed_shows_nothing() -> None:
    metrics = with_death()
    metrics.killed("b")
    play(*closing("a"), *ending("a", "server"), metrics=metrics)
    assert metrics.unfinished() == ["too few clients closed epoch 0"]
    assert not metrics.identical


def test_one_that_came_back_owes_the_epoch_it_trains_in() -> None:
    back: list[tuple[str, Event]] = [STARTED_AGAIN, ("c", Resynced(0, 2)), ("c", trained(3, epoch=0))]
    others = [(name, applied(3, accepted=3, of=3)) for name in "abc"]
    metrics = with_death(*back, *others, *closing("a", "b", step=3), *ending("a", "b", "c", "server"))
    assert metrics.unfinished() == ["c reported no digest for epoch 0"]


def test_a_client_killed_so_late_that_the_run_is_over_breaks_no_promise() -> None:
    metrics = with_death(*closing("a", "b"), *ending("a", "b", "server"), STARTED_AGAIN, ("c", Ended("too late", success=False)))
    assert (metrics.violations, metrics.unfinished()) == ([], [])


def test_one_that_was_asked_to_leave_owes_nothing_but_a_good_end() -> None:
    metrics = play(*perfect_run()[:-6])
    metrics.asked_to_leave("b")
    play(("b", trained(3)), ("b", Ended("left the run as asked", success=True)), metrics=metrics)
    assert metrics.clients["b"].missing([0, 1]) == []
    assert metrics.clients["b"].unapplied() == []
    play(("b", Ended("lost the server", success=False)), metrics=metrics)
    assert metrics.violations == ["b ended without success: lost the server"]


def test_network_totals_add_up_over_all_processes_of_a_client() -> None:
    metrics = with_death()
    metrics = play(("a", NetworkTotals(5, 7, 2)), ("c", NetworkTotals(1, 1, 1)), metrics=metrics)
    play(STARTED_AGAIN, ("c", NetworkTotals(10, 20, 2)), STARTED_AGAIN, ("c", NetworkTotals(1, 2, 2)), metrics=metrics)
    assert metrics.clients["a"].network == NetworkTotals(5, 7, 2)
    assert metrics.clients["c"].network == NetworkTotals(11, 22, 2)


def test_without_meddling_a_resync_excuses_nothing() -> None:
    instead = ("b", Resynced(1, 2))
    entries = [instead if entry == ("b", EpochDigest(0, 2, GOOD)) else entry for entry in perfect_run()]
    assert play(*entries).unfinished() == ["b reported no digest for epoch 0"]


def test_the_time_to_the_last_step_is_at_the_pace_so_far() -> None:
    metrics = play(("a", trained(1)), ("a", applied(1)))
    assert metrics.remaining_seconds(101.5) == pytest.approx(2.0)  # begun at 99.5; one step of two done
    assert RunMetrics(run_id="r", total_steps=2).remaining_seconds(5.0) is None
