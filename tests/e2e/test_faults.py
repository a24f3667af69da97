"""Members of a real run are killed, stopped, cut off and asked to leave: nothing accepted is lost, all replicas stay equal."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import pytest

from cuttable_links import SERVER, LinksUnavailable, cuttable_links
from live_run import THREE, StartRun

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(300)]


@pytest.mark.soak  # the simulator plays it
def test_each_client_is_killed_in_turn_witness_or_not(live_run: StartRun) -> None:
    """Two of three witness a round; a client that just did, one that did not, and then the third come back and train on."""
    run = live_run(total_steps=56, witness_nodes=2)
    for name in THREE:
        run.start_client(name)
    for name in THREE:
        run.wait_for_steps(name, 3)
    left = list(THREE)
    for wanted in (True, False, None):
        victim = run.wait(lambda: next((name for name in left if wanted in (None, run.is_witness(name))), None))  # noqa: B023
        assert victim is not None
        left.remove(victim)
        killed = time.time()
        run.kill(victim)
        run.start_again(victim)
        run.wait_for_steps(victim, 1, after=killed)
    run.wait_for_end()
    metrics = run.assert_kept_its_promises(steps=56, finishers=THREE)
    assert metrics.kills == 3


@pytest.mark.soak
def test_two_of_five_are_killed_at_once(live_run: StartRun) -> None:
    """Nobody comes back: the other three finish, and what the two had given before is in their model."""
    run = live_run(total_steps=24, server=("--init-min-clients", 5))
    five = [f"client-{number}" for number in range(1, 6)]
    for name in five:
        run.start_client(name)
    run.wait_for_steps("client-5", 3)
    run.kill("client-2", "client-4")
    run.wait_for_end()
    run.assert_kept_its_promises(steps=24, finishers=("client-1", "client-3", "client-5"))


def test_a_server_killed_and_started_again_goes_on_where_it_was(live_run: StartRun, tmp_path: Path) -> None:
    run = live_run(total_steps=32, server=("--save-state-dir", tmp_path / "saved"))
    for name in THREE:
        run.start_client(name)
    run.wait_for_steps("client-1", 5)
    run.kill("server")
    for name in THREE:
        run.note("disturb", name)
    run.start_again("server")
    run.wait_for_end()
    run.assert_kept_its_promises(steps=32, finishers=THREE)


@pytest.mark.soak
def test_a_client_stopped_for_twenty_seconds_comes_back(live_run: StartRun) -> None:
    run = live_run(total_steps=40)
    for name in THREE:
        run.start_client(name)
    run.wait_for_steps("client-2", 3)
    run.signal("client-2", signal.SIGSTOP)
    time.sleep(20)  # the fault itself
    continued = time.time()
    run.signal("client-2", signal.SIGCONT)
    run.wait_for_steps("client-2", 3, after=continued)
    run.wait_for_end()
    run.assert_kept_its_promises(steps=40, finishers=THREE)


@pytest.mark.soak  # the simulator plays it
def test_a_client_cut_off_for_ten_seconds_comes_back(live_run: StartRun) -> None:
    """Its link is down: no packet passes, nobody is told, all its connections stay half open."""
    with contextlib.ExitStack() as stack:
        try:
            links = stack.enter_context(cuttable_links())
        except LinksUnavailable as reason:
            pytest.skip(f"needs network namespaces: {reason}")

        run = stack.enter_context(contextlib.closing(live_run(total_steps=40, host=SERVER)))
        for name in THREE:
            run.start_client(name, inside=links.inside(name))
        run.wait_for_steps("client-3", 3)
        run.note("disturb", "client-3")
        links.cut("client-3")
        time.sleep(10)  # the fault itself
        mended = time.time()
        links.mend("client-3")
        run.wait_for_steps("client-3", 3, after=mended)
        run.wait_for_end()
        run.assert_kept_its_promises(steps=40, finishers=THREE)


@pytest.mark.soak
def test_two_leave_when_asked_and_others_join_late(live_run: StartRun) -> None:
    """SIGINT and SIGTERM are withdrawals with exit code 0; a fourth client trains in the next epoch; who left may come again."""
    run = live_run(total_steps=40)
    for name in THREE:
        run.start_client(name)
    run.wait_for_steps("client-1", 3)
    for leaving, number, joining in (("client-1", signal.SIGINT, "client-4"), ("client-3", signal.SIGTERM, "client-1")):
        run.signal(leaving, number)
        assert run.processes[leaving].wait(timeout=60) == 0, run.log(leaving)
        asked = time.time()
        if joining in run.processes:
            run.start_again(joining)
        else:
            run.start_client(joining)
        run.wait_for_steps(joining, 2, after=asked)
    run.wait_for_end()
    metrics = run.assert_kept_its_promises(steps=40, finishers=("client-1", "client-2", "client-4"))
    assert all(epoch > 0 for epoch in metrics.clients["client-4"].trained.values()), "it took part from the next epoch on"
    assert metrics.resyncs >= 2, "each of the two got the others' model"
