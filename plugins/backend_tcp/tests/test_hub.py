from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_backend_tcp.client.session import ClientSession
from psyche_backend_tcp.limits import CLIENT_FRAME, Limits
from psyche_backend_tcp.protocol import (
    Answer,
    Bye,
    CommandRequest,
    Heartbeat,
    JoinRequest,
    LaterState,
    Patch,
    ServerMessage,
    Whole,
    WholeRequest,
    decode_server,
    document_digest,
    encode_client,
    encode_server,
    make_document,
)
from psyche_backend_tcp.server.hub import ClockTime, Hub
from psyche_core.coordinator.commands import Equivocation, Pause, SignedResult, WarmupWitness, Withdraw
from psyche_core.coordinator.state import CoordinatorState, Progress
from psyche_core.errors import CoordinatorError, WireError
from psyche_core.interfaces.backend import ClientCommand, StateUpdate
from psyche_core.interfaces.command_codec import encode_command
from psyche_core.testing.backend import START_TIME, small_state
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.wire.codec import encode
from psyche_core.wire.messages import sign_join
from psyche_core.wire.signing import SecretKey

KEYS = {key.public: key for key in (SecretKey(bytes([number]) * 32) for number in (1, 2, 3))}
ALICE, BOB, CAROL = (NodeIdentity(public, public) for public in KEYS)
LIMITS = Limits(reconnect_seconds=5, ping_seconds=10, silence_seconds=30)


def at(seconds: float) -> ClockTime:
    return ClockTime(seconds, START_TIME + int(seconds))


def make_hub(*, limits: Limits = LIMITS, withdraw: bool = True, clients: int = 2) -> Hub:
    numbers = itertools.count(1)
    return Hub(small_state(clients=clients), limits, draw_seed=lambda: next(numbers), withdraw_on_disconnect=withdraw)


def save(hub: Hub) -> None:
    """What the server's shell does after each call: put changes on disk, here at once."""
    pending_save = hub.take_pending_save()
    if pending_save is not None:
        hub.saved(pending_save)


def outgoing(hub: Hub, number: int) -> list[bytes]:
    save(hub)
    return hub.outgoing(number)


def messages(hub: Hub, number: int) -> list[ServerMessage]:
    return [decode_server(frame) for frame in outgoing(hub, number)]


def join(hub: Hub, number: int, moment: ClockTime, *, request: int = 7, address: bytes = b"here") -> None:
    hub.receive(number, join_frame(hub, number, request=request, address=address), moment)


def join_frame(hub: Hub, number: int, *, request: int = 7, address: bytes = b"here", identity: NodeIdentity = ALICE) -> bytes:
    connection = hub._connections.get(number)
    identity = identity if connection is None else connection.identity
    proof = sign_join(KEYS[identity.p2p], hub.state.instance, identity.signer)
    return encode_client(JoinRequest(request, address, proof))


def test_whole_document_first_then_patches_then_silence() -> None:
    hub = make_hub()
    alice = hub.connect(ALICE, at(0))
    assert hub.take_to_flush() == {alice}
    (whole,) = messages(hub, alice)
    assert isinstance(whole, Whole)
    assert outgoing(hub, alice) == []
    join(hub, alice, at(0))
    answer, patch = messages(hub, alice)
    assert answer == Answer(7, "", "")
    assert isinstance(patch, Patch)
    assert (patch.base, patch.digest) == (whole.digest, hub.digest)
    hub.take_to_flush()
    save(hub)
    for second in range(1, 5):
        hub.tick(at(second))
    assert hub.take_to_flush() == set()
    assert outgoing(hub, alice) == []


def test_slow_reader_gets_one_merged_patch() -> None:
    hub = make_hub()
    alice, bob = hub.connect(ALICE, at(0)), hub.connect(BOB, at(0))
    outgoing(hub, alice)
    for number in range(100):
        join(hub, bob, at(1), request=number, address=b"%d" % number)
        outgoing(hub, bob)
    (patch,) = messages(hub, alice)
    assert isinstance(patch, Patch)
    assert hub.versions == 101
    assert patch.digest == hub.digest


