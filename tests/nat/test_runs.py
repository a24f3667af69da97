"""Whole runs of members at home: `psyche server run --with-relay` on a public host, each client behind a router of its own."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable

import pytest

from live_run import LiveRun, StartRun
from psyche_core.telemetry.events import Dropped, PeerPaths, RelayStarted, Resynced, StepTrained
from psyche_core.wire.signing import SecretKey
from tests.nat.lab import Host, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def newest_paths(run: LiveRun, name: str) -> dict[str, str]:
    """First digits of each member's key -> how it is reached, as a client told last."""
    told = run.told(name, PeerPaths)
    return {each.peer: each.path for each in told[-1].peers} if told else {}


def name_of(run: LiveRun, name: str) -> str:
    """The first digits of a client's key."""
    return SecretKey.load(run.folder / f"{name}.key").public.hex()[:8]


def start(run: LiveRun, host: Host, *options: object) -> None:
    """Start a client on a host."""
    run.start_client(host.name, *options, inside=host.space.command())


@pytest.mark.slow
def test_members_behind_routers_of_their_own_train_one_model_and_a_late_one_gets_it(lab: Lab, live_run: StartRun) -> None:
    """One of three leaves for good, so the second epoch waits for the late one, which no other member reaches directly."""
    run = live_run(
        server=("--with-relay",),
        inside=lab.relay.space.command(),
        host=lab.relay.address,
        total_steps=60,  # 40 in which paths are found, and 20 with the late one
        rounds_per_epoch=40,
        max_round_train_time=15,
    )
    (offered,) = run.wait(lambda: run.told("server", RelayStarted), seconds=30)
    assert offered.url == f"http://{lab.relay.address}:3340/"
    homes = [lab.behind(kind, kind) for kind in ("port", "full", "sym")]
    slowly = ("--dummy-training-delay-secs", 0.5)  # else a fast machine is done before its members have found direct paths
    for home in homes:
        start(run, home, *slowly)
    for home in homes:
        run.wait_for_steps(home.name, 2)
    run.wait(lambda: newest_paths(run, "port").get(name_of(run, "full")) == "direct", seconds=60)
    assert newest_paths(run, "port")[name_of(run, "sym")] == "relayed"
    run.kill("full")
    start(run, lab.behind("sym", "late"), *slowly)
    run.wait_for_end()
    run.assert_kept_its_promises(steps=60, finishers=("port", "sym", "late"))
    assert run.told("late", Resynced)
    assert run.told("late", StepTrained)
    assert set(newest_paths(run, "late").values()) == {"relayed"}


@pytest.mark.soak  # a whole run behind routers
def test_members_that_only_the_relay_connects_move_to_one_that_replaces_it(lab: Lab, live_run: StartRun) -> None:
    """The server is killed and started again with its relay at another port, which it offers then."""
    run = live_run(
        server=("--with-relay", "--save-state-dir", "saved"),
        inside=lab.relay.space.command(),
        host=lab.relay.address,
        total_steps=60,
        rounds_per_epoch=30,
        max_round_train_time=15,
    )
    homes = [lab.behind("sym", f"home-{number}") for number in range(3)]
    for home in homes:
        start(run, home)
    for home in homes:
        run.wait_for_steps(home.name, 2)
        run.note("disturb", home.name)  # what is under way when its only path ends is trained again
    run.kill("server")
    moment = time.time()
    run.start_again("server", "--relay-port", 3341)
    (offered,) = run.wait(lambda: run.told("server", RelayStarted, after=moment), seconds=30)
    assert offered.url == f"http://{lab.relay.address}:3341/"
    for home in homes:
        run.wait_for_steps(home.name, 10, after=moment)
    run.wait_for_end()
    run.assert_kept_its_promises(steps=60, finishers=[home.name for home in homes])
    for home in homes:
        assert set(newest_paths(run, home.name).values()) == {"relayed"}
        assert all(dropped.returns for dropped in run.told(home.name, Dropped))  # a result was due while there was no path


RELAY_PORT = 3340


