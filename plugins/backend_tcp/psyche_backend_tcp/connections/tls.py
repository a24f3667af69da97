"""TLS 1.3 with a certificate that the server makes from its Ed25519 identity key.

The certificate is only a container for the key; its authority, name and dates are not checked. TLS proves that the server holds
the private key, and the client compares the public key with the one it was given. Python's ssl cannot verify a bare key, so its
own checks are off, and `open_tls` makes that comparison before any of our bytes is sent. TLS below 1.3, session tickets, and
certificates without an Ed25519 key are not allowed.
"""

from __future__ import annotations

import datetime
import secrets
import ssl
import tempfile
from pathlib import Path

from anyio import EndOfStream
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute, TLSStream
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from psyche_core.wire.signing import SecretKey

_ALWAYS = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC), datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)


class WrongServer(Exception):
    """The server did not prove the expected key; the message is one sentence."""


def server_context(key: SecretKey) -> ssl.SSLContext:
    """Return the server's context, with a new self-signed certificate of `key`. Blocking: writes a small temporary file.

    ssl reads keys only from files, so the key is stored in a private folder until it is read, encrypted with a random password.
    """
    private = Ed25519PrivateKey.from_private_bytes(key.seed)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"psyche {key.public.hex()[:16]}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_ALWAYS[0])
        .not_valid_after(_ALWAYS[1])
        .sign(private, algorithm=None)
    )
    password = secrets.token_hex(32).encode()
    pem = certificate.public_bytes(serialization.Encoding.PEM) + private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(password)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # sessions are never resumed, so a ticket would only cost memory and a record
    with tempfile.TemporaryDirectory(prefix="psyche-tls-") as folder:
        path = Path(folder) / "server.pem"
        path.touch(mode=0o600)
        path.write_bytes(pem)
        context.load_cert_chain(path, password=password)
    return context


def client_context() -> ssl.SSLContext:
    """Return the client's context. Its checks of names and authorities are off, see the module's docstring."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def accept_tls(stream: ByteStream, context: ssl.SSLContext) -> TLSStream:
    """Do the server's handshake. Raises ssl.SSLError and the errors of a lost connection."""
    return await TLSStream.wrap(stream, server_side=True, ssl_context=context, standard_compatible=False)


async def open_tls(stream: ByteStream, *, expected: bytes | None) -> tuple[TLSStream, bytes]:
    """Do the client's handshake; return the encrypted stream and the key (32 bytes) that the server has proved.

    expected: the key it must be, None for any. Raises WrongServer before anything is sent through TLS, and the errors of a lost
    connection.
    """
    try:
        secure = await TLSStream.wrap(stream, server_side=False, ssl_context=client_context(), standard_compatible=False)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        raise EndOfStream from error  # Python 3.11.2 (Debian 12) raises these if a connection ends in the handshake

    key = _certified_key(secure.extra(TLSAttribute.peer_certificate_binary))  # noqa: S610  # a stream, not a query
    if expected is not None and not secrets.compare_digest(key, expected):
        message = (
            f"the server proved the key {key.hex()}, expected {expected.hex()}: this is another server, somebody in between, or "
            "the server was given a new key; ask its owner before you change the key in the address"
        )
        raise WrongServer(message)

    return secure, key


def _certified_key(certificate: bytes | None) -> bytes:
    try:
        key = x509.load_der_x509_certificate(certificate or b"").public_key()
    except Exception as error:  # parsing an unknown certificate may raise any exception
        message = "the server's certificate cannot be read; it is not a Psyche server"
        raise WrongServer(message) from error

    if not isinstance(key, Ed25519PublicKey):
        message = f"the server's certificate holds a {type(key).__name__}, expected an Ed25519 key; it is not a Psyche server"
        raise WrongServer(message)

    return key.public_bytes_raw()
