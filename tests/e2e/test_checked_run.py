"""A run of real processes whose shares are checked: honest members pass, a cheat is ejected, and nobody else is."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from live_run import LiveRun, StartRun
from psyche_core.telemetry.events import Ended, MemberExited, ShareChecked
from psyche_core.wire.signing import SecretKey

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(600)]

HONEST = ("client-1", "client-2", "client-3", "client-4")
CHEATING = Path(__file__).with_name("cheating_client.py")
KEYS = {
    "verification_percent": 50,
    "rounds_per_epoch": 40,
    "total_steps": 40,
    "init_min_clients": 5,
    "min_clients": 3,
    "global_batch_size_start": 10,
    "global_batch_size_end": 10,
    "max_round_train_time": 20,
}


STEPS = {"honest": 24, "other-data": 24, "quarter-of-rounds": 80, "tenth-of-rounds": 120}
"""Of runs for which fewer suffice, since half of the shares are checked and two that fail eject, or that need more."""

BATCH = {"quarter": 20}
SELDOM = ("quarter-of-rounds", "tenth-of-rounds")
"""Who cheats so seldom that as many shares as possible are checked. Who verifies has no share, so two of five are."""

FULL = ("untrained", "random", "stale", "copy", "flip", "quarter", "huge-delta", "huge-memory")


def played(live_run: StartRun, kind: str) -> LiveRun:
    steps = STEPS.get(kind, KEYS["total_steps"])
    batch = BATCH.get(kind, KEYS["global_batch_size_start"])
    keys: dict[str, object] = {**KEYS, "total_steps": steps, "rounds_per_epoch": steps}
    keys |= {"global_batch_size_start": batch, "global_batch_size_end": batch}
    keys |= {"verification_percent": 100} if kind in SELDOM else {}
    if kind == "untrained":  # nobody is shown the signs of anybody's delta; the example has no key for it
        keys["quantize_1bit"] = 'true\nlookahead = "payload"'
    run = live_run(**keys)
    for name in HONEST:
        run.start_client(name)
    run.start_client("cheat", inside=() if kind == "honest" else (sys.executable, CHEATING, kind))
    if kind != "honest":
        cheat = run.processes.pop("cheat")
        assert cheat.wait(timeout=500) == 1, "who is ejected has failed"
    run.wait_for_end()
    return run


def short(run: LiveRun, name: str) -> str:
    return SecretKey.load(run.folder / f"{name}.key").public.hex()[:8]


def assert_most_pass_and_members_tell(run: LiveRun) -> None:
    checks = run.told("server", ShareChecked)
    assert Counter(check.outcome for check in checks)["passed"] >= 10
    for name in HONEST:  # from states, of which it may have missed some
        told = run.told(name, ShareChecked)
        assert len(told) >= 5
        assert set(told) <= set(checks)


@pytest.mark.soak  # with a cheat among them nobody else is struck either
def test_honest_members_pass(live_run: StartRun) -> None:
    run = played(live_run, "honest")
    assert not [check for check in run.told("server", ShareChecked) if check.strikes]
    assert_most_pass_and_members_tell(run)
    run.assert_kept_its_promises(steps=STEPS["honest"], finishers=HONEST)


@pytest.mark.parametrize(
    "kind",
    ["other-data", *(pytest.param(kind, marks=pytest.mark.soak) for kind in (*FULL, "half", *SELDOM, "false-gradients"))],
)
def test_a_cheat_is_ejected_and_nobody_else(live_run: StartRun, kind: str) -> None:
    run = played(live_run, kind)
    checks = run.told("server", ShareChecked)
    outcomes = Counter(check.outcome for check in checks)
    assert outcomes["false_accusation" if kind == "false-gradients" else "guilty"] >= 2, outcomes
    struck = [event.member for event in run.told("server", MemberExited) if event.why == "struck"]
    assert struck == [short(run, "cheat")]
    assert {name for check in checks for name in check.strikes} == {short(run, "cheat")}
    assert "failed twice in this epoch" in run.told("cheat", Ended)[-1].reason
    assert_most_pass_and_members_tell(run)
    assert run.metrics().identical


@pytest.mark.soak
def test_who_shows_nothing_is_ejected(live_run: StartRun) -> None:
    run = played(live_run, "no-reveal")
    outcomes = Counter(check.outcome for check in run.told("server", ShareChecked))
    assert outcomes["silence"] >= 2, outcomes
    struck = [event.member for event in run.told("server", MemberExited) if event.why == "struck"]
    assert struck == [short(run, "cheat")]
    assert_most_pass_and_members_tell(run)
    assert run.metrics().identical


@pytest.mark.soak
def test_who_lies_in_tie_breaks_spares_no_cheat(live_run: StartRun) -> None:
    """It is not ejected itself: a tie-break's others decide, and nothing is a strike for who is alone with what it says."""
    run = live_run(**{**KEYS, "init_min_clients": 6, "global_batch_size_start": 12, "global_batch_size_end": 12})
    for name in HONEST:
        run.start_client(name)
    run.start_client("liar", inside=(sys.executable, CHEATING, "false-tie-breaks"))
    run.start_client("cheat", inside=(sys.executable, CHEATING, "random"))
    assert run.processes.pop("cheat").wait(timeout=240) == 1, "who is ejected has failed"
    run.wait_for_end()
    struck = [event.member for event in run.told("server", MemberExited) if event.why == "struck"]
    assert struck == [short(run, "cheat")]
    assert not {name for check in run.told("server", ShareChecked) for name in check.strikes} & {
        short(run, name) for name in HONEST
    }
    assert run.metrics().identical
