"""The server proves its key before a client says anything, and nobody in between can use what either side says."""

from __future__ import annotations

import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSAttribute
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from psyche_backend_tcp.client.connection import TcpBackend
from psyche_backend_tcp.connections.addresses import format_address, parse_address
from psyche_backend_tcp.connections.dialer import dial
from psyche_backend_tcp.connections.login import COORDINATOR, Hello, encode_hello
from psyche_backend_tcp.connections.tls import accept_tls, open_tls, server_context
from psyche_backend_tcp.limits import SERVER_FRAME, Limits
from psyche_backend_tcp.protocol import Bye, Welcome, decode_server, encode_server
from psyche_core.errors import AccessRefused, CommandRefused, UserError
from psyche_core.hookspecs import BackendContext
from psyche_core.wire.frames import FramedStream
from psyche_core.wire.signing import SecretKey

TIMEOUT = 10.0
LOST = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
IMPOSTOR = SecretKey(b"i" * 32)


@asynccontextmanager
async def listening(handle: Callable[[ByteStream], Awaitable[None]]) -> AsyncIterator[int]:
    """A plain TCP server of the test's own; its port."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        yield listener.extra(SocketAttribute.local_port)
        group.cancel_scope.cancel()


def backend(address: str, key: SecretKey) -> TcpBackend:
    return TcpBackend(BackendContext(run_id="conformance", address=address, key=key, retry_seconds=1))


async def impostor_context() -> ssl.SSLContext:
    return await anyio.to_thread.run_sync(server_context, IMPOSTOR)


async def test_the_connection_is_tls_1_3_under_the_servers_own_key(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    async with serving(key=keys[2]) as server, client(server, keys[0]) as backend:
        assert server.address.endswith("#" + keys[2].public.hex())
        assert backend._connection.frames._stream.extra(TLSAttribute.tls_version) == "TLSv1.3"
        assert backend._connection.server_key == keys[2].public


async def test_a_server_with_another_key_is_refused_before_anything_is_said(keys: list[SecretKey]) -> None:
    heard: list[bytes] = []
    done = anyio.Event()
    context = await impostor_context()

    async def handle(stream: ByteStream) -> None:
        async with stream:
            with contextlib.suppress(*LOST):
                secure = await accept_tls(stream, context)
                hello = Hello(COORDINATOR, "conformance", bytes(32))
                await FramedStream(secure, receive_limit=SERVER_FRAME, send_limit=SERVER_FRAME).send(encode_hello(hello))
                heard.append(await secure.receive())
            done.set()

    with anyio.fail_after(TIMEOUT):
        async with listening(handle) as port:
            with pytest.raises(
                CommandRefused, match=f"proved the key {IMPOSTOR.public.hex()}, expected {keys[2].public.hex()}"
            ) as no:
                async with backend(format_address("127.0.0.1", port, keys[2].public), keys[0]):
                    pass
            assert no.value.code == "WrongServer"
            await done.wait()
    assert heard == []


async def test_b25_a_login_relayed_by_somebody_in_between_is_refused(serving: Any, keys: list[SecretKey]) -> None:
    """The reference's challenge could be answered through a stranger (client defect 25).

    Here the client trusts whoever answers, talks to a stranger, and the stranger hands everything on to the real server.
    """
    context = await impostor_context()
    async with serving(key=keys[2]) as server:
        real = parse_address(server.address)

        async def relay(stream: ByteStream) -> None:
            async with stream, await anyio.connect_tcp(real.host, real.port) as onward:
                with contextlib.suppress(*LOST):
                    victim = await accept_tls(stream, context)
                    upstream, _ = await open_tls(onward, expected=real.key)
                    async with anyio.create_task_group() as group:

                        async def pump(source: ByteStream, sink: ByteStream) -> None:
                            with contextlib.suppress(*LOST):
                                while True:
                                    await sink.send(await source.receive())
                            group.cancel_scope.cancel()

                        group.start_soon(pump, victim, upstream)
                        group.start_soon(pump, upstream, victim)

        async with listening(relay) as port:
            with anyio.fail_after(TIMEOUT):
                with pytest.raises(CommandRefused, match="somebody between you and the server") as refused:
                    async with backend(f"127.0.0.1:{port}#insecure", keys[0]):
                        pass
            assert refused.value.code == "BadSignature"
            with anyio.fail_after(TIMEOUT), pytest.raises(CommandRefused) as refused:
                async with backend(format_address("127.0.0.1", port, real.key), keys[0]):
                    pass
            assert refused.value.code == "WrongServer"
        assert server.connected == 0


@pytest.mark.parametrize("first", [True, False], ids=["in place of hello", "after the login"])
async def test_a_servers_words_cannot_write_to_the_terminal(keys: list[SecretKey], first: bool) -> None:
    context = await impostor_context()
    evil = "\x1b[2J\nError: nothing is wrong \u202e"

    async def handle(stream: ByteStream) -> None:
        async with stream:
            frames = FramedStream(await accept_tls(stream, context), receive_limit=SERVER_FRAME, send_limit=SERVER_FRAME)
            if not first:
                await frames.send(encode_hello(Hello(COORDINATOR, "conformance", bytes(32))))
                await frames.receive()
            await frames.send(encode_server(Bye(f"Code{evil}", evil)))

    async with listening(handle) as port:
        with anyio.fail_after(TIMEOUT), pytest.raises(CommandRefused) as refused:
            async with backend(format_address("127.0.0.1", port, IMPOSTOR.public), keys[0]):
                pass
    assert str(refused.value).isprintable()
    assert "\\x1b[2J" in refused.value.message


async def test_a_server_that_cannot_sign_the_login_is_refused(keys: list[SecretKey]) -> None:
    """It holds the TLS key it shows, but its welcome is of another connection."""
    context = await impostor_context()

    async def handle(stream: ByteStream) -> None:
        async with stream:
            frames = FramedStream(await accept_tls(stream, context), receive_limit=SERVER_FRAME, send_limit=SERVER_FRAME)
            await frames.send(encode_hello(Hello(COORDINATOR, "conformance", bytes(32))))
            await frames.receive()
            await frames.send(encode_server(Welcome(10.0, bytes(64))))

    async with listening(handle) as port:
        with anyio.fail_after(TIMEOUT), pytest.raises(CommandRefused, match="do not trust it") as refused:
            async with backend(f"127.0.0.1:{port}#insecure", keys[0]):
                pass
        assert refused.value.code == "BadServer"


async def test_a_certificate_without_an_ed25519_key_is_refused(tmp_path: Path, keys: list[SecretKey]) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stranger")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(private.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1)).sign(private, hashes.SHA256())
    )  # fmt: skip
    pem = tmp_path / "stranger.pem"
    pem.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    async def handle(stream: ByteStream) -> None:
        async with stream:
            with contextlib.suppress(*LOST):
                await (await accept_tls(stream, context)).receive()

    async with listening(handle) as port:
        for proof in ("#insecure", "#" + keys[2].public.hex()):
            with anyio.fail_after(TIMEOUT), pytest.raises(CommandRefused, match="expected an Ed25519 key"):
                async with backend(f"127.0.0.1:{port}{proof}", keys[0]):
                    pass


async def test_a_server_that_speaks_no_tls_is_one_clear_sentence(keys: list[SecretKey]) -> None:
    async def handle(stream: ByteStream) -> None:
        async with stream:
            with contextlib.suppress(*LOST):
                await stream.send(encode_hello(Hello(COORDINATOR, "conformance", bytes(32))))
                await stream.receive()

    async with listening(handle) as port:
        said = rf"127\.0\.0\.1:{port} is not a Psyche server .*check host"
        with anyio.fail_after(TIMEOUT), pytest.raises(AccessRefused, match=said):
            async with backend(f"127.0.0.1:{port}", keys[0]):
                pass


async def test_older_tls_is_refused(serving: Any, keys: list[SecretKey]) -> None:
    async with serving() as server:
        address = parse_address(server.address)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(LOST):
            await anyio.connect_tcp(address.host, address.port, tls=True, ssl_context=old)


async def test_a_connection_without_a_tls_handshake_is_closed_in_time(serving: Any) -> None:
    async with serving(limits=Limits(handshake_seconds=0.05)) as server:
        address = parse_address(server.address)
        for start in (b"", b"\x16\x03\x01\x02\x00\x01"):
            async with await anyio.connect_tcp(address.host, address.port) as stream:
                if start:
                    await stream.send(start)
                with anyio.fail_after(TIMEOUT), pytest.raises(LOST):
                    await stream.receive()
        with anyio.fail_after(TIMEOUT):
            while server._bound().waiting:
                await anyio.sleep(0)


async def test_a_client_elsewhere_without_a_key_does_not_even_connect(keys: list[SecretKey]) -> None:
    with pytest.raises(UserError, match="must prove who it is"):
        backend("203.0.113.7:20000", keys[0])


async def test_a_client_of_another_version_is_told(serving: Any, raw: Any) -> None:
    from psyche_core.wire.codec import encode

    async with serving() as server:
        frames = await raw(server.address)
        await frames.receive()
        await frames.send(encode(["psyche", 1, "conformance", bytes(32), bytes(64)]))
        bye = decode_server(await frames.receive())
        assert isinstance(bye, Bye)
        assert (bye.code, "install matching releases" in bye.sentence) == ("VersionMismatch", True)
        await frames.aclose()


async def test_dial_names_the_key_a_trusting_client_met(serving: Any, keys: list[SecretKey]) -> None:
    async with serving(key=keys[2]) as server:
        address = replace(parse_address(server.address), key=None)
        link = await dial(address, service=COORDINATOR, key=keys[0], run_id=None, timeout=TIMEOUT)
        assert link.server_key == keys[2].public
        await link.frames.aclose()
