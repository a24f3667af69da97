"""The simulator itself: deterministic, every fault strikes, failures are shrunk, scripts travel."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.coordinator.commands import Equivocation, SignedResult
from psyche_core.coordinator.lifecycle import rounds
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import UserError
from psyche_core.simulator.compare import MAX_STEP_RATIO, cost_of, too_slow, without_faults
from psyche_core.simulator.generate import LONE_EVERY, generate, lone_liar
from psyche_core.simulator.members.keys import INSTANCE, identity_of, key_of, signed_by, with_real_signatures
from psyche_core.simulator.members.node import Node
from psyche_core.simulator.members.owner import Owner
from psyche_core.simulator.parallel_runs import RunOptions, one_run, run_seeds
from psyche_core.simulator.replicas.announcement_log import AnnouncementLog
from psyche_core.simulator.replicas.replica import EMPTY_RESULT, Payload
from psyche_core.simulator.run_result import SimFailure
from psyche_core.simulator.sample_tracker import bits
from psyche_core.simulator.script import KINDS, LIES, Fault, Script, from_json, from_plain, to_plain
from psyche_core.simulator.shrink import shrunk
from psyche_core.simulator.world import World, run_script
from psyche_core.types import BatchId
from psyche_core.wire.messages import Result, sign_commitment

SLICE_RUNS = 40
FIRST_SEED = 3_000_000


def quiet(kind: str, **changes: Any) -> Script:
    """A usual run with faults of one kind, long enough to strike."""
    nodes = {
        "partition": (0, 1), "asymmetric": (0, 1), "server-restart": (-1,), "older-state": (-1,), "owner-pause": (),
        "all-die": (0, 1, 2), "empty-results": tuple(range(8)),
    }.get(kind, (1,))  # fmt: skip
    amount = {"slow": 8.0, "skew": 2.0, "delay": 1.0, "older-state": 2.0, "slow-rpc": 3.0}.get(kind, 0.4)
    duration = 0.0 if kind in ("crash", "leave", "bit-flip", *LIES) else 8.0
    start = 0.0 if kind == "late" else 3.0
    fault = Fault(kind=kind, start=start, duration=duration, nodes=nodes, amount=amount)
    return replace(Script(seed=5, rounds=10, faults=(fault,)), **changes)


def test_a_run_without_faults_trains_every_step_and_all_end_with_success() -> None:
    result = run_script(generate(1, kinds=()))
    assert result.failure is None
    assert result.steps == 20
    assert result.end_reasons[-1] == "TotalSteps"


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_script(generate(77)).mark == run_script(generate(77)).mark
    assert run_script(generate(77)).mark != run_script(generate(78)).mark


def test_a_signature_that_an_earlier_run_made_too_still_proves_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was forgotten as old when it had just been made: one run of some thousands failed, never when it ran alone."""
    monkeypatch.setattr("psyche_core.simulator.members.keys.CACHE_SIZE", 50)
    commitments = [bytes([number]) * 32 for number in range(51)]
    halves: list[SignedResult] = []
    for commitment in (*commitments[:50], commitments[0], commitments[50]):
        halves = [*halves, SignedResult(commitment, signed_by(3, commitment))][-2:]

    evidence = with_real_signatures(Equivocation(identity_of(3), 1, 1, 0, *halves))

    for half in (evidence.first, evidence.second):
        assert half.signature == sign_commitment(key_of(3), INSTANCE, half.payload_hash)


