"""Everybody dies, or the coordinator forgets: nothing that a quorum accepted is lost while one disk survives (F18)."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from live_run import RUN_ID, RUN_KEYS, THREE, LiveRun, StartRun
from psyche_backend_tcp.server.state_store import StateStore, state_file
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry.events import (
    CheckpointSaved,
    Dropped,
    Ended,
    EpochDigest,
    Joined,
    MemberExited,
    ModelLoaded,
    ModelLost,
    Problem,
    Resumed,
    Resynced,
    RunContinued,
    Started,
    StateIsOlder,
    StepApplied,
    StepTrained,
    WentBack,
    WitnessReported,
)
from psyche_core.types import RunState
from psyche_core.wire.signing import SecretKey

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(600)]

TOTAL = 28
BATCH = 6


@pytest.fixture
def run_keys() -> Mapping[str, object]:
    return {
        **RUN_KEYS,
        "rounds_per_epoch": 10,
        "total_steps": TOTAL,
        "global_batch_size_start": BATCH,
        "global_batch_size_end": BATCH,
        "warmup_time": 20,
        "cooldown_time": 2,
    }


@pytest.fixture
def live_run(live_run: StartRun) -> StartRun:
    """The same with a server that keeps its state, and with three clients."""

    def make(**changes: object) -> LiveRun:
        run = live_run(server=("--save-state-dir", "saved", "--reconnect-seconds", 1), **changes)
        for name in THREE:
            run.start_client(name)
        return run

    return make


def saved_state(run: LiveRun) -> CoordinatorState:
    """The coordinator's state as it lies on the disk."""
    saved = StateStore(run.folder / "saved", RUN_ID).load()
    assert saved is not None
    return saved.update.state


def wait_until_applied(run: LiveRun, step: int) -> None:
    """Wait until all three have applied a step."""
    run.wait(lambda: all(any(told.step >= step for told in run.told(name, StepApplied)) for name in THREE))


def newest_applied(run: LiveRun) -> int:
    """The newest step that any client has applied so far."""
    return max(told.step for name in THREE for told in run.told(name, StepApplied))


def all_gone(run: LiveRun, how: int) -> None:
    """End all clients by a signal and wait until they are gone."""
    if how == signal.SIGKILL:
        run.kill(*THREE)
        return

    for name in THREE:
        run.signal(name, how)
    for name in THREE:
        assert run.processes[name].wait(timeout=60) == 0, run.log(name)


def knows_most(run: LiveRun) -> str:
    """Of clients that were killed, one that has on its disk whatever a quorum may have accepted, and the others may have alone.

    It stated to the server last, which a client does when it has a round's results. Who was killed before it stated may lack
    some.
    """
    run.wait(lambda: time.time() - run.events("server")[-1][0] > 1)  # what was on its way has arrived
    names = {SecretKey.load(run.folder / f"{name}.key").public.hex()[:8]: name for name in THREE}
    return names[run.told("server", WitnessReported)[-1].member]


def assert_nothing_was_lost(run: LiveRun, *, after: float, last: int, steps: int = TOTAL) -> None:
    """The run went on after step `last` and to its end; each step was accepted in one epoch only; all hold the same model."""
    first = min(told.step for name in THREE for told in run.told(name, StepTrained, after=after))
    assert first > last, f"step {last} was applied, then step {first} was trained"
    assert not run.told("server", WentBack)
    epochs: dict[int, set[int]] = {}
    for told in chain.from_iterable(run.told(name, StepApplied) for name in THREE):
        if told.accepted:
            epochs.setdefault(told.step, set()).add(told.epoch)
    told_of = {told.step for name in THREE for told in run.told(name, StepApplied)}
    replayed = max(told.step or 0 for name in THREE for told in run.told(name, ModelLoaded, after=after))
    assert told_of | set(range(last + 1, replayed + 1)) == set(range(1, steps + 1)), "what the state had settled was on the disks"
    assert {step: where for step, where in epochs.items() if len(where) > 1} == {}, "steps that were trained twice"
    state = saved_state(run)
    assert state.lost_samples == 0
    queued = sum(interval.last - interval.first + 1 for interval in state.requeue)
    used = state.progress.data_index - queued
    # Of a step that not all results were accepted of, samples may still be queued.
    whole = {
        told.step for name in THREE for told in run.told(name, StepApplied) if told.accepted and told.accepted == told.trained
    }
    assert BATCH * len(whole) <= used <= BATCH * steps, "no sample was trained twice"
    assert_identical(run, steps=steps)