def relay_away(seconds: float) -> Callable[[Lab, LiveRun], None]:
    """Nobody answers at the relay's ports for a while; the coordinator beside it is not touched."""

    def fault(lab: Lab, run: LiveRun) -> None:
        lab.relay.refuse_port(RELAY_PORT)
        run.wait(lambda: "relayed" not in newest_paths(run, "port").values(), seconds=60)
        time.sleep(seconds)
        lab.relay.accept_port()

    return fault


def server_again(*options: object) -> Callable[[Lab, LiveRun], None]:
    """The server is killed, its relay with it, and started again."""

    def fault(lab: Lab, run: LiveRun) -> None:
        run.kill("server")
        moment = time.time()
        run.start_again("server", *options)
        run.wait(lambda: run.told("server", RelayStarted, after=moment), seconds=60)

    return fault


def member_moves(lab: Lab, run: LiveRun) -> None:
    """The member that both others reach directly gets another address and another router."""
    run.note("disturb", "full")  # its connection to the coordinator ends, too
    lab.move(next(host for host in lab.hosts if host.name == "full"), "full")


MOVES = "a member moves to another network"
FAULTS: dict[str, Callable[[Lab, LiveRun], None]] = {
    "relay away for 2 s": relay_away(2),
    "relay away for 10 s": relay_away(10),
    "relay away for 60 s": relay_away(60),
    "server and relay killed and restarted": server_again(),
    "relay replaced by another": server_again("--relay-port", RELAY_PORT + 1),
    MOVES: member_moves,
}
SHORT = "relay away for 2 s"


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.soak) for name in FAULTS])
@pytest.mark.timeout(600)
def test_a_run_goes_on_while_its_relay_does_not(lab: Lab, live_run: StartRun, name: str) -> None:
    """Two of three members have no other path than the relay, and the third is reached directly by both. Nobody is ejected."""
    steps = 40 if name == SHORT else 100  # so that the run still goes on when all paths are there again
    run = live_run(
        server=("--with-relay", "--save-state-dir", "saved"),
        inside=lab.relay.space.command(),
        host=lab.relay.address,
        total_steps=steps,
        rounds_per_epoch=steps,
        max_round_train_time=15,
    )
    homes = [lab.behind(kind, kind) for kind in ("port", "full", "sym")]
    for home in homes:
        start(run, home, "--dummy-training-delay-secs", 2 if "60" in name else 1)
    for home in homes:
        run.wait_for_steps(home.name, 2)

    def has_found_all() -> bool:
        near = (("port", "full", "direct"), ("sym", "full", "direct"), ("port", "sym", "relayed"))
        return all(newest_paths(run, one).get(name_of(run, other)) == path for one, other, path in near)

    run.wait(has_found_all, seconds=90)
    began = time.time()
    FAULTS[name](lab, run)
    well = time.time()
    run.wait(has_found_all, seconds=120)
    paths_after = time.time() - well
    for home in homes:
        run.wait_for_steps(home.name, 3, after=well)
    run.wait_for_end()
    run.assert_kept_its_promises(steps=steps, finishers=[home.name for home in homes])
    dropped = {home.name: run.told(home.name, Dropped) for home in homes}
    if name == MOVES:  # rounds are shorter than its way back, so the others may go on without it for a few
        assert all(each.returns for each in dropped.pop("full"))
        assert run.told("full", StepTrained, after=well)
    assert not any(dropped.values()), dropped
    gaps = {home.name: longest_gap(run, home.name, since=began) for home in homes}
    figures = {
        "fault": name,
        "fault_s": round(well - began, 1),
        "all_paths_again_after_s": round(paths_after, 1) if "away" in name else None,  # else: nobody told of a change
        "longest_between_steps_s": gaps,
        "step_s_before": round(run.seconds_per_step("port", before=began), 2),
    }
    print(json.dumps(figures))


def longest_gap(run: LiveRun, name: str, *, since: float) -> float:
    """The longest time between two steps of a client."""
    moments = [moment for moment, event in run.events(name) if isinstance(event, StepTrained)]
    return max(round(later - earlier, 1) for earlier, later in itertools.pairwise(moments) if later > since)
