"""The data protocol's messages, bodies and books, without a socket."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psyche_backend_tcp.data.body import body_bytes, join, largest_sample, pack, unpack
from psyche_backend_tcp.data.client_state import Arrival, DataClientState
from psyche_backend_tcp.data.protocol import (
    AtWork,
    Cancel,
    DataBye,
    RequestRefused,
    SamplesChunk,
    SamplesHead,
    SamplesRefusal,
    SamplesRequest,
    decode_client,
    decode_data,
    encode_client,
    encode_data,
)
from psyche_backend_tcp.data.server_state import DataServerState
from psyche_core.errors import WireError
from psyche_core.interfaces.data import Samples
from psyche_core.types import MAX_SAMPLES, BatchId, total_samples
from psyche_core.wire.codec import encode

U64 = st.integers(0, 2**64 - 1)
BATCHES = st.tuples(st.integers(0, MAX_SAMPLES - 1), st.integers(0, MAX_SAMPLES - 1)).map(lambda ends: BatchId(*sorted(ends)))
CLIENT = st.one_of(st.builds(SamplesRequest, U64, st.lists(BATCHES, min_size=1, max_size=20).map(tuple)), st.builds(Cancel, U64))
SERVER = st.one_of(
    st.builds(SamplesHead, U64, U64, st.sampled_from((2, 4)), st.booleans(), st.booleans(), st.none() | U64),
    st.builds(SamplesChunk, U64, st.binary(min_size=1, max_size=100)),
    st.builds(SamplesRefusal, U64, st.text(max_size=10), st.text(max_size=50)),
    st.builds(DataBye, st.text(max_size=10), st.text(max_size=50)),
    st.just(AtWork()),
)


@st.composite
def samples(draw: Any) -> Samples:
    count, length, size = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.sampled_from((2, 4)))

    def column(width: int) -> bytes:
        return bytes(draw(st.binary(min_size=count * length * width, max_size=count * length * width)))

    labels = column(4) if draw(st.booleans()) else None
    positions = column(4) if draw(st.booleans()) else None
    lengths = None
    if draw(st.booleans()):
        texts = st.lists(st.integers(1, length), min_size=1, max_size=length).filter(lambda row: sum(row) <= length)
        lengths = tuple(tuple(draw(texts)) for _ in range(count))
    return Samples(column(size), count, length, size, labels, positions, lengths)


@settings(deadline=None)
@given(CLIENT)
def test_client_messages_survive_the_wire(message: Any) -> None:
    assert decode_client(encode_client(message)) == message


@settings(deadline=None)
@given(SERVER)
def test_server_messages_survive_the_wire(message: Any) -> None:
    assert decode_data(encode_data(message)) == message


@pytest.mark.parametrize(
    "plain",
    [
        [], 3, [3], [3, 1], [3, 1, []], [3, -1, [[0, 0]]], [3, True, [[0, 0]]], [3, 1, [[True, True]]], [3, 1, [[1, 0]]],
        [3, 1, [[0, 2**63 - 1]]], [3, 1, [[0, 0]] * 1025], [4], [4, True], [4, 1, 1], [5, 1], [True, 1, []], [3.0, 1, [[0, 0]]],
    ],
)  # fmt: skip
def test_client_messages_are_strict(plain: Any) -> None:
    with pytest.raises(WireError):
        decode_client(encode(plain))


@pytest.mark.parametrize(
    "plain",
    [
        [1, 1, 1, 2], [1, 1, 1, 3, False, False, None], [1, 1, 1, 2, 0, 0, None], [1, True, 1, 2, False, False, None],
        [1, 1, -1, 2, False, False, None], [1, 1, 1, 2, False, False, -4], [True, 1, 1, 2, False, False, None], [3, 1, 1, "why"],
        [4, 1], [5, 0], [True], [6], {}, [1, 1, 1, 2.0, False, False, None],
    ],
)  # fmt: skip
def test_server_messages_are_strict(plain: Any) -> None:
    with pytest.raises(WireError):
        decode_data(encode(plain))


def test_chunk_without_bytes_is_refused() -> None:
    with pytest.raises(WireError, match="more than 9 bytes"):
        decode_data(b"\0" + bytes(8))


def test_request_of_version_1_is_told_apart() -> None:
    with pytest.raises(RequestRefused, match="VersionMismatch"):
        decode_client(encode([1, 7, [[0, 5]]]))


@settings(deadline=None)
@given(samples())
def test_samples_come_back_with_all_they_have(given_samples: Samples) -> None:
    head, body = pack(7, given_samples)
    length, count = given_samples.sequence_length, given_samples.count
    assert len(body) == body_bytes(head, sequence_length=length, count=count) <= count * largest_sample(length)
    assert unpack(head, body, sequence_length=length) == given_samples
    assert join([(head, [body[:3], memoryview(body)[3:]])], sequence_length=length) == given_samples


def test_answers_of_different_form_join_without_loss() -> None:
    plain = Samples(b"\1\0\2\0", 1, 2, 2)
    rich = Samples(b"\3\0\0\0\4\0\0\0", 1, 2, 4, sequence_lengths=((1, 1),))
    parts = [(head, [body]) for head, body in (pack(0, plain), pack(1, rich))]
    both = Samples(b"\1\0\0\0\2\0\0\0" + rich.tokens, 2, 2, 4, sequence_lengths=((2,), (1, 1)))
    assert join(parts, sequence_length=2) == both


@pytest.mark.parametrize("column", [[0], [3, 1, 1], [1, 9], [1, 0], [1, 1, 1, 1], [2, 1]])
def test_damaged_sequence_lengths_are_refused(column: list[int]) -> None:
    lengths = b"".join(number.to_bytes(4, "little") for number in column)
    head = SamplesHead(0, 1, 2, lengths_bytes=len(lengths))
    with pytest.raises(WireError):
        unpack(head, b"\0\0" * 2 + lengths, sequence_length=2)


@pytest.mark.parametrize(
    "head",
    [
        SamplesHead(0, 2, 2),
        SamplesHead(0, 1, 2, lengths_bytes=2**40),
        SamplesHead(0, 1, 2, lengths_bytes=9),
        SamplesHead(0, 1, 2, lengths_bytes=4),
    ],
)
def test_announcements_that_do_not_fit_are_refused_before_anything_is_kept(head: SamplesHead) -> None:
    with pytest.raises(WireError, match="announced"):
        body_bytes(head, sequence_length=8, count=1)


def test_b60_answers_find_their_requests_and_those_given_up_are_skipped() -> None:
    dialogue = DataClientState(sequence_length=1)
    first, _ = dialogue.ask((BatchId(0, 0),))
    second, _ = dialogue.ask((BatchId(5, 5),))
    assert list(map(decode_client, dialogue.give_up(first))) == [Cancel(0)]
    for number, token in ((0, b"\1\1"), (1, b"\2\2")):
        dialogue.receive(encode_data(SamplesHead(number, 1, 2)))
        dialogue.receive(encode_data(SamplesChunk(number, token)))
    assert second.complete
    assert not first.over
    assert join([(second.head, second.chunks)], sequence_length=1).tokens == b"\2\2"
    assert dialogue.give_up(second) == []


@pytest.mark.parametrize(
    "messages",
    [
        [SamplesChunk(0, b"12")],
        [SamplesHead(0, 2, 2)],
        [SamplesHead(0, 1, 2), SamplesHead(0, 1, 2)],
        [SamplesHead(0, 1, 2), SamplesChunk(0, b"123")],
        [SamplesHead(1, 1, 2)],
        [SamplesRefusal(9, "X", "y")],
    ],
)
def test_answers_nobody_asked_for_end_the_connection(messages: list[Any]) -> None:
    dialogue = DataClientState(sequence_length=1)
    dialogue.ask((BatchId(0, 0),))
    for message in messages[:-1]:
        dialogue.receive(encode_data(message))
    with pytest.raises(WireError):
        dialogue.receive(encode_data(messages[-1]))


def test_numbers_of_requests_grow() -> None:
    answers = DataServerState(requests=4, buffer=10, chunk=4, write=8)
    answers.ask(SamplesRequest(5, (BatchId(0, 0),)))
    with pytest.raises(WireError, match="numbers grow"):
        answers.ask(SamplesRequest(5, (BatchId(0, 0),)))


def test_good_bye_comes_before_everything_and_is_the_last() -> None:
    answers = DataServerState(requests=4, buffer=10, chunk=4, write=8)
    answers.ask(SamplesRequest(0, (BatchId(0, 0),)))
    assert answers.next_to_read() is not None
    answers.answer(*pack(0, Samples(b"12", 1, 1, 2)))
    answers.part("Code", "why")
    assert list(map(decode_data, answers.outgoing())) == [DataBye("Code", "why")]
    assert answers.parted
    assert answers.outgoing() == []


class Connection(RuleBasedStateMachine):
    """Both books joined by two lossless lines; the provider gives sample n as one token n."""

    BUFFER, CHUNK, WRITE, REQUESTS = 40, 6, 14, 5

    def __init__(self) -> None:
        super().__init__()
        self.client = DataClientState(sequence_length=1)
        self.server = DataServerState(requests=self.REQUESTS, buffer=self.BUFFER, chunk=self.CHUNK, write=self.WRITE)
        self.up: list[bytes] = []
        self.down: list[bytes] = []
        self.arrivals: list[Arrival] = []
        self.given_up: list[Arrival] = []
        self.reading: SamplesRequest | None = None
        self.largest = 0

    @rule(first=st.integers(0, 60_000), count=st.integers(1, 30))
    def ask(self, first: int, count: int) -> None:
        arrival, frame = self.client.ask((BatchId(first, first + count - 1),))
        self.arrivals.append(arrival)
        self.up.append(frame)

    @precondition(lambda self: self.arrivals)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        arrival = self.arrivals.pop(data.draw(st.integers(0, len(self.arrivals) - 1)))
        self.up += self.client.give_up(arrival)
        self.given_up.append(arrival)

    @precondition(lambda self: self.up and not self.server.full)
    @rule()
    def server_hears(self) -> None:
        message = decode_client(self.up.pop(0))
        if isinstance(message, SamplesRequest):
            self.server.ask(message)
        elif self.server.cancel(message.number):
            self.server.give_up()
            self.reading = None

    @precondition(lambda self: self.reading is None)
    @rule()
    def server_begins_a_read(self) -> None:
        self.reading = self.server.next_to_read()

    @precondition(lambda self: self.reading is not None)
    @rule(fails=st.booleans())
    def server_ends_a_read(self, fails: bool) -> None:
        request, self.reading = self.reading, None
        assert request is not None
        if fails:
            self.server.refuse(request.number, "DataUnreadable", "why")
        else:
            found = Samples(tokens(request.batches), total_samples(request.batches), 1, 2)
            self.largest = max(self.largest, len(found.tokens))
            self.server.answer(*pack(request.number, found))

    @rule()
    def server_sends(self) -> None:
        frames = self.server.outgoing() or self.server.sign_of_life()
        assert sum(len(frame) for frame in frames if frame[:1] == b"\0") <= self.WRITE + self.CHUNK + 9 * 4
        self.down += frames

    @precondition(lambda self: self.down)
    @rule()
    def client_hears(self) -> None:
        self.client.receive(self.down.pop(0))

    @invariant()
    def bounds_hold(self) -> None:
        assert 0 <= self.server.held <= self.BUFFER + self.largest
        assert self.server.under_way <= self.REQUESTS

    @invariant()
    def what_came_is_what_was_asked(self) -> None:
        for arrival in self.arrivals:
            if arrival.complete:
                assert b"".join(arrival.chunks) == tokens(arrival.request.batches)

    def teardown(self) -> None:
        """Let all lines run dry: everything not given up is over, and nothing is left behind."""
        for _ in range(10_000):
            if self.up and not self.server.full:
                self.server_hears()
            elif self.reading is not None:
                self.server_ends_a_read(fails=False)
            elif (request := self.server.next_to_read()) is not None:
                self.reading = request
            elif self.down:
                self.client_hears()
            elif frames := self.server.outgoing():
                self.down += frames
            else:
                break
        assert all(arrival.over for arrival in self.arrivals)
        assert (self.server.held, self.server.under_way, self.client.outstanding) == (0, 0, 0)
        self.what_came_is_what_was_asked()


def tokens(batches: tuple[BatchId, ...]) -> bytes:
    return b"".join(number.to_bytes(2, "little") for batch in batches for number in range(batch.first, batch.last + 1))


Connection.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestConnection = Connection.TestCase
