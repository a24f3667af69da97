"""The hub: what is sent to whom, what a request changes, and what a frame may cost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins.backend_tcp.tests.hub_parts import (
    ALICE,
    BOB,
    CAROL,
    at,
    join,
    join_frame,
    make_hub,
    messages,
    outgoing,
    save,
)
from psyche_backend_tcp.client.session import ClientSession
from psyche_backend_tcp.limits import CLIENT_FRAME, Limits
from psyche_backend_tcp.protocol import (
    Answer,
    Bye,
    CommandRequest,
    Heartbeat,
    Patch,
    Whole,
    WholeRequest,
    decode_server,
    encode_client,
)
from psyche_core.coordinator.commands import Equivocation, Pause, SignedResult, WarmupWitness, Withdraw
from psyche_core.errors import CoordinatorError, WireError
from psyche_core.interfaces.backend import ClientCommand, StateUpdate
from psyche_core.interfaces.command_codec import encode_command
from psyche_core.types import RunState
from psyche_core.wire.codec import encode


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
