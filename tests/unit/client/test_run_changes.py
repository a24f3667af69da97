"""People are told in a member's own log where the run went back, and what is true of a coordinator with another state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import anyio
import pytest

from party import Party, trainers
from psyche_core.builtin.memory_backend import MemoryBackend
from psyche_core.client.machine.coordinator_updates import other_state
from psyche_core.client.runtime.reports.run_changes import RunChanges
from psyche_core.coordinator.state import Client, CoordinatorState, Progress, Round
from psyche_core.interfaces.backend import StateUpdate
from psyche_core.telemetry import events as telemetry
from psyche_core.testing.backend import small_state
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.ui.event_text import describe
from psyche_core.verification.standing import Standing
from psyche_core.wire.signing import SecretKey
from tests.unit.coordinator.checked_run import checked_run

OURS = SecretKey(hashlib.sha256(b"party" + bytes(1)).digest()).public
US = NodeIdentity(OURS, OURS)
OTHER = NodeIdentity(b"o" * 32, b"o" * 32)


def at(
    number: int, step: int, *, generation: int = 0, phase: RunState = RunState.WaitingForMembers, **changes: Any
) -> CoordinatorState:
    """A state between two epochs. number: of ended epochs."""
    state = replace(small_state(), run_state=phase, progress=Progress(number, step, 0), generation=generation)
    return replace(state, **{"epoch": replace(state.epoch, unplayed=True), "from_checkpoint": False, **changes})


def playing(number: int, step: int, height: int, us: Client, *, start_time: int = 1000, **changes: Any) -> CoordinatorState:
    """A state in the middle of an epoch in which we have a slot."""
    base = at(number, step)
    rounds = tuple(Round(each, step - height + each, each, (0, 1), ()) for each in range(max(0, height - 1), height + 1))
    clients = (us, Client(OTHER))
    state = replace(base.epoch, unplayed=False, rounds=rounds, clients=clients, ready=(0, 1), start_time=start_time)
    return at(number, step, phase=RunState.RoundTrain, epoch=replace(state, start_step=step - height), **changes)


def warmup(epoch: int, step: int, *, lacking: tuple[int, ...]) -> CoordinatorState:
    state = at(epoch, step, phase=RunState.Warmup)
    return replace(state, epoch=replace(state.epoch, lacking=lacking))


def told(*states: CoordinatorState) -> list[str]:
    changes = RunChanges()
    return [describe(event) for state in states for event in changes.see(state) if not isinstance(event, telemetry.RunDescribed)]


def test_a_client_tells_how_checks_ended_that_it_saw_end() -> None:
    states, checks = checked_run()
    changes = RunChanges()
    seen = [event for state in states for event in changes.see(state)]
    assert [event for event in seen if isinstance(event, telemetry.ShareChecked)] == list(checks)
    assert [event for event in RunChanges().see(states[-1]) if isinstance(event, telemetry.ShareChecked)] == []


LACKING = warmup(46, 1313, lacking=(0, 1))
PAUSED = at(46, 1313, phase=RunState.Paused)
GONE = "no member had the model after step 1312; the run continues"
MAYBE = "its owner asked for it, or no member had a later model"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (LACKING, at(46, 1223, generation=1), f"{GONE} with the members' model after step 1222, and"),
        (
            LACKING,
            at(46, 61, generation=1, from_checkpoint=True),
            f"{GONE} from the stored checkpoint Dummy none, after step 60,",
        ),
        (
            replace(PAUSED, model_lost=True),
            at(46, 1, generation=1, from_checkpoint=True),
            f"{GONE} from the stored checkpoint Dummy none,",
        ),
        (PAUSED, at(46, 1223, generation=1), "the owner returned the run from step 1312 to the members' model after step 1222;"),
        (
            PAUSED,
            at(46, 9, generation=1, from_checkpoint=True),
            "from step 1312 to the stored checkpoint Dummy none, after step 8; the later",
        ),
        (at(46, 1313), at(46, 1223, generation=1), f"from step 1312 to the members' model after step 1222 ({MAYBE}), and"),
        (LACKING, playing(47, 1231, 8, Client(US), generation=2), f"{GONE} with the members' model after step 1222, and"),
    ],
    ids=["held", "stored", "lost", "owner", "owner, stored", "not known", "played on since"],
)
def test_where_the_run_goes_back_its_members_are_told_from_where_to_where_and_why(
    before: CoordinatorState, after: CoordinatorState, said: str
) -> None:
    """There was only a warning of what would happen if most members reported the same, and then an earlier step."""
    (line,) = told(before, after, after)
    assert line.startswith("WENT BACK: ")
    assert said in line


@pytest.mark.parametrize("after", [at(46, 1313), at(47, 1313), warmup(46, 1313, lacking=())])
def test_a_run_that_goes_on_did_not_go_back(after: CoordinatorState) -> None:
    assert told(at(46, 1313), after) == []


def test_another_run_did_not_go_back_and_may_be_a_mistake_of_the_owner() -> None:
    """People were told to start the client again, which joined the run that the owner had begun by mistake."""
    (line,) = told(at(46, 1313), at(0, 1, instance=b"n" * 32), at(0, 2, instance=b"n" * 32))
    assert line.startswith("warning: the server began a new run under this run's name. That may be a mistake of its owner")
    assert "ask the owner before you start this client again" in line
    assert "stays on its disk" in line


def test_a_later_state_of_a_later_generation_is_no_return() -> None:
    """An owner who put an old state in place, and then the newest again."""
    (line,) = told(at(2, 53), at(54, 1466, generation=3))
    assert (
        line
        == "warning: the coordinator was restored from a later state: it is in epoch 54, step 1466, and was in epoch 2, step 53"
    )


def test_an_earlier_epoch_of_a_later_generation_is_no_return() -> None:
    """A return keeps the epoch's number: the owner put another state in place."""
    (line,) = told(at(54, 1466), at(2, 53, generation=3))
    said = "the coordinator was restored from an earlier state: it is in epoch 2, step 53, and was in epoch 54, step 1466"
    assert line == f"warning: {said}"