def assert_identical(run: LiveRun, *, steps: int = TOTAL) -> None:
    """Everybody ended well, with one and the same final model, and the loss went on falling."""
    assert [run.told(name, Ended)[-1].success for name in ("server", *THREE)] == [True] * 4
    final = {name: run.told(name, EpochDigest)[-1] for name in THREE}
    assert {end.step for end in final.values()} == {steps}
    assert len({end.sha256 for end in final.values()}) == 1, final
    losses: dict[int, float] = {told.step: told.loss for name in THREE for told in run.told(name, StepTrained)}
    assert losses[steps] < losses[1] - 0.3, losses


@pytest.mark.soak  # one surviving disk is tested each time, below
@pytest.mark.parametrize(
    ("step", "how"),
    [
        pytest.param(4, signal.SIGTERM, id="first-epoch-term"),
        pytest.param(13, signal.SIGKILL, id="later-epoch-kill", marks=pytest.mark.soak),
        pytest.param(4, signal.SIGKILL, id="first-epoch-kill", marks=pytest.mark.soak),
        pytest.param(13, signal.SIGTERM, id="later-epoch-term", marks=pytest.mark.soak),
    ],
)
def test_who_comes_back_with_a_disk_goes_on_after_the_last_accepted_step(live_run: StartRun, how: int, step: int) -> None:
    run = live_run()
    wait_until_applied(run, step)
    gone = time.time()
    all_gone(run, how)
    last = newest_applied(run)
    for name in THREE:
        run.start_again(name)
    run.wait_for_end()
    for name in THREE:
        loaded = run.told(name, ModelLoaded, after=gone)[0]
        assert loaded.step is not None, "no weights of the beginning"
        if how == signal.SIGTERM:
            assert_needed_no_replay(run, name, gone)
    assert max(run.told(name, ModelLoaded, after=gone)[0].step or 0 for name in THREE) >= last
    assert_nothing_was_lost(run, after=gone, last=last)


def assert_needed_no_replay(run: LiveRun, name: str, gone: float) -> None:
    """Who was asked to leave saved a checkpoint last, and went on from it."""
    resumed = run.told(name, Resumed, after=gone)[0]
    left = next(event for _, event in run.events(name) if isinstance(event, Ended))
    assert left.reason == "left the run as asked"
    saved = run.told(name, CheckpointSaved, after=gone)[0]
    assert saved.step >= max(told.step for told in before(run, name, StepApplied, gone))
    assert resumed.checkpoint == saved.step
    assert resumed.step is not None
    assert saved.step <= resumed.step <= resumed.due


def before(run: LiveRun, name: str, kind: type[StepApplied], end: float) -> list[StepApplied]:
    return [event for moment, event in run.events(name) if isinstance(event, kind) and moment <= end]


def test_one_surviving_disk_brings_everybody_back(live_run: StartRun) -> None:
    run = live_run()
    wait_until_applied(run, 13)
    gone = time.time()
    all_gone(run, signal.SIGKILL)
    last = newest_applied(run)
    others = [name for name in THREE if name != knows_most(run)]
    for name in others:
        shutil.rmtree(run.folder / f"{name}-checkpoints")
    for name in THREE:
        run.start_again(name)
    run.wait_for_end()
    for name in others:
        assert run.told(name, Resynced, after=gone), "from the one that has it"
    assert_nothing_was_lost(run, after=gone, last=last)


