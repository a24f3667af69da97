"""How fast a relay takes our data and gives it back: a relay's client of a few lines, for measurements only.

Upload: datagrams for nobody, then a ping; the pong says that all of it has been read. Download: datagrams for ourselves; as they
travel both ways, the figure is what the slower direction allows. The key is our own, so a relay that serves members only can be
measured by a member that does not run at the same time.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import ssl
import time
from urllib.parse import urlsplit

from blake3 import blake3
from nacl.signing import SigningKey

from psyche_core.config.sentences import printable
from psyche_core.errors import TransportError, WireError
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.relay.access import TokenAccess
from psyche_p2p_quic.relay.protocol import frames

_CONTEXT = "iroh-relay handshake v1 challenge signature"
_PAYLOAD_BYTES = 16 * 1024
_FIRST_BYTES = 256 * 1024
_MOST_BYTES = 16 * 2**20
_ENOUGH_SECONDS = 1.0
_LOGIN_SECONDS = 15.0
_LONGEST_SECONDS = 20.0
_MAX_HEAD_BYTES = 16 * 1024


class TokenRefused(TransportError):
    """The relay asks for a token, and got none or a wrong one. Joining the run does not help, unlike with one for members."""


async def relay_rates(url: str, key: SecretKey, *, token: str | None = None) -> tuple[float, float]:
    """(upload, download) in bytes a second. Raises TransportError (the relay refuses, or ends), OSError, TimeoutError."""
    async with asyncio.timeout(3 * _LONGEST_SECONDS):
        client = await _Client.log_in(url, key, token=token)
        try:
            return await _growing(client.upload), await _growing(client.echo)
        finally:
            client.close()


async def log_in_once(url: str, key: SecretKey, *, token: str | None = None) -> None:
    """Log in and leave. Raises TransportError (the relay refuses), WireError (it is none), OSError, TimeoutError."""
    async with asyncio.timeout(_LOGIN_SECONDS):
        (await _Client.log_in(url, key, token=token)).close()


async def why_refused(url: str, key: SecretKey, *, token: str | None = None) -> str | None:
    """Why a relay cannot be used with this key, in one sentence with what to do; None if it can.

    The owner of the key must not be connected there.
    """
    try:
        await log_in_once(url, key, token=token)
    except TokenRefused:
        given = "another one was given" if token else "none was given"
        return f"the relay {url} needs a token, and {given}; ask its owner for it, and give it with --iroh-relay-token"
    except ssl.SSLError as error:
        reason = printable(error.reason or "TLS failed")
        return (
            f"the relay {url} has no certificate that can be trusted ({reason}); its owner must give it one that browsers accept"
        )
    except TransportError as error:
        return f"{url}: {printable(str(error))}; ask its owner whether it serves this run, or choose another with --iroh-relay"
    except WireError:
        return f"the relay {url} is none: it answers something else; check the URL, or choose another with --iroh-relay"
    except (OSError, TimeoutError) as error:
        why = printable(str(error) or "no answer")
        return f"the relay {url} cannot be reached ({why}); until it is, members behind other routers may not find this client"
    return None


async def _growing(measure: object) -> float:
    """Measure with more and more bytes until it takes long enough to mean something."""
    size = _FIRST_BYTES
    while True:
        began = time.perf_counter()
        await measure(size)  # type: ignore[operator]
        seconds = time.perf_counter() - began
        if seconds >= _ENOUGH_SECONDS or size >= _MOST_BYTES:
            return size / seconds

        size = min(_MOST_BYTES, 4 * size)


class _Client:
    """A logged-in client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, public: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self._public = public

    @classmethod
    async def log_in(cls, url: str, key: SecretKey, *, token: str | None) -> _Client:
        """Connect and prove the key."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        context = ssl.create_default_context() if secure else None
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host if secure else None)
        client = cls(reader, writer, key.public)
        try:
            await client._upgrade(parts.netloc, token)
            challenge = await client._receive()
            if len(challenge) != 17 or challenge[0] != 0:
                raise _unexpected(challenge)
            signed = blake3(challenge[1:], derive_key_context=_CONTEXT).digest()
            signature = SigningKey(key.seed).sign(signed).signature
            client._send(bytes([1]) + key.public + bytes([64]) + signature)
            answer = await client._receive()
            if answer[:1] == b"\x03":
                reason = answer[2:200].decode(errors="replace")
                message = f"the relay refuses this key: {reason}"
                raise (TokenRefused if reason == TokenAccess.refusal else TransportError)(message)
            if answer != b"\x02":
                raise _unexpected(answer)
        except BaseException:
            client.close()
            raise
        return client

    async def upload(self, size: int) -> None:
        """Send about so many bytes to nobody, and wait until the relay has read them."""
        nobody, question = secrets.token_bytes(32), secrets.token_bytes(8)
        for _ in range(max(1, size // _PAYLOAD_BYTES)):
            self._send(bytes([frames.DATAGRAM_OUT]) + nobody + b"\0" + bytes(_PAYLOAD_BYTES))
            await self._writer.drain()
        self._send(frames.ping(question))
        while await self._receive() != frames.pong(frames.ping(question)):
            pass

    async def echo(self, size: int) -> None:
        """Send about so many bytes to ourselves, a few at a time, and wait until they are back."""
        left = waiting = max(1, size // _PAYLOAD_BYTES)
        while waiting:
            while left and waiting - left < 64:  # a relay drops what it cannot queue
                self._send(bytes([frames.DATAGRAM_OUT]) + self._public + b"\0" + bytes(_PAYLOAD_BYTES))
                left -= 1
            await self._writer.drain()
            if (await self._receive())[0] == frames.DATAGRAM_IN:
                waiting -= 1

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def _upgrade(self, host: str, token: str | None) -> None:
        nonce = base64.b64encode(secrets.token_bytes(16)).decode()
        bearer = f"Authorization: Bearer {token}\r\n" if token else ""
        self._writer.write(
            f"GET /relay HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {nonce}\r\nSec-WebSocket-Protocol: {', '.join(frames.VERSIONS)}\r\n{bearer}\r\n".encode()
        )
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise _unexpected(b"") from error
        if b" 101 " not in head.partition(b"\r\n")[0]:
            message = f"the relay does not take the connection: {head.partition(bytes([13]))[0][:100].decode(errors='replace')}"
            raise TransportError(message)

    def _send(self, frame: bytes) -> None:
        """One binary WebSocket message. The mask is zero: it hides nothing from anybody here."""
        size = len(frame)
        length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + size.to_bytes(2, "big")
        self._writer.write(b"\x82" + length + bytes(4) + frame)

    async def _receive(self) -> bytes:
        """The next binary message; pings are answered."""
        try:
            while True:
                first, size = await self._reader.readexactly(2)
                if size == 126:
                    size = int.from_bytes(await self._reader.readexactly(2), "big")
                elif size == 127:
                    size = int.from_bytes(await self._reader.readexactly(8), "big")
                if size > frames.MAX_FRAME_BYTES:
                    raise _unexpected(b"")
                data = await self._reader.readexactly(size)
                if first == 0x88:
                    message = f"the relay closed the connection: {data[2:200].decode(errors='replace')}"
                    raise TransportError(message)
                if first != 0x82 or not data:
                    continue
                if data[0] == frames.PING:
                    self._send(frames.pong(data))
                    continue
                return data
        except asyncio.IncompleteReadError as error:
            message = "the relay closed the connection"
            raise TransportError(message) from error


def _unexpected(data: bytes) -> WireError:
    return WireError(f"this is no iroh relay: got {data[:20].hex() or 'something else'}")
