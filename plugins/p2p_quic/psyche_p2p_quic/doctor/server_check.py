"""Whether the address of a server leads to a Psyche server that holds the KEY, without a login.

The server's TLS certificate holds its Ed25519 key, and TLS proves that it owns it. Nothing else is sent, so the server notices
no more than a connection that ends.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from dataclasses import dataclass

import anyio
from anyio.abc import ByteStream

from psyche_core.errors import UserError
from psyche_p2p_quic.relay.login import why_unreachable

CONNECT_SECONDS = 5.0
_KEY = re.compile("[0-9a-fA-F]{64}")
_ED25519_KEY = bytes.fromhex("302a300506032b6570032100")
"""The DER bytes before an Ed25519 key in a certificate."""

_BUSY = b"psyche?"
"""With this a server begins that has few free places: the client is to prove work before TLS."""

_LOST = (anyio.EndOfStream, anyio.BrokenResourceError, OSError)
_CHECK = "check host and port; a relay and a data server have ports of their own"


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """reached: over TCP. ms: of connecting. problem: why it was not reached, or what could not be tested.

    wrong: why what answers there is not the server that is meant, "" if nothing speaks against it. unnamed: whether it was not
    reached because the name of its host leads nowhere.
    """

    reached: bool
    ms: float | None = None
    problem: str = ""
    wrong: str = ""
    unnamed: bool = False


async def check_server(server: str) -> ServerFigures:
    """Connect to `host:port#KEY` and compare the key. Raises UserError for another text."""
    host, port, key = _parts(server)
    try:
        with anyio.fail_after(CONNECT_SECONDS):
            await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        return ServerFigures(False, problem=f"the name {host} could not be looked up: no name server answers", unnamed=True)
    except OSError as error:
        return ServerFigures(False, problem=why_unreachable(error), unnamed=True)
    except ValueError:  # no name at all, such as a..b
        return ServerFigures(False, problem="its name is not known", unnamed=True)

    began = time.perf_counter()
    try:
        with anyio.fail_after(CONNECT_SECONDS):
            stream = await anyio.connect_tcp(host, port)
    except (OSError, TimeoutError) as error:
        return ServerFigures(False, problem=why_unreachable(error))

    ms = round(1000 * (time.perf_counter() - began), 1)
    async with stream:
        problem, wrong = await _check_key(stream, key)
    return ServerFigures(True, ms, problem, wrong)


def _parts(server: str) -> tuple[str, int, bytes | None]:
    """Return host, port and key; None for a server that need not prove one."""
    place, mark, key = server.partition("#")
    host, _, port = place.rpartition(":")
    usable = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 2**16
    if not host or not usable or (mark and key != "insecure" and not _KEY.fullmatch(key)):
        message = f"--server-addr {server}: expected host:port#KEY with a key of 64 hexadecimal digits, as the server prints it"
        raise UserError(message)

    return host.strip("[]"), int(port), bytes.fromhex(key) if _KEY.fullmatch(key) else None


async def _check_key(stream: ByteStream, expected: bytes | None) -> tuple[str, str]:
    """Return what could not be tested, and what is wrong."""
    try:
        with anyio.fail_after(CONNECT_SECONDS):
            certificate = await _certificate(stream)
    except ssl.SSLError:
        return "", f"what answers there does not speak TLS as a Psyche server does: {_CHECK}"
    except TimeoutError:
        return "", f"what listens there does not answer as a Psyche server does: {_CHECK}"
    except _LOST:
        return "", f"it closed the connection before it proved a key: {_CHECK}, or try again later if the server is full"

    if certificate is None:
        return "it is busy, so its key was not tested", ""
    _, found, rest = certificate.partition(_ED25519_KEY)
    if not found:
        return "", f"what answers there has a certificate of another kind than a Psyche server: {_CHECK}"
    if expected is not None and rest[:32] != expected:
        return "", (
            f"it proved the key {rest[:32].hex()}, and the address names {expected.hex()}: this is another server, or it was "
            "given a new key; ask its owner for the address"
        )
    return "", ""


async def _certificate(stream: ByteStream) -> bytes | None:
    """Do the TLS handshake; return the certificate whose key was proved, None from a server that is busy.

    Raises ssl.SSLError, and the errors of a lost connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the key is what counts
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    answered = False
    while True:
        try:
            tls.do_handshake()
            return tls.getpeercert(binary_form=True) or b""
        except ssl.SSLWantReadError:
            if outgoing.pending:
                await stream.send(outgoing.read())
        data = await stream.receive()
        if not answered and data.startswith(_BUSY):
            return None
        answered = True
        incoming.write(data)