def test_a_stored_checkpoint_that_is_a_wrong_one_is_loaded_once_an_epoch_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of loads would ask the Hub several times a second. The owner names a checkpoint with the signed digest."""
    loads: Counter[tuple[str, int, int]] = Counter()

    class Member(Node):
        def _load(self, work: act.Load, lineage: int) -> ev.Event:
            loads[self.name, self.incarnation, work.state.epoch.start_time] += work.fresh
            return super()._load(work, lineage)

    monkeypatch.setattr(World, "member", Member)
    timeline: list[tuple[float, str, str]] = []
    script = json.loads((Path(__file__).parent / "found" / "stored-where-a-liar-said.json").read_text())["script"]
    world = World(from_plain(script), timeline=timeline)
    assert world.run().failure is None
    assert world.counts["owner named another checkpoint"] == 1
    assert set(loads.values()) == {0, 1}
    sentence = "the run's owner has to name another checkpoint"
    assert {who for _, who, what in timeline if sentence in what} >= {f"client-{index}" for index in (0, 1, 2, 3, 5, 6, 7)}


def test_without_any_disk_or_sound_checkpoint_the_owner_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "_is_valid", lambda *_: False)
    script = json.loads((Path(__file__).parent / "found" / "stored-where-a-liar-said.json").read_text())["script"]
    result = run_script(from_plain(script))
    assert (result.failure, result.counts["nobody has the model"]) == (None, 1)


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    code = (
        "from psyche_core.simulator.generate import generate; from psyche_core.simulator.world import run_script;"
        "print([run_script(generate(seed)).mark for seed in (77, 78, 79)])"
    )
    marks = []
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, env=environment)
        marks.append(json.loads(done.stdout))
    assert marks[0] == marks[1] == [run_script(generate(seed)).mark for seed in (77, 78, 79)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_strikes_and_is_survived(kind: str) -> None:
    result = run_script(quiet(kind))
    assert result.failure is None, str(result.failure)
    assert result.counts.get(kind, 0) > 0
    assert result.steps == 10


def test_a_fault_changes_the_run() -> None:
    undisturbed = run_script(replace(quiet("drop"), faults=()))
    assert undisturbed.mark != run_script(quiet("drop")).mark


def test_a_paused_run_of_the_owner_stands_still_and_goes_on() -> None:
    assert "Pause" in run_script(quiet("owner-pause")).end_reasons


def test_messages_and_states_may_travel_as_bytes() -> None:
    sealed = run_script(quiet("pause", sealed=True))
    assert sealed.failure is None
    assert sealed.mark == run_script(quiet("pause")).mark, "how values travel changes nothing"


@pytest.mark.parametrize(
    ("clients", "seeds", "steps"), [(1, 3, 8), (2, 3, 8), (3, 3, 8), (16, 1, 8), pytest.param(64, 1, 3, marks=pytest.mark.soak)]
)
def test_runs_of_other_sizes_hold_too(clients: int, seeds: int, steps: int) -> None:
    for seed in range(seeds):
        result = run_script(generate(seed, clients=clients, rounds=steps))
        assert result.failure is None, str(result.failure)
        assert result.steps == steps


def test_in_large_runs_any_draw_of_witnesses_has_an_honest_quorum() -> None:
    most = max(len(generate(seed, clients=64).liars) for seed in range(60))
    assert 1 < most <= 10, "of 32 witnesses 22 are a quorum"


def test_equal_bytes_stand_for_the_samples_of_who_committed_to_them() -> None:
    shares = [(BatchId(0, 1),), (BatchId(2, 3),), (BatchId(4, 5),)]
    commitments = [bytes((index,)) * 32 for index in range(len(shares))]
    announced = AnnouncementLog()
    for index, (share, commitment) in enumerate(zip(shares, commitments, strict=True)):
        announced.record(index, Result(0, 7, 8, 0, share, EMPTY_RESULT, 32, commitment, bytes(64)))
    announced.record(2, Result(0, 7, 8, 0, shares[2], EMPTY_RESULT, 32, commitments[1], bytes(64)))
    held = {EMPTY_RESULT: Payload(EMPTY_RESULT, 2, bits(shares[2]))}

    once = announced.payloads_of((EMPTY_RESULT,), commitments[1:2], held)
    twice = announced.payloads_of((EMPTY_RESULT, EMPTY_RESULT), commitments[:2], held)

    assert [(payload.trainer, payload.samples) for payload in once] == [(1, 0b1100)], "whoever repeated it later"
    assert [payload.samples for payload in twice] == [0b11, 0b1100]
    assert announced.announcers((7, 8)) == {0, 1, 2}
    assert not announced.announcers((8, 8))


def test_a_provider_that_lags_never_shows_an_older_state_after_a_newer_one() -> None:
    seen: list[int] = []
    world = World(replace(quiet("slow-rpc"), seed=6))
    node = world.nodes[1]
    original = node.receive

    def receive(incarnation: int, event: ev.Event, *, lineage: int | None = None) -> None:
        if isinstance(event, ev.StateSeen):
            seen.append(node.version)
        original(incarnation, event, lineage=lineage)

    node.receive = receive  # type: ignore[method-assign]
    assert world.run().failure is None
    assert world.counts["slow-rpc"] > 0
    assert seen == sorted(set(seen))


def test_a_server_with_an_older_state_makes_its_steps_be_trained_again() -> None:
    world = World(quiet("older-state"))
    steps: list[int] = []
    before = world.server.changed
    assert before is not None

    def changed(state: CoordinatorState, now: float) -> None:
        steps.append(state.progress.step)
        before(state, now)

    world.server.changed = changed
    world.run()
    assert world.counts["older-state"] == 1
    assert any(later < earlier for earlier, later in pairwise(steps))


# ---------------------------------------------------------------------------------------- what liars cost


def test_a_member_that_never_states_costs_little_and_the_figures_say_so() -> None:
    cost = cost_of("never-states", members=4, seeds=range(1), steps=60)
    assert cost.step_ratio <= MAX_STEP_RATIO
    assert cost.time_ratio > 1.0


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("withhold", 505),
        pytest.param("withhold", 791558714, marks=pytest.mark.soak),
        ("selective-finished", 500),
        pytest.param("selective-finished", 503, marks=pytest.mark.soak),
    ],
)
def test_who_gives_things_to_some_members_only_costs_little_and_makes_nobody_else_look_late(kind: str, seed: int) -> None:
    """Withheld payloads: members that fetched for long, or stopped waiting later than others, were not waited for and dropped.

    Finished to few: the others heard of it half a second later in the median, and the run took up to 1.56 times as long.
    """
    script = lone_liar(kind, members=8, seed=seed)
    result = run_script(script)
    assert result.failure is None, str(result.failure)
    assert too_slow(script, result) is None
    assert result.counts[kind] > 0


def test_who_does_its_work_and_states_in_the_last_moment_costs_little() -> None:
    """Its statements forgave it everything, and each round lasted the whole round_witness_time."""
    script = lone_liar("late-statement", members=8, seed=500)
    result = run_script(script)
    assert result.failure is None, str(result.failure)
    assert too_slow(script, result) is None
    assert result.counts["late-statement"] > 0


@pytest.fixture
def dropped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer whose result divided the witnesses is dropped, as once. So a member is left behind in the run of 700199."""
    monkeypatch.setattr("psyche_core.coordinator.membership.members.split_vote_slots", lambda *_: frozenset())
    monkeypatch.setattr("psyche_core.coordinator.lifecycle.rounds.split_vote_trainers", lambda *_: frozenset())