def test_changes_that_cancel_before_they_are_read_are_not_sent() -> None:
    hub = make_hub()
    alice, bob = hub.connect(ALICE, at(0)), hub.connect(BOB, at(0))
    outgoing(hub, alice)
    join(hub, bob, at(0))
    hub.receive(bob, encode_client(CommandRequest(8, encode_command(Withdraw(BOB)))), at(0))
    assert outgoing(hub, alice) == []


def test_asking_for_the_whole_document_gives_it_and_costs() -> None:
    hub = make_hub()
    alice = hub.connect(ALICE, at(0))
    outgoing(hub, alice)
    pauses = [hub.receive(alice, encode_client(WholeRequest()), at(1)) for _ in range(30)]
    (whole,) = messages(hub, alice)
    assert isinstance(whole, Whole)
    assert pauses[0] == 0
    assert pauses[-1] == pytest.approx((30 * 20 - 200) / 50)


def test_requests_beyond_the_rate_are_read_later_not_refused() -> None:
    hub = make_hub(limits=Limits(requests_per_second=10, burst=5))
    alice = hub.connect(ALICE, at(0))
    pauses = [hub.receive(alice, encode_client(Heartbeat()), at(0)) for _ in range(7)]
    assert pauses == pytest.approx([0, 0, 0, 0, 0, 0.1, 0.2])
    assert hub.receive(alice, encode_client(Heartbeat()), at(10)) == 0
    assert not hub.is_closing(alice)


def test_b25_second_login_replaces_the_first_and_its_end_withdraws_nobody() -> None:
    """The reference dropped the member when the older of two connections closed."""
    hub = make_hub(limits=Limits(reconnect_seconds=0))
    old = hub.connect(ALICE, at(0))
    join(hub, old, at(0))
    outgoing(hub, old)
    new = hub.connect(ALICE, at(1))
    (bye,) = messages(hub, old)
    assert isinstance(bye, Bye)
    assert bye.code == "Replaced"
    assert hub.is_closing(old)
    assert not hub.is_closing(new)
    hub.disconnect(old, at(1))
    hub.tick(at(20))
    assert hub.state.pending == (ALICE,)
    join(hub, old, at(20), request=8)
    hub.disconnect(new, at(20))
    assert list(hub.state.pending) == []


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


def test_repeated_request_is_answered_but_not_carried_out_again() -> None:
    hub = make_hub(clients=1)
    first = hub.connect(ALICE, at(0))
    join(hub, first, at(0))
    withdraw = encode_client(CommandRequest(9, encode_command(Withdraw(ALICE))))
    hub.receive(first, withdraw, at(1))
    second = hub.connect(ALICE, at(1))
    hub.disconnect(first, at(1))
    hub.receive(second, withdraw, at(2))
    assert messages(hub, second)[0] == Answer(9, "", "")
    hub.receive(second, encode_client(CommandRequest(10, encode_command(Withdraw(ALICE)))), at(2))
    answer = messages(hub, second)[0]
    assert isinstance(answer, Answer)
    assert answer.code == "InvalidWithdraw"


def test_sender_is_the_key_that_logged_in() -> None:
    hub = make_hub()
    alice, bob = hub.connect(ALICE, at(0)), hub.connect(BOB, at(0))
    join(hub, alice, at(0))
    hub.receive(bob, encode_client(CommandRequest(1, encode_command(Withdraw(ALICE)))), at(0))
    answer = messages(hub, bob)[0]
    assert isinstance(answer, Answer)
    assert answer.code == "InvalidWithdraw"
    assert hub.state.pending == (ALICE,)


def test_owner_commands_have_no_encoding_and_come_through_submit() -> None:
    hub = make_hub()
    alice = hub.connect(ALICE, at(0))
    outgoing(hub, alice)
    for tag in (0, 7, 8, 9, 10):
        hub.receive(alice, encode([2, tag, [tag]]), at(0))
        (answer,) = messages(hub, alice)
        assert isinstance(answer, Answer)
        assert answer.code == "BadRequest"
    first = hub.state
    assert first.run_state is RunState.WaitingForMembers
    hub.submit(Pause(), at(0))
    assert hub.state.run_state is RunState.Paused
    with pytest.raises(CoordinatorError, match="Halted"):
        hub.submit(Pause(), at(0))
    hub.tick(at(1))
    assert hub.take_changes() == [], "nothing is told before it is saved"
    save(hub)
    assert [state.run_state for state, _ in hub.take_changes()] == [RunState.Paused]


