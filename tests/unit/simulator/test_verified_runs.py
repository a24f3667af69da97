"""Runs whose shares are checked: cheats go, honest members stay, and runs without verification are as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psyche_core.coordinator import rewards
from psyche_core.errors import UserError
from psyche_core.simulator.generate import cheat_script, generate
from psyche_core.simulator.script import CHEATS, KINDS, LIES, Fault, Script, from_json, from_plain, to_plain
from psyche_core.simulator.world import World, run_script
from psyche_core.types import ClientState

EJECTED = ("untrained", "blind-verifier", "lying-verifier", "no-reveal")


@pytest.mark.parametrize("seed", [1, 2])
def test_honest_runs_check_a_tenth_of_the_shares_and_give_no_strike(seed: int) -> None:
    result = run_script(cheat_script("", seed=seed, steps=60))
    assert result.failure is None
    assert result.steps == 60
    assert 25 <= result.counts["challenges PASSED"] <= 70
    assert {name for name in result.counts if name.startswith("challenges ")} == {"challenges PASSED"}
    assert not any("strike" in name or name.startswith("refused") for name in result.counts)


@pytest.mark.parametrize("kind", EJECTED)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_full_cheat_is_ejected_and_nobody_else(kind: str, seed: int) -> None:
    result = run_script(cheat_script(kind, seed=seed, steps=100))
    assert result.failure is None
    assert result.counts["cheats ejected for strikes"] == 1
    assert "honest members ejected for strikes" not in result.counts
    assert result.counts["round in which a cheat was ejected"] < 100


def test_signs_that_are_not_the_trainer_s_are_complained_of_at_once_and_then_shown_to_all() -> None:
    """It gains nothing by it: its shares are checked all the same, and its verifiers miss no duty."""
    result = run_script(cheat_script("wrong-signs", seed=3, steps=80))
    assert result.failure is None
    assert result.counts["wrong-signs"] >= 3
    assert result.counts["challenges PASSED"] >= 25
    assert {name for name in result.counts if name.startswith("challenges ")} == {"challenges PASSED"}
    assert not any("strike" in name for name in result.counts)


@pytest.mark.parametrize("unchecked", [False, True])
def test_pay_without_a_check_is_noticed(unchecked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of four rounds end before anybody can be drawn and pass."""
    base = cheat_script("", seed=1, steps=9)
    if unchecked:
        monkeypatch.setattr(rewards, "_is_paid", lambda client, *, checked, known: client.state is ClientState.Healthy)
    result = run_script(replace(base, shape=replace(base.shape, rounds_per_epoch=4)))
    if unchecked:
        assert result.failure is not None
        assert result.failure.invariant == "newcomers-are-paid-after-a-check"
    else:
        assert result.failure is None


@pytest.mark.parametrize("kind", ["lying-tie-breaker", "false-words"])
def test_lying_judges_and_witnesses_alone_harm_nobody(kind: str) -> None:
    """With a cheat beside them: it goes, and of the honest members nobody does."""
    base = cheat_script(kind, seed=4, steps=80)
    liar = base.faults[0].nodes[0]
    cheat = Fault(kind="untrained", start=0.0, nodes=((liar + 1) % 8,))
    result = run_script(replace(base, faults=(*base.faults, cheat)))
    assert result.failure is None
    assert result.counts["cheats ejected for strikes"] >= 1
    assert "honest members ejected for strikes" not in result.counts


@pytest.mark.parametrize(("members", "cheats", "seed"), [(8, 2, 0), pytest.param(16, 5, 1, marks=pytest.mark.soak)])
def test_who_collude_are_ejected_though_they_pass_each_other(members: int, cheats: int, seed: int) -> None:
    """As many as a quorum may contain: verifiers, tie-breakers and witnesses of their own kind spare them for a while only."""
    result = run_script(cheat_script("collusion", seed=seed, members=members, cheats=cheats, steps=100))
    assert result.failure is None
    assert result.counts["cheats ejected for strikes"] == cheats
    assert result.counts["challenges UNDECIDED"] > 0
    assert not any("honest" in name for name in result.counts if "strike" in name)


