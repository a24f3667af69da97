"""The relay over TLS: the same service, and limits that count before the handshake."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from plugins.p2p_quic.tests.relay_parts import TIMEOUT, RelayClient, certificate_in, random_bytes, serving
from plugins.p2p_quic.tests.relay_sockets import until
from psyche_p2p_quic.relay.protocol.tls import ServerTls

pytestmark = pytest.mark.anyio


# -------------------------------------------------------------------------------------------------------------------- TLS
@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate_in(tmp_path_factory.mktemp("tls"))


async def test_the_same_over_tls(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    async with serving(tls=context, write_seconds=5.0) as (server, url):
        assert url.startswith("https://")
        async with RelayClient.login(url, ssl=trusting) as alice, RelayClient.login(url, ssl=trusting) as bob:
            for size in (1, 13_000, 65_000):
                payload = random_bytes(size)
                await alice.send(bob, payload)
                assert (await bob.frame())[36:] == payload
            await server.drain(seconds=TIMEOUT)
            assert await bob.closed() == 1001


async def test_plain_http_to_a_tls_port_ends(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    async with serving(tls=context) as (server, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /relay HTTP/1.1\r\nHost: relay\r\n\r\n")
        await asyncio.wait_for(reader.read(), TIMEOUT)
        writer.close()
        await until(lambda: not server._connections)
        assert server.router.counters.tls_failures == 1


async def test_over_tls_connections_are_counted_and_timed_before_their_handshake(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    async with serving(tls=context, connections_per_address=2, handshake_seconds=0.5) as (server, url):
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        for reader, writer in silent:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), TIMEOUT) == b""
            writer.close()
        counters = server.router.counters
        assert (counters.connections, counters.crowded_out, counters.handshake_timeouts) == (3, 1, 2)
        await until(lambda: not server._connections)
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        async with RelayClient.login(url, ssl=trusting) as client:
            await client.socket.send(b"\x0912345678")
            assert await client.frame() == b"\x0a12345678"


async def test_tls_in_any_pieces(certificate: tuple[Path, Path]) -> None:
    """A client whose bytes come one by one, and who ends its direction."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(*certificate)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(certificate[0])).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    tls = ServerTls(server_context)
    said = b""

    def carry() -> None:
        nonlocal said
        data = outgoing.read()
        for place in range(len(data)):
            said += tls.receive(memoryview(data)[place : place + 1])
        incoming.write(tls.left_to_send())

    tls.send(b"dropped: nothing can be said yet")
    for _ in range(5):
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        carry()
    client.write(bytes(range(256)) * 300)
    carry()
    assert said == bytes(range(256)) * 300
    tls.send(b"answer")
    incoming.write(tls.left_to_send())
    assert client.read() == b"answer"
    with contextlib.suppress(ssl.SSLWantReadError):
        client.unwrap()
    assert not tls.ended
    carry()
    assert tls.ended