def test_ping_after_silence_and_close_after_more() -> None:
    hub = make_hub()
    alice = hub.connect(ALICE, at(0))
    outgoing(hub, alice)
    hub.tick(at(9))
    assert outgoing(hub, alice) == []
    hub.tick(at(10))
    hub.tick(at(11))
    assert messages(hub, alice) == [Heartbeat()]
    hub.receive(alice, encode_client(Heartbeat()), at(12))
    hub.tick(at(21))
    assert outgoing(hub, alice) == []
    hub.tick(at(42))
    bye = messages(hub, alice)[-1]
    assert isinstance(bye, Bye)
    assert bye.code == "Silent"
    assert hub.is_closing(alice)


def test_unread_answers_close_the_connection() -> None:
    hub = make_hub(limits=Limits(max_outbox=10))
    alice = hub.connect(ALICE, at(0))
    for number in range(20):
        join(hub, alice, at(0), request=number)
    (bye,) = messages(hub, alice)
    assert isinstance(bye, Bye)
    assert bye.code == "TooSlow"


def test_address_over_the_limit_is_refused() -> None:
    hub = make_hub()
    alice = hub.connect(ALICE, at(0))
    join(hub, alice, at(0), address=b"x" * 1025)
    answer = messages(hub, alice)[0]
    assert isinstance(answer, Answer)
    assert answer.code == "BadRequest"
    assert hub.state.pending == ()


FRAMES = (
    st.binary(max_size=60)
    | st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-5, 2**64 - 1)
        | st.text(max_size=4)
        | st.binary(max_size=40)
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=12,
    ).map(encode)
    | st.tuples(st.integers(0, 4), st.integers(0, 9), st.lists(st.integers(0, 6) | st.binary(max_size=33), max_size=8)).map(
        lambda parts: encode(list(parts))
    )
)


@settings(deadline=None)
@given(st.lists(FRAMES, max_size=12))
def test_any_frame_costs_at_most_its_own_connection(frames: list[bytes]) -> None:
    hub = make_hub()
    honest, bad = hub.connect(BOB, at(0)), hub.connect(ALICE, at(0))
    for frame in frames:
        assert len(frame) <= CLIENT_FRAME
        hub.receive(bad, frame, at(0))
        outgoing(hub, bad)
    hub.tick(at(1))
    join(hub, honest, at(1))
    assert BOB in hub.state.pending
    assert not hub.is_closing(honest)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["join", "withdraw", "ready", "time", "drop", "connect", "read", "whole", "pause"]), st.integers(0, 2)
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_every_reader_reproduces_the_state_whatever_happens(actions: list[tuple[str, int]]) -> None:
    """Random lives of three clients: who is connected, and reads whenever it likes, ends with exactly the hub's state."""
    hub = make_hub(limits=Limits(reconnect_seconds=2, burst=1e9))
    people = (ALICE, BOB, CAROL)
    numbers: list[int | None] = [None] * 3
    sessions = [ClientSession() for _ in people]
    updates: list[StateUpdate | None] = [None] * 3
    seconds = 0.0
    requests = itertools.count(100)

    def read(who: int) -> None:
        number = numbers[who]
        assert number is not None
        for frame in outgoing(hub, number):
            received = sessions[who].receive(frame)
            assert received.reply in (None, encode_client(Heartbeat())), "no state is older than the one before it"
            updates[who] = received.update or updates[who]

    for action, who in actions:
        number = numbers[who]
        if action == "time":
            seconds += 1 + who
            hub.tick(at(seconds))
        elif action == "pause":
            try:
                hub.submit(Pause(), at(seconds))
            except CoordinatorError:
                continue
        elif action == "connect":
            numbers[who], sessions[who] = hub.connect(people[who], at(seconds)), ClientSession()
            if number is not None:
                hub.disconnect(number, at(seconds))
        elif number is None:
            continue
        elif action == "drop":
            hub.disconnect(number, at(seconds))
            numbers[who] = None
        elif action == "join":
            join(hub, number, at(seconds), request=next(requests), address=b"%d" % who)
        elif action == "read":
            read(who)
        elif action == "whole":
            hub.receive(number, encode_client(WholeRequest()), at(seconds))
        else:
            command = Withdraw(people[who]) if action == "withdraw" else WarmupWitness(people[who], 0, who, b"\1" * 32)
            hub.receive(number, encode_client(CommandRequest(next(requests), encode_command(command))), at(seconds))

    for who, number in enumerate(numbers):
        if number is not None:
            read(who)
            update = updates[who]
            assert update is not None
            assert update.state == hub.state
            assert sessions[who].digest == hub.digest