@pytest.mark.parametrize("seed", [0, 1])
def test_states_and_commands_with_challenges_travel_as_bytes(seed: int) -> None:
    result = run_script(replace(cheat_script("untrained", seed=seed, steps=30, percent=40), sealed=True))
    assert result.failure is None
    assert result.counts["challenges GUILTY"] >= 2


@pytest.mark.parametrize("kind", ["restart", "drop", "older-state", "pause", "slow", "false-statements", "garbage"])
def test_other_faults_break_nothing_in_runs_that_are_checked(kind: str) -> None:
    script = generate(3, kinds=(kind,))
    shape = replace(script.shape, verification_percent=40, rounds_per_epoch=12, epoch_time=600)
    result = run_script(replace(script, shape=shape))
    assert result.failure is None
    assert any(name.startswith("challenges ") for name in result.counts)


def test_a_cheat_may_stop_cheating() -> None:
    base = cheat_script("untrained", seed=2, steps=30)
    world = World(replace(base, faults=(replace(base.faults[0], duration=6.0),)))
    assert world.run().failure is None
    assert world.nodes[2].lies == []
    assert 0 < world.counts["faked shares"] < 20


def test_invented_commitments_are_refused_and_counted_and_invented_parts_harm_nobody() -> None:
    base = cheat_script("", seed=5, steps=60, percent=30)
    result = run_script(replace(base, faults=(Fault(kind="garbage", start=0.0, nodes=(2,)),)))
    assert result.failure is None
    assert result.counts["refused InvalidCommit"] > 20
    assert "strikes of honest members" not in result.counts
    assert "honest members ejected for strikes" not in result.counts


def test_two_results_with_roots_of_deltas_are_still_proof_of_equivocation() -> None:
    script = generate(1, kinds=("two-results",))
    result = run_script(replace(script, shape=replace(script.shape, verification_percent=30)))
    assert result.failure is None
    assert 1 <= result.counts["two-results"] <= result.epochs, "it is ejected for the first of each epoch"


def test_who_recomputes_trains_nothing_and_the_samples_of_the_guilty_are_trained_again() -> None:
    """`no-sample-skipped` and `no-sample-in-two-places` are checked after every command; here they have something to find."""
    world = World(cheat_script("untrained", seed=2, steps=40, percent=50))
    assert world.run().failure is None
    assert world.counts["challenges GUILTY"] == 2
    assert world.counts["faked shares"] > 2


@pytest.mark.parametrize("percent", [50, 100])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.soak)])
def test_who_leaves_shows_its_shares_until_they_are_decided(seed: int, percent: int) -> None:
    """When it was gone as soon as its results were settled, honest members got a strike or two in five of these six runs."""
    script = cheat_script("", seed=seed, steps=40, percent=percent)
    world = World(replace(script, faults=(Fault(kind="leave", start=12.0, nodes=(3,)),)))
    assert world.run().failure is None
    assert world.counts["leave"] == 1
    assert world.counts["challenges PASSED"] > 50
    assert world.counts["strikes of honest members"] == 0


def test_cheats_belong_to_checked_runs_only_and_are_drawn_for_no_other() -> None:
    assert not set(CHEATS) & {*KINDS, *LIES}
    script = cheat_script("untrained", seed=7)
    assert from_plain(to_plain(script)) == script
    unchecked = replace(script, shape=replace(script.shape, verification_percent=0))
    with pytest.raises(UserError, match="a cheat of runs with verification_percent > 0"):
        from_plain(to_plain(unchecked))
    assert from_json('{"seed": 1}') == Script(seed=1)


def test_runs_without_verification_are_those_of_before() -> None:
    """Marks of the code of before: every event of every machine, in its order and at its time."""
    marks = {seed: run_script(generate(seed)).mark for seed in (1, 2, 200)}
    assert marks == {1: 4553061138062058209, 2: 886496790984179792, 200: 2786003366297133999}
