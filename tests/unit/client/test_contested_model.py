"""A model that few members vouch for is told with the figures that people need to decide about it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from psyche_core.client.machine import announcements, scheduler
from psyche_core.client.machine.actions import Notify
from psyche_core.client.machine.epoch import EpochNotes, epoch_key
from psyche_core.client.machine.events import ModelFetchFailed
from psyche_core.client.machine.machine import ClientMachine
from psyche_core.client.machine.replica import contested_model, resync
from psyche_core.client.machine.replica.resync_state import MAX_ATTEMPTS
from psyche_core.client.machine.timeouts import Timeouts
from psyche_core.coordinator.state import Client, CoordinatorState, EpochEnd
from psyche_core.simulator.members.keys import RUN_ID, identity_of
from psyche_core.simulator.script import from_plain
from psyche_core.simulator.world import World
from psyche_core.telemetry.events import ModelContested
from psyche_core.testing.backend import small_state
from psyche_core.types import ClientState, RunState

FOUND = Path(__file__).parents[1] / "simulator" / "found"


def in_warmup(*, ends: tuple[EpochEnd, ...]) -> CoordinatorState:
    """Eight members, one of them ejected, before an epoch that starts with the model after step 8."""
    members = tuple(Client(identity_of(slot), ClientState.Healthy) for slot in range(7))
    state = small_state()
    ejected = Client(identity_of(7), ClientState.Ejected)
    epoch = replace(state.epoch, clients=(*members, ejected), start_step=9)
    return replace(state, run_state=RunState.Warmup, epoch=epoch, ends=ends)


@pytest.mark.parametrize(
    ("ends", "offering", "told"),
    [
        (
            (EpochEnd(4, 0, b"d" * 32), EpochEnd(6, 0, b"e" * 32)),
            {1},
            ModelContested(RUN_ID, 8, 1, 7, 6, taken=True, starts=True),
        ),
        ((), {1, 2}, ModelContested(RUN_ID, 8, 2, 7, None, taken=True, starts=True)),
        ((), {1, 2, 3}, None),
        ((EpochEnd(8, 0, b"d" * 32),), {1}, None),
    ],
    ids=["one member", "nothing signed", "more than there may be liars", "it is signed"],
)
def test_a_fetched_model_that_few_offered_is_told(
    ends: tuple[EpochEnd, ...], offering: set[int], told: ModelContested | None
) -> None:
    machine = ClientMachine(identity_of(0), RUN_ID, sign=lambda _: bytes(64))
    client = machine._state
    client.state = in_warmup(ends=ends)
    clients = tuple(member.id for member in client.state.epoch.clients)
    notes = EpochNotes(epoch_key(client.state), 1, clients, 0, 0.0, opened_at=-1)
    notes.resync.last_tried_slots = frozenset(offering)
    contested_model.warn_of_few_offers(client, notes, 8)
    assert [action.event for action in client.actions if isinstance(action, Notify)] == ([] if told is None else [told])


def test_who_gives_up_says_why_the_last_fetch_failed() -> None:
    """A client whose model folder was another one ended with: what the others offered did not help."""
    machine = ClientMachine(identity_of(0), RUN_ID, sign=lambda _: bytes(64))
    client = machine._state
    client.state = state = in_warmup(ends=())
    clients = tuple(member.id for member in state.epoch.clients)
    client.notes = notes = EpochNotes(epoch_key(state), 1, clients, 0, 0.0, opened_at=-1)
    resync.model_fetch_failed(client, ModelFetchFailed(8, "the manifest has 'a' of shape [2] where our model has 'a' of [1]"))
    notes.resync.attempts = MAX_ATTEMPTS
    resync.check_masters(client, state, notes)
    assert client.stopped is not None
    assert "did not help: the manifest has 'a' of shape [2] where our model has 'a' of [1]; start the" in client.stopped.reason


@pytest.mark.parametrize(
    ("start", "waited", "ready_since", "waits"),
    [(9, 0.0, None, True), (9, 0.49, None, True), (9, 0.51, None, False), (1, 0.0, None, False), (9, 0.0, 3, False)],
    ids=["at once", "just before half", "after half", "nothing was trained", "enough are ready"],
)
def test_few_offers_are_not_taken_before_half_of_the_warmup(
    start: int, waited: float, ready_since: int | None, waits: bool
) -> None:
    state = in_warmup(ends=())
    state = replace(state, epoch=replace(state.epoch, start_step=start, ready_since=ready_since))
    clients = tuple(member.id for member in state.epoch.clients)
    notes = EpochNotes(epoch_key(state), 1, clients, 0, 100.0, opened_at=-1)
    now = 100.0 + waited * state.config.warmup_time
    assert scheduler.waits_for_more_offers(state, notes, now=now) is waits


@pytest.mark.parametrize(
    ("connected", "needed", "waited", "ready"),
    [
        (6, 6, 0.0, True),
        (5, 6, 2.9, False),
        (5, 6, 3.1, True),
        (5, 7, 3.1, False),
        (4, 6, 9.9, False),
        (4, 6, 10.1, True),
    ],
    ids=["all", "one missing", "one missing for three seconds", "too few", "two missing", "two missing for ten seconds"],
)
def test_a_member_that_cannot_be_reached_is_not_waited_for_as_long_as_those_who_are_needed(
    connected: int, needed: int, waited: float, ready: bool
) -> None:
    """It cost each warmup twice the ten seconds for which a member may need to connect."""
    state = in_warmup(ends=())
    state = replace(state, config=state.config.model_copy(update={"init_min_clients": needed}))
    clients = tuple(member.id for member in state.epoch.clients)
    notes = EpochNotes(epoch_key(state), 1, clients, 0, 100.0, opened_at=-1)
    peers = frozenset(member.p2p for member in clients[1 : 1 + connected])
    said = announcements.in_warmup(clients[0], state, notes, peers=peers, now=100.0 + waited, timeouts=Timeouts())
    assert bool(said) is notes.ready_sent is ready


@pytest.mark.parametrize(
    ("sent", "lacking", "waited", "again"),
    [(True, (0, 3), 10.1, True), (True, (0, 3), 9.9, False), (True, (3,), 60.0, False), (False, (0,), 60.0, False)],
    ids=["unheard", "on its way", "heard", "never said"],
)
def test_who_is_ready_says_so_again_where_the_coordinator_believes_that_it_lacks_the_model(
    sent: bool, lacking: tuple[int, ...], waited: float, again: bool
) -> None:
    state = in_warmup(ends=())
    state = replace(state, epoch=replace(state.epoch, lacking=lacking))
    clients = tuple(member.id for member in state.epoch.clients)
    notes = EpochNotes(epoch_key(state), 1, clients, 0, 0.0, opened_at=-1)
    notes.ready_sent, notes.ready_sent_at = sent, 100.0
    announcements.repeat_if_unheard(state, notes, now=100.0 + waited, timeouts=Timeouts())
    assert notes.ready_sent is (sent and not again)


def test_models_that_members_contest_are_told_with_the_epoch_end_that_is_left() -> None:
    timeline: list[tuple[float, str, str]] = []
    script = json.loads((FOUND / "contested-after-all-died.json").read_text())["script"]
    assert World(from_plain(script), timeline=timeline).run().failure is None
    few = ModelContested("simulated", 8, 2, 8, 5, taken=False, starts=True)
    assert len({who for _, who, what in timeline if what.strip() == str(few)}) >= 4