def test_session_asks_for_the_whole_document_when_a_patch_lies() -> None:
    hub = make_hub()
    alice = hub.connect(ALICE, at(0))
    session = ClientSession()
    session.receive(outgoing(hub, alice)[0])
    join(hub, alice, at(0))
    (_, frame) = outgoing(hub, alice)
    patch = decode_server(frame)
    assert isinstance(patch, Patch)
    for lie in (
        Patch(patch.base, bytes(32), patch.patch),
        Patch(bytes(32), patch.digest, patch.patch),
        Patch(patch.base, patch.digest, [2, []]),
    ):
        liar = ClientSession()
        liar.receive(make_first_frame())
        reply = liar.receive(encode([3, lie.base, lie.digest, lie.patch])).reply
        assert reply == encode_client(WholeRequest())
        assert liar.receive(frame).update is None, "patches before the whole document are not believed"
        hub.receive(alice, reply, at(1))
        update = liar.receive(outgoing(hub, alice)[-1]).update
        assert update is not None
        assert update.state == hub.state


def make_first_frame() -> bytes:
    hub = make_hub()
    return outgoing(hub, hub.connect(CAROL, at(0)))[0]


def test_session_refuses_a_whole_document_with_another_hash() -> None:
    whole = decode_server(make_first_frame())
    assert isinstance(whole, Whole)
    with pytest.raises(WireError, match="hash"):
        ClientSession().receive(encode([2, bytes(32), whole.document]))
    with pytest.raises(WireError):
        ClientSession().receive(encode([5, 1.0, bytes(64)]))


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


def test_a_keys_rate_outlives_its_connection() -> None:
    hub = make_hub(limits=Limits(requests_per_second=10, burst=5))
    first = hub.connect(ALICE, at(0))
    pauses = [hub.receive(first, encode_client(Heartbeat()), at(0)) for _ in range(5)]
    second = hub.connect(ALICE, at(0))
    hub.disconnect(first, at(0))
    assert pauses == [0, 0, 0, 0, 0]
    assert hub.receive(second, encode_client(Heartbeat()), at(0)) > 0


def test_bytes_beyond_the_rate_are_read_later() -> None:
    hub = make_hub(limits=Limits(bytes_per_second=1000, burst_bytes=3000, burst=1e9))
    alice = hub.connect(ALICE, at(0))
    frame = join_frame(hub, alice, request=1, address=b"x" * 924)
    pauses = [hub.receive(alice, frame, at(0)) for _ in range(5)]
    assert pauses[:2] == [0, 0]
    assert pauses[4] == pytest.approx(5 * len(frame) / 1000 - 3)


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


def test_equivocation_evidence_and_late_readiness_travel() -> None:
    """Also where the coordinator refuses them: what matters here is that they arrive as what they are."""
    hub = make_hub()
    alice = hub.connect(ALICE, at(0))
    result = SignedResult(bytes(32), bytes(64))
    commands: list[ClientCommand] = [Equivocation(ALICE, 0, 1, 2, result, result), WarmupWitness(ALICE, 0, 0, bytes(32))]
    for number, command in enumerate(commands):
        hub.receive(alice, encode_client(CommandRequest(number, encode_command(command))), at(0))
        answer = messages(hub, alice)[0]
        assert isinstance(answer, Answer)
        assert answer.code not in ("", "BadRequest")


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
