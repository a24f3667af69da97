"""A run of real processes whose shares are checked: honest members pass, a cheat is ejected, and nobody else is."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from live_run import LiveRun, StartRun
from psyche_core.telemetry.events import Ended, MemberExited, ShareChecked
from psyche_core.wire.signing import SecretKey

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(300)]

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


STEPS = {"honest": 24, "other-data": 24}
"""Of runs for which fewer suffice: half of the shares are checked, and two that fail eject."""


def played(live_run: StartRun, kind: str) -> LiveRun:
    steps = STEPS.get(kind, KEYS["total_steps"])
    keys: dict[str, object] = {**KEYS, "total_steps": steps, "rounds_per_epoch": steps}
    if kind == "untrained":  # nobody is shown the signs of anybody's delta; the example has no key for it
        keys["quantize_1bit"] = 'true\nlookahead = "payload"'
    run = live_run(**keys)
    for name in HONEST:
        run.start_client(name)
    run.start_client("cheat", inside=() if kind == "honest" else (sys.executable, CHEATING, kind))
    if kind != "honest":
        cheat = run.processes.pop("cheat")
        assert cheat.wait(timeout=240) == 1, "who is ejected has failed"
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
    ["other-data", pytest.param("untrained", marks=pytest.mark.soak), pytest.param("false-gradients", marks=pytest.mark.soak)],
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