@pytest.mark.parametrize(
    ("before", "after", "which"),
    [
        (at(18, 542), at(10, 321), "an earlier state"),
        (at(11, 321), at(18, 542), "a later state"),
        (at(4, 141), at(5, 120), "another state"),
        (at(2, 53, generation=1), at(54, 1466), "a state of before the run went back"),
        (at(4, 120), at(4, 120), "another state of epoch 4, step 120: it has forgotten what it was told last"),
    ],
)
def test_the_direction_is_told_in_which_the_coordinator_went(
    before: CoordinatorState, after: CoordinatorState, which: str
) -> None:
    """It always was "an older state"."""
    said = other_state(before, after)
    assert said.startswith(f"the coordinator was restored from {which}")
    if "forgotten" not in which:
        assert said.removeprefix(f"the coordinator was restored from {which}").startswith(": it is in epoch ")


class Scripted(MemoryBackend):
    """Shows the states of a test, one after the other, and nothing else. may_join: until then it takes in nobody."""

    states: ClassVar[list[CoordinatorState]] = []
    may_join: ClassVar[anyio.Event | None] = None

    async def next_state(self) -> StateUpdate:
        if not self.states:
            await anyio.sleep_forever()
        return StateUpdate(self.states.pop(0))

    async def join(self, address: bytes, *, timeout: float) -> None:
        if self.may_join is not None:
            await self.may_join.wait()


async def events_of(states: Sequence[CoordinatorState], *, until: type[telemetry.Event]) -> list[telemetry.Event]:
    """What a member tells its people of these states, up to the first event of a class."""
    Scripted.states[:] = states
    party = Party(trainers(1), backend=Scripted)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(party.member, 0)
            while not any(isinstance(event, until) for event in party.events[0]):
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    return party.events[0]


async def test_a_member_is_told_that_the_run_went_back() -> None:
    events = await events_of([LACKING, at(46, 1223, generation=1)], until=telemetry.WentBack)
    (back,) = [event for event in events if isinstance(event, telemetry.WentBack)]
    assert back == telemetry.WentBack(1312, 1222, from_checkpoint=False)


async def test_a_client_that_begins_again_says_in_which_direction_the_coordinator_went() -> None:
    later = playing(18, 542, 12, Client(US), start_time=900)
    known = at(11, 321)
    states = [replace(known, epoch=replace(known.epoch, start_time=1000)), later]
    (ended,) = [event for event in await events_of(states, until=telemetry.Ended) if isinstance(event, telemetry.Ended)]
    said = "the coordinator was restored from a later state: it is in epoch 18, step 542, and was in epoch 11, step 321"
    assert (ended.reason, ended.success) == (said, False)


