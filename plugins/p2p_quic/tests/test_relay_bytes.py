"""The relay's bytes: frames and handshake against what the real client sent, WebSocket frames against another implementation."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from websockets.frames import Frame, Opcode

from psyche_core.errors import WireError
from psyche_p2p_quic.relay.protocol import frames, handshake, websocket
from psyche_p2p_quic.relay.protocol.handshake import Challenge, denial
from psyche_p2p_quic.relay.protocol.http import Answered, Page, RequestReader, Upgraded
from psyche_p2p_quic.relay.protocol.websocket import CloseCode, Closed, FrameReader, WebSocketError

KEY = SigningKey(b"\x01" * 32)
ID = bytes.fromhex("8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c")
NONCE = bytes(range(16))
SIGNATURE = bytes.fromhex(
    "4d5e2e27b1f48ba67554ffa68589791ddfec1529574c3f26e4356bc075cee0a3"
    "ddaedea5fb0b3de1359d135dce06aa7f192562e48df781df865c77f1d716f00d"
)
ANSWER = b"\x01" + ID + b"\x40" + SIGNATURE
"""What iroh 1.2.0 with the key of 32 bytes 01 answered to the challenge 00 01 … 0f."""
MAX_HEADER_BYTES = 14
"""Longest header of a WebSocket frame from a client: 2 bytes, 8 of a long size, 4 of the mask."""


# -------------------------------------------------------------------------------------------------------------- handshake


def test_the_challenge_and_the_message_that_is_signed() -> None:
    challenge = Challenge(NONCE)
    assert challenge.encode().hex() == "00000102030405060708090a0b0c0d0e0f"
    assert challenge.message.hex() == "b7b16e505d2cb5dbaf494800092c3b05a6c45d8d3fd4f1b888c6a77240b876c0"


def test_the_real_client_s_answer_proves_its_id() -> None:
    assert bytes(KEY.verify_key) == ID
    assert Challenge(NONCE).proven_id(ANSWER) == ID


def test_a_replayed_answer_proves_nothing() -> None:
    with pytest.raises(WireError, match="signature"):
        Challenge(bytes(16)).proven_id(ANSWER)


@given(st.integers(0, len(ANSWER) - 1), st.integers(1, 255))
def test_an_answer_with_any_byte_changed_is_refused(place: int, change: int) -> None:
    changed = bytearray(ANSWER)
    changed[place] ^= change
    with pytest.raises(WireError):
        Challenge(NONCE).proven_id(bytes(changed))


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), b"\xec" + b"\xff" * 30 + b"\x7f"])
def test_ids_of_small_order_are_refused(key: bytes) -> None:
    """With such a key a signature of zeros verifies in lenient libraries, for every message."""
    for signature in (bytes(64), key + bytes(32), b"\x01" + bytes(63)):
        with pytest.raises(WireError):
            Challenge(NONCE).proven_id(b"\x01" + key + b"\x40" + signature)


@given(st.binary(max_size=200))
def test_other_answers_raise_wire_errors(data: bytes) -> None:
    with pytest.raises(WireError):
        Challenge(NONCE).proven_id(data)


def test_a_denial_is_the_note_s() -> None:
    assert denial("not authorized").hex() == "030e6e6f7420617574686f72697a6564"
    assert handshake.WELCOME == b"\x02"


@given(st.text(max_size=300))
def test_a_denial_is_always_short_and_whole_utf_8(reason: str) -> None:
    frame = denial(reason)
    assert frame[1] == len(frame) - 2 < 128
    assert reason.startswith(frame[2:].decode())


# ----------------------------------------------------------------------------------------------------------------- frames


@given(
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=1, max_size=300),
    st.integers(0, 3),
)
def test_forwarding_replaces_type_and_id_and_copies_the_rest(to: bytes, sender: bytes, payload: bytes, ecn: int) -> None:
    for kind, extra in ((frames.DATAGRAM_OUT, b""), (frames.BATCH_OUT, b"\x04\xb0")):
        frame = bytes((kind,)) + to + bytes((ecn,)) + extra + payload
        assert frames.check_client_frame(frame) == kind
        assert frames.receiver(frame) == to
        assert b"".join(frames.forwarded(frame, sender)) == bytes((kind + 2,)) + sender + bytes((ecn,)) + extra + payload


def datagram(kind: int, size: int) -> bytes:
    return (bytes((kind,)) + b"d" * 32 + b"\x00\x04\xb0" + bytes(70_000))[:size]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        datagram(4, 34),  # no payload
        datagram(4, 20),
        datagram(4, 65_538),
        datagram(5, 36),
        datagram(5, 65_538),
        b"\x05" + b"d" * 32 + b"\x00\x00\x00" + b"payload",  # segments of no bytes
        b"\x09" + bytes(7),
        b"\x09" + bytes(9),
        b"\x0a",
        *[bytes((kind,)) + bytes(40) for kind in (0, 1, 2, 3, 6, 7, 8, 11, 12, 13, 14, 63, 64, 255)],
    ],
)
def test_what_a_client_must_not_send(frame: bytes) -> None:
    with pytest.raises(WireError):
        frames.check_client_frame(frame)


@pytest.mark.parametrize(
    "frame", [datagram(4, 35), datagram(4, 65_537), datagram(5, 37), datagram(5, 65_537), b"\x09" + bytes(8)]
)
def test_what_a_client_may_send_up_to_the_limits(frame: bytes) -> None:
    assert frames.check_client_frame(frame) == frame[0]


def test_our_own_frames() -> None:
    assert frames.pong(b"\x0912345678") == b"\x0a12345678"
    assert frames.ping(b"12345678") == b"\x0912345678"
    assert frames.peer_gone(ID) == b"\x08" + ID
    assert frames.health(frames.Health.SAME_ID, frames.V2) == b"\x0d\x01"
    assert frames.health(frames.Health.OK, frames.V2) == b"\x0d\x00"
    assert frames.health(frames.Health.RATE_LIMITED, frames.V2) == b"\x0d\x02"
    assert frames.health(frames.Health.SAME_ID, frames.V1) == b"\x0bsame endpoint id connected"
    assert frames.restarting(reconnect_in_ms=1, try_for_ms=256) == b"\x0c" + struct.pack(">II", 1, 256)


# -------------------------------------------------------------------------------------------------------------- WebSocket


def from_client(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def in_pieces(data: bytes, cuts: list[int]) -> list[memoryview]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [memoryview(data)[start:stop] for start, stop in itertools.pairwise(places)]


messages = st.lists(st.tuples(st.binary(max_size=400) | st.integers(65_530, 65_540).map(bytes), st.integers(1, 4)), max_size=5)


@given(messages, st.lists(st.integers(0, 2**20), max_size=12), st.booleans())
def test_whatever_pieces_messages_and_their_parts_arrive_in(
    sent: list[tuple[bytes, int]], cuts: list[int], between: bool
) -> None:
    """As `websockets` writes them, cut into fragments and then anywhere."""
    stream = b""
    pings = 0
    for body, parts in sent:
        step = max(1, -(-len(body) // parts))
        pieces = [body[at : at + step] for at in range(0, len(body), step)] or [b""]
        for number, piece in enumerate(pieces):
            stream += from_client(Opcode.CONT if number else Opcode.BINARY, piece, fin=number == len(pieces) - 1)
            if between:
                stream += from_client(Opcode.PING, b"still there?") + from_client(Opcode.PONG, b"")
                pings += 1

    reader = FrameReader(max_message=2**17)
    got = [message for piece in in_pieces(stream, cuts) for message in reader.feed(piece)]
    assert got == [body for body, _ in sent]
    assert len(reader.pongs) == min(pings, FrameReader.MAX_PONGS)
    assert held_bytes(reader) == 0


def held_bytes(reader: FrameReader) -> int:
    """Bytes that the reader keeps of what is incomplete."""
    return len(reader._rest or b"") + sum(map(len, reader._fragments or ()))


def test_byte_by_byte_holds_no_more_than_one_frame() -> None:
    reader = FrameReader(max_message=1000)
    stream = from_client(Opcode.BINARY, bytes(1000))
    for place in range(len(stream) - 1):
        assert reader.feed(memoryview(stream)[place : place + 1]) == []
        assert held_bytes(reader) == place + 1
    assert reader.feed(memoryview(stream)[-1:]) == [bytes(1000)]


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
def test_unmasking_is_xor_with_the_repeated_mask(data: bytes, mask: bytes) -> None:
    assert websocket.unmasked(data, mask) == bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))


def test_text_is_skipped() -> None:
    stream = from_client(Opcode.TEXT, b"h", fin=False) + from_client(Opcode.CONT, b"i") + from_client(Opcode.BINARY, b"data")
    assert FrameReader(max_message=100).feed(memoryview(stream)) == [b"data"]


def test_a_close_frame_is_told_with_what_to_answer() -> None:
    with pytest.raises(Closed) as closed:
        FrameReader(max_message=100).feed(memoryview(from_client(Opcode.CLOSE, b"\x03\xe8bye")))
    assert websocket.close_answer(closed.value.payload) == b"\x88\x05\x03\xe8bye"


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (Frame(Opcode.BINARY, b"data").serialize(mask=False), CloseCode.PROTOCOL_ERROR),
        (b"\xc2\x80mask", CloseCode.PROTOCOL_ERROR),  # compressed, which was not negotiated
        (b"\x83\x80mask", CloseCode.PROTOCOL_ERROR),  # unknown opcode
        (b"\x09\x80mask", CloseCode.PROTOCOL_ERROR),  # a ping in parts
        (b"\x89\xfe\x00\x7emask", CloseCode.PROTOCOL_ERROR),  # a ping of 126 bytes
        (from_client(Opcode.CONT, b"data"), CloseCode.PROTOCOL_ERROR),
        (from_client(Opcode.BINARY, b"a", fin=False) + from_client(Opcode.BINARY, b"b"), CloseCode.PROTOCOL_ERROR),
        (b"\x82\xfe\x04\x01mask", CloseCode.TOO_BIG),
        (b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xffmask", CloseCode.TOO_BIG),
        (from_client(Opcode.BINARY, bytes(600), fin=False) + from_client(Opcode.CONT, bytes(600)), CloseCode.TOO_BIG),
        (from_client(Opcode.BINARY, b"", fin=False) + 64 * from_client(Opcode.CONT, b"", fin=False), CloseCode.TOO_BIG),
    ],
    ids=[  # the frames have random masks, and every test process must give a case the same name
        "without-mask", "compressed", "unknown-opcode", "ping-in-parts", "long-ping", "lone-part", "begun-twice",
        "longer-than-allowed", "longest", "parts-together-too-long", "too-many-parts",
    ],
)  # fmt: skip
def test_what_breaks_the_rules_is_refused_from_its_header_on(stream: bytes, code: CloseCode) -> None:
    with pytest.raises(WebSocketError) as refused:
        FrameReader(max_message=1024).feed(memoryview(stream))
    assert refused.value.code is code


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_are_messages_or_an_error_and_are_not_kept_beyond_a_frame(data: bytes, cuts: list[int]) -> None:
    reader = FrameReader(max_message=64)
    try:
        for piece in in_pieces(data, cuts):
            assert all(len(message) <= 64 for message in reader.feed(piece))
            assert held_bytes(reader) <= 2 * (64 + MAX_HEADER_BYTES)
    except (WebSocketError, Closed):
        return


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_our_headers_are_as_another_implementation_writes_them(size: int) -> None:
    assert websocket.binary_header(size) + bytes(size) == Frame(Opcode.BINARY, bytes(size)).serialize(mask=False)


def test_the_accept_token_is_that_of_the_standard() -> None:
    assert websocket.accept_token(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


# ------------------------------------------------------------------------------------------------------------------- HTTP

UPGRADE = {
    "Host": "relay",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "iroh-relay-v2, iroh-relay-v1",
}


def request(path: str = "/relay", method: str = "GET", **headers: str | None) -> bytes:
    lines = {**UPGRADE, **{name.replace("_", "-"): value for name, value in headers.items()}}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode()


def ask(data: bytes) -> Answered | Upgraded | None:
    return RequestReader({"/page": lambda host: Page(f"for {host}"), "/secret": lambda _: None}, "192.0.2.1").feed(data)


def status(answer: Answered | Upgraded | None) -> int:
    assert answer is not None
    return int(answer.data.split(b" ")[1])


def test_the_best_known_version_is_answered() -> None:
    both, old = ask(request()), ask(request(Sec_WebSocket_Protocol="iroh-relay-v1"))
    assert isinstance(both, Upgraded)
    assert isinstance(old, Upgraded)
    assert (both.version, old.version) == ("iroh-relay-v2", "iroh-relay-v1")
    assert b"sec-websocket-protocol: iroh-relay-v2\r\n" in both.data.lower()
    assert b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n" in both.data.lower()


def test_bytes_behind_the_request_are_frames() -> None:
    answer = ask(request() + b"\x82\x80mask")
    assert isinstance(answer, Upgraded)
    assert answer.rest == b"\x82\x80mask"


@pytest.mark.parametrize(("header", "token"), [("Bearer T0ken.x", "T0ken.x"), ("bearer T", "T"), ("Basic T", None), (None, None)])
def test_the_token_is_read_from_its_header(header: str | None, token: str | None) -> None:
    answer = ask(request(Authorization=header))
    assert isinstance(answer, Upgraded)
    assert answer.token == token
    assert "T0ken" not in repr(answer)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (request(Sec_WebSocket_Protocol=None), 400),
        (request(Sec_WebSocket_Protocol="iroh-relay-v9"), 400),
        (request(Upgrade=None), 426),
        (request(Connection="keep-alive"), 426),
        (request(Sec_WebSocket_Version="8"), 426),
        (request(Sec_WebSocket_Key=None), 426),
        (request(Sec_WebSocket_Key="c2hvcnQ="), 426),
        (request(Sec_WebSocket_Key="not base 64"), 426),
        (request(method="POST"), 405),
        (request("/other"), 404),
        (request("/secret"), 404),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01" + bytes(300), 400),
        (b"GET /relay HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 9000, 431),
        (b"GET /relay HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_other_requests_are_refused_with_a_status(data: bytes, code: int) -> None:
    answer = ask(data)
    assert isinstance(answer, Answered)
    assert status(answer) == code
    assert answer.problem
    assert b"connection: close\r\n" in answer.data.lower()


def test_an_incomplete_request_waits() -> None:
    reader = RequestReader({}, "192.0.2.1")
    data = request("/ping")
    for place in range(len(data) - 1):
        assert reader.feed(data[place : place + 1]) is None
    assert isinstance(reader.feed(data[-1:]), Answered)


def test_a_page_and_its_head() -> None:
    page, head = ask(request("/page?query")), ask(request("/page", "HEAD"))
    assert status(page) == status(head) == 200
    assert isinstance(page, Answered)
    assert isinstance(head, Answered)
    assert page.data == head.data + b"for 192.0.2.1"
    assert not page.problem


@pytest.mark.parametrize(("challenge", "answered"), [("ts_a.B-9", True), ("", False), ("bad value", False), ("x" * 64, False)])
def test_the_captive_portal_check(challenge: str, answered: bool) -> None:
    answer = ask(request("/generate_204", X_Iroh_Challenge=challenge))
    assert status(answer) == 204
    assert answer is not None
    assert (f"x-iroh-response: response {challenge}\r\n".lower().encode() in answer.data.lower()) is answered
    assert answer.data.endswith(b"\r\n\r\n")


@given(st.binary(max_size=400))
def test_any_bytes_get_an_answer_or_wait(data: bytes) -> None:
    answer = ask(data)
    assert answer is None or isinstance(answer, Answered)


@pytest.mark.parametrize("header", ["Transfer-Encoding: chunked", "Content-Length: 4"])
def test_an_upgrade_with_a_body_is_refused(header: str) -> None:
    """Bytes behind it that are no chunk raised an exception, with a traceback in the log for each such request."""
    request = (
        "GET /relay HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: iroh-relay-v2\r\n{header}\r\n\r\nZZZZ\r\n"
    )
    answer = RequestReader({}, "127.0.0.1").feed(request.encode())
    assert isinstance(answer, Answered)
    assert answer.data.startswith(b"HTTP/1.1 400 ")
    assert answer.problem == "expected a request without a body"