@pytest.mark.soak
def test_a_server_started_with_a_wrong_folder_for_a_while_costs_nothing(live_run: StartRun) -> None:
    """The members join the run that it begins anew under the same name, and set their checkpoints and journals aside for it."""
    run = live_run()
    wait_until_applied(run, 13)
    all_gone(run, signal.SIGKILL)
    last = newest_applied(run)
    (run.folder / "empty").mkdir()
    shutil.copyfile(run.folder / "saved/server.key", run.folder / "empty/server.key")  # members know the server by its key
    (run.folder / "empty/server.key").chmod(0o600)
    mistaken = time.time()
    for place in ("empty", "saved"):
        run.kill("server")
        started = time.time()
        run.start_again("server", "--save-state-dir", place)
        run.wait(partial(run.told, "server", Started, after=started))
        for name in THREE:
            run.start_again(name)
        if place == "empty":
            run.wait(lambda: all(any(one.step >= 3 for one in run.told(name, StepApplied, after=mistaken)) for name in THREE))
            assert newest_applied(run) == last, "a run of its own, which begins with step 1"
            all_gone(run, signal.SIGTERM)
    run.wait_for_end()
    first = min(told.step for name in THREE for told in run.told(name, StepTrained, after=started))
    assert first > last, f"step {last} was applied, then step {first} was trained"
    assert not run.told("server", WentBack)
    for name in THREE:
        said = [problem.message for problem in run.told(name, Problem, after=started)]
        assert any("belongs to this run: it was renamed back" in one for one in said), said
        assert any("it belongs to another run; it was renamed to" in one for one in said), said
    assert_identical(run)


@pytest.mark.soak  # the simulator plays it
def test_with_all_disks_gone_the_run_waits_for_its_owner_who_lets_it_go_on_from_the_stored_checkpoint(
    live_run: StartRun,
) -> None:
    run = live_run(warmup_time=12)
    wait_until_applied(run, 13)
    all_gone(run, signal.SIGKILL)
    for name in THREE:
        shutil.rmtree(run.folder / f"{name}-checkpoints")
        run.start_again(name)
    lost = run.wait(lambda: run.told("server", ModelLost))[-1]
    assert lost.step >= 10
    state = run.wait(lambda: (state := saved_state(run)).model_lost and state)
    assert state is not False
    assert state.run_state.name == "Paused"
    told = run.wait(lambda: all(run.told(name, ModelLost) for name in THREE) and [run.told(name, ModelLost) for name in THREE])
    assert told == [[ModelLost(lost.step, to_owner=False)]] * 3

    assert lost.away == (), "all who trained are here, without a disk"
    run.kill("server")
    restarted = time.time()
    run.run_told("server", lost.begin_again)
    back = run.wait(lambda: run.told("server", WentBack, after=restarted))[-1]
    assert (back.from_step, back.to_step, back.from_checkpoint) == (lost.step, 0, True)
    run.wait_for_end()
    assert [run.told(name, WentBack) for name in THREE] == [[back]] * 3, "each member says so in its own log"
    first = min(told.step for name in THREE for told in run.told(name, StepTrained, after=restarted))
    assert first == 1
    assert_identical(run)


@pytest.mark.soak  # the simulator plays it
def test_a_member_that_is_away_still_has_the_model_that_seems_lost(live_run: StartRun) -> None:
    """The server names it; it is started, and the owner lets the run ask again, with the command that the server tells."""
    run = live_run()
    wait_until_applied(run, 13)
    gone = time.time()
    all_gone(run, signal.SIGKILL)
    last = newest_applied(run)
    away = knows_most(run)
    others = [name for name in THREE if name != away]
    for name in others:
        shutil.rmtree(run.folder / f"{name}-checkpoints")
        run.start_again(name)
    run.start_client("stranger")
    lost = run.wait(lambda: run.told("server", ModelLost))[-1]
    assert lost.away == (SecretKey.load(run.folder / f"{away}.key").public.hex()[:8],)
    run.start_again(away)
    run.wait(lambda: run.told(away, Joined, after=gone))
    run.run_told("server", lost.ask_again)
    run.wait_for_end()
    assert_nothing_was_lost(run, after=gone, last=last)