@pytest.mark.parametrize(
    ("strikes", "rate", "said"),
    [
        (2, 500, "failed twice in this epoch; it is not paid for this epoch. A device that computes wrongly"),
        (0, 0, "signed two results for one share; it is not paid for this epoch. Two clients with one key"),
        (
            0,
            500,
            "signed two results for one share; it is not paid for this epoch and is to lose 500 points. Two clients with one key",
        ),
    ],
    ids=["strikes", "proof", "proof, slashed"],
)
async def test_who_is_ejected_is_told_why_and_what_it_costs(strikes: int, rate: int, said: str) -> None:
    us = Client(US, ClientState.Ejected, standing=Standing(strikes=strikes), exited_height=11)
    state = playing(4, 122, 11, us)
    ejected = replace(state, epoch=replace(state.epoch, rates=replace(state.epoch.rates, slashing_per_client=rate)))
    states = [playing(4, 121, 10, Client(US)), ejected]
    (ended,) = [event for event in await events_of(states, until=telemetry.Ended) if isinstance(event, telemetry.Ended)]
    assert said in ended.reason
    assert ended.reason.endswith("it may join again in the next epoch")
    assert not ended.success


def gone(height: int) -> Client:
    return Client(US, ClientState.Dropped, exited_height=height)


@pytest.mark.parametrize(
    ("begun", "why"), [(playing(4, 120, 9, Client(US)), "starting"), (at(4, 111), "silent")], ids=["in the middle", "before"]
)
async def test_who_began_in_the_middle_of_an_epoch_is_not_said_to_have_kept_silent(begun: CoordinatorState, why: str) -> None:
    states = [begun, playing(4, 121, 10, Client(US)), playing(4, 122, 11, gone(11))]
    (dropped,) = [event for event in await events_of(states, until=telemetry.Dropped) if isinstance(event, telemetry.Dropped)]
    assert (dropped.epoch, dropped.height, dropped.why) == (4, 11, why)
    assert ("because it was starting again while that round was played" in describe(dropped)) == (why == "starting")


@pytest.mark.parametrize(
    ("trained", "height", "epoch", "why"),
    [(None, 11, 4, "starting"), (10, 11, 4, "starting"), (9, 11, 4, "silent"), (10, 12, 4, "silent"), (None, 3, 5, "silent")],
)
def test_who_has_trained_since_it_began_is_as_guilty_as_any(trained: int | None, height: int, epoch: int, why: str) -> None:
    changes = RunChanges()
    list(changes.see(playing(4, 120, 9, Client(US))))
    if trained is not None:
        changes.note_trained(trained)
        changes.note_trained(trained + 1)
    dropped = telemetry.Dropped(epoch, height, "silent", returns=True)
    assert changes.explained(dropped, training_fails=False).why == why
    assert changes.explained(dropped, training_fails=True).why == "failed"
    unready = replace(dropped, why="unready")
    assert changes.explained(unready, training_fails=True) == unready


async def test_a_member_has_joined_before_it_waits_for_the_next_epoch() -> None:
    """An earlier life of this client may be waiting already; "takes part" was said first, or after "takes part from the next"."""
    Scripted.may_join = anyio.Event()
    under_way = playing(4, 120, 9, Client(OTHER))
    waiting = replace(under_way, pending=(US,))
    Scripted.states[:] = [waiting, replace(waiting, pending=(US, OTHER))]
    party = Party(trainers(1), backend=Scripted)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(party.member, 0)
            while Scripted.states or not any(
                isinstance(event, telemetry.ModelLoaded | telemetry.PhaseChanged) for event in party.events[0]
            ):
                await anyio.sleep(0.01)
            await anyio.wait_all_tasks_blocked()
            assert not any(isinstance(event, telemetry.WaitsForEpoch) for event in party.events[0])
            Scripted.may_join.set()
            while not any(isinstance(event, telemetry.WaitsForEpoch) for event in party.events[0]):
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    Scripted.may_join = None
    order = [event for event in party.events[0] if isinstance(event, telemetry.Joined | telemetry.WaitsForEpoch)]
    assert order == [telemetry.Joined("world"), telemetry.WaitsForEpoch(4)]
