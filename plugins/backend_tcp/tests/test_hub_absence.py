"""Members that are away or not allowed any more, and a hub that continues a run after a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plugins.backend_tcp.tests.hub_parts import (
    ALICE,
    BOB,
    CAROL,
    LIMITS,
    at,
    join,
    make_hub,
    messages,
    outgoing,
)
from psyche_backend_tcp.client.session import ClientSession
from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.protocol import (
    Bye,
    CommandRequest,
    LaterState,
    Whole,
    document_digest,
    encode_client,
    encode_server,
    make_document,
)
from psyche_backend_tcp.server.hub import Hub
from psyche_core.coordinator.commands import Withdraw
from psyche_core.coordinator.state import CoordinatorState, Progress
from psyche_core.interfaces.command_codec import encode_command
from psyche_core.testing.backend import START_TIME, small_state
from psyche_core.types import ClientState, RunState


def test_lost_member_comes_back_within_the_grace() -> None:
    hub = make_hub()
    first = hub.connect(ALICE, at(0))
    join(hub, first, at(0), address=b"kept")
    hub.disconnect(first, at(10))
    hub.tick(at(14.9))
    bob = hub.connect(BOB, at(14.9))
    assert hub.state.pending == (ALICE,)
    second = hub.connect(ALICE, at(14.9))
    hub.tick(at(25))
    assert hub.state.pending == (ALICE,)
    session = ClientSession()
    update = session.receive(outgoing(hub, bob)[-1]).update
    assert update is not None
    assert update.addresses == {ALICE.signer: b"kept"}
    hub.disconnect(second, at(25))
    hub.tick(at(30))
    assert list(hub.state.pending) == []
    update = session.receive(outgoing(hub, bob)[-1]).update
    assert update is not None
    assert update.addresses == {}


def test_lost_member_of_an_epoch_is_withdrawn_from_it() -> None:
    hub = make_hub()
    alice, bob = hub.connect(ALICE, at(0)), hub.connect(BOB, at(0))
    join(hub, alice, at(0))
    join(hub, bob, at(0))
    hub.tick(at(3))
    assert hub.state.run_state is RunState.Warmup
    hub.disconnect(alice, at(4))
    hub.tick(at(9))
    assert hub.state.healthy_slots == (1,)


def test_without_withdrawal_a_lost_member_stays() -> None:
    hub = make_hub(withdraw=False)
    alice = hub.connect(ALICE, at(0))
    join(hub, alice, at(0))
    hub.disconnect(alice, at(1))
    hub.tick(at(1000))
    assert hub.state.pending == (ALICE,)


def reopened(limits: Limits) -> Hub:
    state = replace(small_state(), pending=(ALICE, BOB), minimum_since=START_TIME)
    addresses = {ALICE.signer: b"alice", BOB.signer: b"bob"}
    return Hub(state, limits, draw_seed=lambda: 1, addresses=addresses, began=at(0))


def test_after_a_restart_members_have_longer_to_come_back() -> None:
    hub = reopened(Limits(reconnect_seconds=5, reopening_seconds=20))
    alice = hub.connect(ALICE, at(1))
    for second in (2, 6, 19):
        hub.tick(at(second))
        assert hub.state.pending == (ALICE, BOB)
    hub.tick(at(20))
    assert hub.state.pending == (ALICE,)
    assert not hub.is_closing(alice)


def test_after_a_restart_the_clock_goes_on_as_soon_as_all_are_back() -> None:
    hub = reopened(Limits())
    hub.connect(ALICE, at(1))
    hub.tick(at(10))
    waiting = hub.state
    assert waiting.run_state is RunState.WaitingForMembers
    hub.connect(BOB, at(11))
    hub.tick(at(11))
    hub.tick(at(14))
    assert hub.state.run_state is RunState.Warmup


def test_a_restarted_server_hands_out_the_addresses_it_had() -> None:
    hub = reopened(Limits())
    update = ClientSession().receive(outgoing(hub, hub.connect(CAROL, at(0)))[0]).update
    assert update is not None
    assert update.addresses == {ALICE.signer: b"alice", BOB.signer: b"bob"}


def run_at(generation: int, epoch: int, step: int, **changes: Any) -> CoordinatorState:
    return replace(small_state(), pending=(ALICE, BOB), generation=generation, progress=Progress(epoch, step, 0), **changes)


def whole_frame(state: CoordinatorState) -> bytes:
    return encode_server(Whole(document_digest(make_document(state, {})), make_document(state, {})))


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        (run_at(0, 1, 9), run_at(0, 1, 7), LaterState(0, 1, 9)),
        (run_at(0, 2, 9), run_at(0, 1, 9), LaterState(0, 2, 9)),
        (run_at(1, 2, 5), run_at(0, 2, 9), LaterState(1, 2, 5)),
        (run_at(0, 2, 9), run_at(1, 2, 5), None),
        (run_at(0, 1, 9), run_at(0, 1, 9, lost_samples=1), None),
        (run_at(0, 1, 9), run_at(0, 1, 1, instance=b"n" * 32), None),
    ],
    ids=["step", "epoch", "generation", "the run went back", "no older one", "another run"],
)
def test_a_session_that_gets_an_older_state_says_how_far_the_run_was(
    then: CoordinatorState, now: CoordinatorState, told: LaterState | None
) -> None:
    session = ClientSession()
    assert session.receive(whole_frame(then)).reply is None
    received = session.receive(whole_frame(now))
    assert received.update is not None
    assert received.update.state == now
    assert received.reply == (None if told is None else encode_client(told))
    assert session.receive(whole_frame(now)).reply is None


def test_after_a_restart_each_member_says_once_that_it_knows_a_later_state() -> None:
    hub = Hub(run_at(0, 1, 7), Limits(), draw_seed=lambda: 1, addresses={}, began=at(0))
    alice, bob, carol = (hub.connect(identity, at(1)) for identity in (ALICE, BOB, CAROL))
    for number, known in ((alice, (0, 1, 7)), (alice, (0, 1, 6)), (carol, (0, 1, 9))):
        hub.receive(number, encode_client(LaterState(*known)), at(1))
    assert hub.take_later() == [], "not later, or of no member"
    for number, known in ((alice, (0, 1, 8)), (bob, (0, 2, 1)), (alice, (0, 1, 9))):
        hub.receive(number, encode_client(LaterState(*known)), at(1))
    assert hub.take_later() == [(ALICE.signer, LaterState(0, 1, 8)), (BOB.signer, LaterState(0, 2, 1))]
    assert hub.take_later() == []


def test_without_a_restart_no_later_state_is_possible() -> None:
    hub = Hub(run_at(0, 1, 7), Limits(), draw_seed=lambda: 1)
    hub.receive(hub.connect(ALICE, at(1)), encode_client(LaterState(0, 1, 9)), at(1))
    assert hub.take_later() == []


def test_expelled_members_are_told_and_withdrawn() -> None:
    hub = make_hub()
    alice, bob = hub.connect(ALICE, at(0)), hub.connect(BOB, at(0))
    join(hub, alice, at(0))
    join(hub, bob, at(0))
    hub.expel(lambda key: key == BOB.signer, at(1))
    bye = messages(hub, alice)[-1]
    assert isinstance(bye, Bye)
    assert (bye.code, hub.is_closing(alice), hub.is_closing(bob)) == ("NotAllowed", True, False)
    assert hub.state.pending == (BOB,)


def warm_hub() -> tuple[Hub, int, int]:
    """A hub in whose epoch Alice and Bob are healthy, and their connections."""
    hub = make_hub()
    alice, bob = hub.connect(ALICE, at(0)), hub.connect(BOB, at(0))
    join(hub, alice, at(0))
    join(hub, bob, at(0))
    for second in range(1, 10):
        hub.tick(at(second))
    assert hub.state.run_state is RunState.Warmup
    return hub, alice, bob


def test_who_is_lost_or_no_longer_allowed_is_told_apart_from_who_leaves() -> None:
    """The coordinator's state calls all of them withdrawn."""
    hub, alice, bob = warm_hub()
    hub.receive(bob, encode_client(CommandRequest(9, encode_command(Withdraw(BOB)))), at(10))
    hub.disconnect(bob, at(10))
    hub.disconnect(alice, at(10))
    hub.tick(at(11))
    assert hub.take_withdrawn() == []
    hub.tick(at(20))
    assert [client.state for client in hub.state.epoch.clients] == [ClientState.Withdrawn] * 2
    assert hub.take_withdrawn() == [(ALICE.signer, "lost")]
    assert hub.take_withdrawn() == []

    hub, _, _ = warm_hub()
    hub.expel(lambda key: key == BOB.signer, at(10))
    assert hub.take_withdrawn() == [(ALICE.signer, "not allowed")]


def test_who_has_not_come_back_since_a_restart_is_not_called_lost() -> None:
    """It was about to be started. Who came back and is lost then is another matter."""
    state = warm_hub()[0].state
    hub = Hub(state, LIMITS, draw_seed=lambda: 1, addresses={}, began=at(0))
    alice = hub.connect(ALICE, at(1))
    hub.tick(at(LIMITS.reopening_seconds))
    assert hub.take_withdrawn() == [(BOB.signer, "not back")]
    hub.disconnect(alice, at(30))
    hub.tick(at(30 + LIMITS.reconnect_seconds))
    assert hub.take_withdrawn() == [(ALICE.signer, "lost")]