@pytest.mark.soak  # test_serving_again.py returns such a run, and the simulator plays members that go back
def test_the_owner_returns_the_run_to_a_signed_epoch_end(live_run: StartRun) -> None:
    """As where the model is contested, and the owner believes none of those that members offer."""
    run = live_run()
    wait_until_applied(run, 12)
    run.signal("server", signal.SIGUSR1)
    run.wait(lambda: saved_state(run).run_state is RunState.Paused)
    end = saved_state(run).ends[0].step
    assert end == 10
    run.signal("server", signal.SIGINT)
    run.processes["server"].wait(timeout=60)
    restarted = time.time()
    run.start_again("server", "--restart-from-step", end + 1)
    run.wait_for_end()
    (back,) = run.told("server", WentBack, after=restarted)
    assert (back.to_step, back.from_checkpoint, back.by_owner) == (end, False, True)
    assert [run.told(name, WentBack) for name in THREE] == [[back]] * 3, "each member says so in its own log"
    assert min(told.step for name in THREE for told in run.told(name, StepTrained, after=restarted)) == end + 1
    assert_identical(run)


@pytest.mark.soak  # the simulator plays it
@pytest.mark.parametrize(
    "which",
    [pytest.param("previous", marks=pytest.mark.soak), "rounds-ago", pytest.param("witnessing", marks=pytest.mark.soak)],
)
def test_members_go_on_with_a_coordinator_that_comes_back_with_an_older_state(live_run: StartRun, which: str) -> None:
    run = live_run()
    path = state_file(run.folder / "saved", RUN_ID)
    older = run.folder / "older.state"
    if which == "previous":
        wait_until_applied(run, 5)
    else:
        wait_until_applied(run, 3)
        run.wait(lambda: _copied(path, older) and (which == "rounds-ago" or _is_witnessed(older)))
        wait_until_applied(run, newest_applied(run) + 3)
    known = go_back(run, path.with_name(path.name + ".previous") if which == "previous" else older)
    restarted = time.time()
    run.start_again("server")
    run.wait(lambda: any(run.told(name, StepTrained, after=restarted) for name in THREE))
    first = min(told.step for name in THREE for told in run.told(name, StepTrained, after=restarted))
    assert first >= known - 1, "what the state knows is not trained again"
    run.wait_for_end()
    assert not run.told("server", WentBack)
    assert_identical(run)
    if which == "rounds-ago":
        told = run.told("server", StateIsOlder, after=restarted)
        assert told, "the server says how far the run was, as members or its own later file tell it"
        assert [event.later_path for event in told if event.member is None] == [f"saved/{path.name}.later"]
        assert {event.step for event in told} == {known}
        assert min(event.known_step for event in told) > known
        for name in THREE:
            assert any("starting over" in problem.message for problem in run.told(name, Problem)), name
            assert run.told(name, Ended)[0].reason.startswith("the coordinator was restored from an earlier state: it is in "), (
                name
            )
            assert not {told.why for told in run.told(name, Dropped, after=restarted)} & {"silent", "late"}, name
        assert "late" not in {told.why for told in run.told("server", MemberExited, after=restarted)}, "they had to begin again"


@pytest.mark.soak
def test_the_owner_is_told_by_disks_where_all_programs_were_gone_and_the_whole_folder_is_older(live_run: StartRun) -> None:
    """Nobody had the later state in memory, and no file of it was left: training went back in silence."""
    run = live_run()
    saved, older = run.folder / "saved", run.folder / "older"
    wait_until_applied(run, 3)
    run.signal("server", signal.SIGINT)
    run.processes["server"].wait(timeout=60)
    shutil.copytree(saved, older)
    run.start_again("server")
    wait_until_applied(run, newest_applied(run) + 4)
    run.kill("server", *THREE)
    shutil.rmtree(saved)
    shutil.copytree(older, saved)
    known, restarted = saved_state(run).progress.step, time.time()
    for name in ("server", *THREE):
        run.start_again(name)
    told = run.wait(lambda: run.told("server", StateIsOlder, after=restarted))
    assert (told[0].step, told[0].later_path) == (known, None)
    assert told[0].member is not None
    assert told[0].known_step > known
    run.wait(lambda: any("Tell the run's owner" in each.message for name in THREE for each in run.told(name, Problem)))
    run.wait_for_end()
    assert_identical(run)


