"""What the tests of the relay share: a client on the library `websockets` that uses none of its code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import pytest
from blake3 import blake3
from nacl.signing import SigningKey
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from psyche_p2p_quic.relay.access import Access, OpenAccess
from psyche_p2p_quic.relay.limits import RelayLimits
from psyche_p2p_quic.relay.server import RelayServer

TIMEOUT = 20.0
VERSIONS = ["iroh-relay-v2", "iroh-relay-v1"]
CONTEXT = "iroh-relay handshake v1 challenge signature"


class Refused(Exception):
    """The relay denied the login. The argument is its reason."""


def answer(key: SigningKey, challenge: bytes) -> bytes:
    """The frame that proves a key."""
    message = blake3(challenge[1:], derive_key_context=CONTEXT).digest()
    return b"\x01" + bytes(key.verify_key) + b"\x40" + key.sign(message).signature


class RelayClient:
    """A logged-in client."""

    def __init__(self, socket: ClientConnection, key: SigningKey) -> None:
        self.socket = socket
        self.key = key
        self.id = bytes(key.verify_key)

    @classmethod
    @contextlib.asynccontextmanager
    async def login(
        cls, url: str, *, key: SigningKey | None = None, token: str | None = None, versions: list[str] = VERSIONS, **options: Any
    ) -> AsyncIterator[Self]:
        """Connect and prove a key. Raises Refused."""
        key = key or SigningKey.generate()
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        async with open_socket(url, versions=versions, additional_headers=headers, **options) as socket:
            challenge = await received(socket)
            assert challenge[0] == 0
            assert len(challenge) == 17
            await socket.send(answer(key, challenge))
            verdict = await received(socket)
            if verdict[0] == 3:
                raise Refused(verdict[2 : 2 + verdict[1]].decode())
            assert verdict == b"\x02"
            yield cls(socket, key)

    async def send(self, to: RelayClient | bytes, payload: bytes) -> None:
        """A batch of datagrams of at most 1200 bytes."""
        await self.socket.send(b"\x05" + (to if isinstance(to, bytes) else to.id) + b"\x00\x04\xb0" + payload)

    async def frame(self) -> bytes:
        """The next frame."""
        return await received(self.socket)

    async def datagram(self) -> bytes:
        """The next forwarded frame; pings are answered meanwhile."""
        while (frame := await self.frame())[0] == 9:
            await self.socket.send(b"\x0a" + frame[1:])
        return frame

    async def closed(self) -> int:
        """Wait until the relay closes the connection; its code."""
        async with asyncio.timeout(TIMEOUT):
            with contextlib.suppress(ConnectionClosedError):
                async for _ in self.socket:
                    pass
        return self.socket.close_code or 0


def open_socket(url: str, *, versions: list[str] = VERSIONS, **options: Any) -> connect:
    """A WebSocket to the relay, nothing said yet."""
    given: dict[str, Any] = {
        "compression": None, "ping_interval": None, "proxy": None, "max_size": 2**20, "close_timeout": 2, **options,
    }  # fmt: skip
    return connect(f"{url.replace('http', 'ws', 1).rstrip('/')}/relay", subprotocols=versions, **given)  # type: ignore[arg-type]  # str


async def received(socket: ClientConnection) -> bytes:
    """The next message."""
    async with asyncio.timeout(TIMEOUT):  # not wait_for, which may swallow a cancellation
        data = await socket.recv()
    assert isinstance(data, bytes)
    return data


@contextlib.asynccontextmanager
async def serving(
    access: Access | None = None, *, tls: ssl.SSLContext | None = None, public_metrics: bool = False, **limits: Any
) -> AsyncIterator[tuple[RelayServer, str]]:
    """A relay in this process, and its URL."""
    server = RelayServer(
        access or OpenAccess(),
        hosts=["127.0.0.1"],
        port=0,
        limits=RelayLimits(**limits),
        tls=tls,
        public_metrics=public_metrics,
    )
    async with server:
        yield server, f"http{'s' if tls else ''}://127.0.0.1:{server.port}"


def random_bytes(count: int) -> bytes:
    """Payload that does not compress or repeat."""
    return os.urandom(count)


def certificate_in(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that it has signed itself, and its key."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed, which makes the test's certificate")
    return cert, key
