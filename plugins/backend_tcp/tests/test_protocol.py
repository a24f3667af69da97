from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_backend_tcp.protocol import (
    Answer,
    Bye,
    CommandRequest,
    Heartbeat,
    JoinRequest,
    LaterState,
    Patch,
    Welcome,
    Whole,
    WholeRequest,
    decode_client,
    decode_server,
    encode_client,
    encode_server,
    make_document,
    read_document,
)
from psyche_core.errors import WireError
from psyche_core.interfaces.backend import StateUpdate
from psyche_core.testing.backend import small_state
from psyche_core.wire.codec import decode, encode


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(),
        JoinRequest(2**64 - 1, b"x" * 1024, b"p" * 64),
        CommandRequest(0, [1]),
        WholeRequest(),
        LaterState(2**32 - 1, 0, 7),
    ],
)
def test_client_messages_are_read_back(message: Any) -> None:
    assert decode_client(encode_client(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(),
        Answer(1, "", ""),
        Answer(1, "Halted", "why"),
        Whole(bytes(32), {"a": [1]}),
        Patch(bytes(32), b"d" * 32, [0, {}]),
        Bye("Replaced", "why"),
        Welcome(10.0, bytes(64)),
    ],
)
def test_server_messages_are_read_back(message: Any) -> None:
    assert decode_server(encode_server(message)) == message


@settings(deadline=None)
@given(st.binary(max_size=80) | st.lists(st.integers(0, 9) | st.binary(max_size=3) | st.text(max_size=3), max_size=5).map(encode))
def test_other_bytes_are_refused_with_wire_error_only(payload: bytes) -> None:
    for read in (decode_client, decode_server):
        try:
            read(payload)
        except WireError:
            continue


def test_a_document_has_relays_only_if_the_server_offers_some() -> None:
    state = small_state()
    assert "relays" not in make_document(state, {})
    document = make_document(state, {}, ["https://relay.example.org"])
    assert read_document(decode(encode(document), max_bytes=100_000)) == StateUpdate(state, {}, ("https://relay.example.org",))
    for wrong in ("https://a", [1], ["https://a"] * 9, ["https://" + "a" * 300]):
        with pytest.raises(WireError, match="relays"):
            read_document({**document, "relays": wrong})


def test_documents_are_read_back_and_checked() -> None:
    update = StateUpdate(small_state(), {b"b" * 32: b"address", b"a" * 32: b""})
    document = make_document(update.state, update.addresses)
    assert read_document(decode(encode(document), max_bytes=100_000)) == update
    assert [signer for signer, _ in document["addresses"]] == [b"a" * 32, b"b" * 32]
    broken_ones: tuple[object, ...] = (
        {},
        [],
        {"state": document["state"]},
        {**document, "addresses": [[b"short", b""]]},
        {**document, "addresses": [[b"a" * 32, b"x" * 1025]]},
        {**document, "state": {}},
    )
    for broken in broken_ones:
        with pytest.raises(WireError):
            read_document(broken)