@pytest.mark.soak
@pytest.mark.parametrize(("applied", "lost"), [(13, False), (19, True)], ids=["one-checkpoint-later", "two-checkpoints-later"])
def test_a_state_from_before_the_last_checkpoint(live_run: StartRun, applied: int, lost: bool) -> None:
    """The state is between the ends of steps 6 and 12. Members keep the journal before the present one, and no older one."""
    total = 22 if lost else TOTAL
    run = live_run(rounds_per_epoch=6, warmup_time=12, total_steps=total)
    older = run.folder / "older.state"
    wait_until_applied(run, 9)
    run.wait(lambda: _copied(state_file(run.folder / "saved", RUN_ID), older))
    wait_until_applied(run, applied)
    known = go_back(run, older)
    restarted = time.time()
    run.start_again("server")
    run.wait_for_end()
    back = run.told("server", WentBack, after=restarted)
    first = min(told.step for name in THREE for told in run.told(name, StepTrained, after=restarted))
    if lost:
        assert [(event.to_step, event.from_checkpoint) for event in back] == [(6, False)]
    else:
        assert not back, "every disk has the masters of the state's step"
        assert first >= known - 1, "what the state knows is not trained again"
    assert_identical(run, steps=total)


@pytest.mark.soak
def test_a_model_lost_through_too_old_a_state_comes_back_with_the_newest_one(live_run: StartRun) -> None:
    """The state knows no epoch's end, and members keep no model so old: the owner was told how to begin again, and no more."""
    run = live_run(rounds_per_epoch=4, warmup_time=12, total_steps=24)
    path = state_file(run.folder / "saved", RUN_ID)
    older, newest = run.folder / "older.state", run.folder / "newest.state"
    wait_until_applied(run, 2)
    run.wait(lambda: _copied(path, older))
    wait_until_applied(run, 17)
    run.signal("server", signal.SIGINT)
    run.processes["server"].wait(timeout=60)
    shutil.copyfile(path, newest)
    last = saved_state(run).progress.step - 1
    shutil.copyfile(older, path)
    run.start_again("server")
    lost = run.wait(lambda: run.told("server", ModelLost))[-1]
    assert (lost.state_dir, lost.later_path) == ("saved", f"saved/{path.name}.later")
    assert run.told("server", StateIsOlder)
    go_back(run, newest)
    back = time.time()
    run.start_again("server")
    run.wait_for_end()
    assert run.told("server", RunContinued, after=back)
    assert not run.told("server", WentBack)
    first = min(told.step for name in THREE for told in run.told(name, StepTrained, after=back))
    assert first >= last - 1, f"the newest state is after step {last}, then step {first} was trained"
    assert_identical(run, steps=24)


def go_back(run: LiveRun, older: Path) -> int:
    """Stop the server and put an older state in place of its own; the next step in that one."""
    run.signal("server", signal.SIGINT)
    run.processes["server"].wait(timeout=60)
    path = state_file(run.folder / "saved", RUN_ID)
    path.unlink()
    shutil.copyfile(older, path)
    return saved_state(run).progress.step


def _is_witnessed(older: Path) -> bool:
    """Whether a quorum has stated in the present round of a saved state, which is not over yet."""
    saved = StateStore(older.parent / "copied", RUN_ID)
    path = state_file(older.parent / "copied", RUN_ID)
    path.parent.mkdir(exist_ok=True)
    shutil.copyfile(older, path)
    found = saved.load()
    assert found is not None
    state = found.update.state
    current = state.current_round
    return state.run_state is RunState.RoundWitness and current is not None and len(current.statements) >= 2


def _copied(path: Path, to: Path) -> bool:
    """Copy a file that is replaced now and then."""
    try:
        shutil.copyfile(path, to)
    except FileNotFoundError:
        return False
    return True
