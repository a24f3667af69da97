"""Logs in to a relay as one of its clients, to find out whether the relay admits us, and why not.

iroh does not report why a relay refuses an endpoint, so the transport and `psyche doctor network` find out themselves. The
protocol is in `protocol`; this module does not forward or receive a member's datagrams.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import secrets
import socket
import ssl
from typing import Self
from urllib.parse import urlsplit

from psyche_core.errors import TransportError, WireError
from psyche_core.text_safety import printable
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.relay.access import MemberAccess, TokenAccess
from psyche_p2p_quic.relay.protocol import frames
from psyche_p2p_quic.relay.protocol.handshake import Challenge, reason_of_denial
from psyche_p2p_quic.relay.protocol.http import upgrade_request
from psyche_p2p_quic.relay.protocol.websocket import client_message

_LOGIN_SECONDS = 15.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


class TokenRefused(TransportError):
    """The relay needs a token, and got none or a wrong one. Joining the run does not help; with a relay for members it would."""


class MembersOnly(TransportError):
    """The relay serves only the members of a run, and our key is not one of them now."""


class RelayLogin:
    """A connection to a relay that has admitted us. public: our key's public half."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, public: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self.public: bytes = public

    @classmethod
    async def open(cls, url: str, key: SecretKey, *, token: str | None = None) -> Self:
        """Connect and prove the key. May take long; use a timeout.

        Raises TokenRefused, TransportError (the relay refuses, or ends), WireError (it is not a relay), OSError.
        """
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
        context = ssl.create_default_context() if secure else None
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host if secure else None)
        login = cls(reader, writer, key.public)
        try:
            await login._upgrade(parts.netloc, token)
            login.send(Challenge.decode(await login.receive()).answer(key.seed))
            reason = reason_of_denial(await login.receive())
            if reason is not None:
                message = f"the relay refuses this key: {reason}"
                raise _REFUSALS.get(reason, TransportError)(message)
        except BaseException:
            login.close()
            raise
        return login

    def send(self, frame: bytes) -> None:
        """Queue a frame of the relay protocol; see `drain`."""
        self._writer.write(client_message(frame))

    async def drain(self) -> None:
        """Wait until the connection accepts more."""
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Return the next frame; pings are answered. Raises TransportError when the relay ends the connection."""
        try:
            while True:
                first, size = await self._reader.readexactly(2)
                if size == 126:
                    size = int.from_bytes(await self._reader.readexactly(2), "big")
                elif size == 127:
                    size = int.from_bytes(await self._reader.readexactly(8), "big")
                if size > frames.MAX_FRAME_BYTES:
                    message = f"this is no iroh relay: got a frame of {size} bytes"
                    raise WireError(message)
                data = await self._reader.readexactly(size)
                if first == 0x88:
                    message = f"the relay closed the connection: {data[2:200].decode(errors='replace')}"
                    raise TransportError(message)
                if first != 0x82 or not data:
                    continue
                if data[0] == frames.PING:
                    self.send(frames.pong(data))
                    continue
                return data
        except asyncio.IncompleteReadError as error:
            message = "the relay closed the connection"
            raise TransportError(message) from error

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def _upgrade(self, host: str, token: str | None) -> None:
        self._writer.write(upgrade_request(host, nonce=secrets.token_bytes(16), token=token))
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            message = "this is no iroh relay: it does not answer as HTTP does"
            raise WireError(message) from error
        status = head.partition(b"\r\n")[0]
        if b" 101 " not in status:
            message = f"the relay does not take the connection: {status[:100].decode(errors='replace')}"
            raise TransportError(message)


_REFUSALS = {TokenAccess.refusal: TokenRefused, MemberAccess.refusal: MembersOnly}


def why_unreachable(error: OSError | TimeoutError | http.client.HTTPException) -> str:
    """Return why a connection to a relay or a server failed, in a few words for people."""
    cause = error.__cause__
    if isinstance(error, OSError) and error.errno is None and isinstance(cause, ExceptionGroup):
        cause = cause.exceptions[0]  # one for each address of a name
    if isinstance(error, OSError) and error.errno is None and isinstance(cause, OSError):
        error = cause
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"it has no certificate that can be trusted: {printable(error.verify_message)}"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS; if it is a plain one, its URL begins with http://"
    if isinstance(error, http.client.HTTPException):
        return "it does not answer as a relay does"
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        again = error.errno == socket.EAI_AGAIN
        return "its name could not be looked up: no name server answers" if again else "its name is not known"
    return os.strerror(error.errno) if error.errno else printable(str(error)) or "no answer"


async def log_in_once(url: str, key: SecretKey, *, token: str | None = None) -> None:
    """Log in and leave. Raises TransportError (the relay refuses), WireError (it is not a relay), OSError, TimeoutError."""
    async with asyncio.timeout(_LOGIN_SECONDS):
        (await RelayLogin.open(url, key, token=token)).close()


async def why_refused(url: str, key: SecretKey, *, token: str | None = None, member: bool = True) -> str | None:
    """Return why a relay cannot be used with this key, in one sentence with what to do; None if it can.

    The owner of the key must not be connected there. member: whether it is a member of its run; a relay that refuses a key
    because it is not a member yet can be used later.
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
        if isinstance(error, MembersOnly) and not member:
            return None
        return f"{url}: {printable(str(error))}; ask its owner whether it serves this run, or choose another with --iroh-relay"
    except WireError:
        return f"the relay {url} is none: it answers something else; check the URL, or choose another with --iroh-relay"
    except (OSError, TimeoutError) as error:
        why = why_unreachable(error)
        return f"the relay {url} cannot be reached ({why}); until it is, members behind other routers may not find this client"
    return None
