"""What an error of the library says to people."""

from __future__ import annotations

import anyio
import pytest

from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.address_observer.server import Observer
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.endpoint.links import LinkLost, plain_reason

SOURCE = "/github/home/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/iroh-1.4.1/src/endpoint.rs:1076:20"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            f"ConnectError::Connecting ({SOURCE})\nCaused by:\n    ConnectionError (/rustc/58cf/poll.rs:258:39)\n    timed out",
            "timed out",
        ),
        (f"outer ({SOURCE})\nCaused by:\n    0: middle\n    1: inner ({SOURCE})\n", "inner"),
        (f"Failed to bind sockets ({SOURCE})", "Failed to bind sockets"),
        ("closed by peer: go (away) (code 3)\nmore", "closed by peer: go (away) (code 3)"),
        ("", ""),
    ],
)
def test_a_reason_of_the_library_comes_without_places_in_its_source(message: str, reason: str) -> None:
    assert plain_reason(message) == reason


@pytest.mark.quic
@pytest.mark.anyio
async def test_a_call_that_fails_says_why_in_words() -> None:
    endpoint = await Endpoint.bind(bytes(32), interface="127.0.0.1", port=0)
    try:
        async with Observer(SecretKey.generate(), hosts=["127.0.0.1"], port=0) as observer:
            location = observer.location
            with anyio.fail_after(30), pytest.raises(LinkLost) as failed:
                await endpoint.dial(location.key, [f"127.0.0.1:{location.port}"])
    finally:
        await endpoint.aclose(timeout=1.0)
    assert "handshake failed" in str(failed.value)
    assert "::" not in str(failed.value)
    assert "/" not in str(failed.value)