@pytest.mark.usefixtures("dropped_at_once")
def test_a_failure_of_the_honest_run_beside_a_liar_comes_back_from_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was raised, and an exception that could not be read in the parent ended the pool's reader: nothing more came."""
    seed = 700199
    script = generate(seed)
    monkeypatch.setattr("psyche_core.simulator.world.is_straggler", lambda *_: False)  # this run has a member that is left behind
    _, found, _ = one_run(RunOptions(kinds=KINDS, shrink=0), seed)
    assert found is not None
    assert (found.invariant, found.script.faults, found.original.faults) == ("no-honest-member-dropped", (), ())
    failure = SimFailure(invariant="one", time=1.5, sentence="two", script=script)
    read = pickle.loads(pickle.dumps(failure))
    assert (str(read), read.script, read.time) == (str(failure), script, 1.5)


def test_a_member_whose_result_only_some_witnesses_saw_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this run a slow member was dropped for one such result, which the test above shows."""
    monkeypatch.setattr("psyche_core.simulator.world.is_straggler", lambda *_: False)
    result = run_script(without_faults(generate(700199)))
    assert result.failure is None, str(result.failure)


@pytest.mark.usefixtures("dropped_at_once")
def test_who_is_much_slower_than_all_others_is_left_behind_and_that_is_no_failure() -> None:
    script = without_faults(generate(700199))
    result = run_script(script)
    assert result.failure is None, str(result.failure)


def test_a_lone_liar_that_costs_much_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_core.simulator.compare.MAX_TIME_RATIO", 1.0)
    seed = LONE_EVERY - 1
    _, found, times = one_run(RunOptions(kinds=("never-states",), shrink=0), seed)
    assert found is not None
    assert found.invariant == "a-liar-costs-little-time"
    assert times is None
    assert found.script == generate(seed, kinds=("never-states",))


@pytest.mark.parametrize("kind", ["restart", "bit-flip", "wrong-shape"])
def test_the_same_scripts_run_with_real_tiny_models(kind: str) -> None:
    pytest.importorskip("torch")
    result = run_script(quiet(kind, trainer="torch", rounds=6, clients=4))
    assert result.failure is None, str(result.failure)
    assert result.counts[kind] > 0
    assert result.steps == 6


# ---------------------------------------------------------------------------------------- scripts


def test_scripts_survive_json() -> None:
    for seed in range(50):
        script = generate(seed)
        assert from_plain(json.loads(json.dumps(to_plain(script)))) == script


@pytest.mark.parametrize(
    "text",
    ["", "[]", "1", '{"seed": 1, "colour": "red"}', '{"seed": 1, "faults": [{"kind": "flu", "start": 1}]}',
     '{"seed": 1, "faults": [{"kind": "crash", "start": 1, "nodes": [9]}]}', '{"seed": 1, "clients": 0}'],
)  # fmt: skip
def test_what_is_no_script_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="script"):
        from_json(text)


def test_generated_liars_never_reach_what_honest_members_cannot_outvote() -> None:
    for seed in range(300):
        script = generate(seed)
        if script.liars:
            assert 3 * len(script.liars) <= script.shape.min_clients
            assert script.shape.witness_nodes == 0
        assert all(fault.end < 100.0 for fault in script.faults)


def test_shrinking_keeps_what_matters_and_drops_the_rest() -> None:
    guilty = Fault(kind="pause", start=4.0, duration=8.0, nodes=(2,))
    noise = tuple(Fault(kind="delay", start=float(place), duration=3.0, amount=0.2) for place in range(6))
    script = Script(seed=1, rounds=20, faults=(*noise[:3], guilty, *noise[3:]))

    def play(tried: Script) -> SimFailure | None:
        broken = any(fault.kind == "pause" and fault.duration >= 2.0 for fault in tried.faults)
        return SimFailure(invariant="x", time=1.0, sentence="s", script=tried) if broken else None

    failure = play(script)
    assert failure is not None
    small = shrunk(failure, play=play).script
    assert [fault.kind for fault in small.faults] == ["pause"]
    assert small.faults[0].duration < guilty.duration
    assert small.rounds == 1
    assert small.clients == 3


def test_a_real_failure_shrinks_and_its_script_fails_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "added", lambda queue, batches: (queue, 0))
    failure = next(found for found in (run_script(generate(seed)).failure for seed in range(20)) if found is not None)
    small = shrunk(failure, attempts=40)
    assert small.invariant == failure.invariant
    assert len(small.script.faults) <= len(failure.script.faults)
    again = run_script(from_plain(to_plain(small.script))).failure
    assert again is not None
    assert (again.invariant, again.time) == (small.invariant, small.time)


# ---------------------------------------------------------------------------------------- the command


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slice_of_seeds_breaks_no_invariant() -> None:
    """The same seeds each time, so that what breaks here was broken by the change; `make soak` plays fresh ones.

    PSYCHE_SIM_SEED plays another slice, PSYCHE_SIM_RUNS makes it longer.
    """
    first = int(os.environ.get("PSYCHE_SIM_SEED", FIRST_SEED))
    runs = int(os.environ.get("PSYCHE_SIM_RUNS", SLICE_RUNS))
    print(f"seeds {first}:{first + runs}")
    *_, tally = run_seeds(RunOptions(kinds=KINDS, shrink=20), range(first, first + runs), jobs=2)
    assert tally.runs == runs
    told = [
        f"seed {found.seed}: {found.invariant}: {found.sentence} {json.dumps(to_plain(found.script))}" for found in tally.failures
    ]
    assert not told, "\n".join(told)
