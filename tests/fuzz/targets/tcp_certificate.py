"""A stranger's certificate: an Ed25519 key comes out, or WrongServer."""

from __future__ import annotations

import ssl

from psyche_backend_tcp.connections import tls
from psyche_backend_tcp.connections.tls import WrongServer
from psyche_core.wire.signing import SecretKey

DOCUMENTED = (WrongServer,)
MAX_BYTES = 1024
MEMORY = (100, 262_144)


def seeds() -> list[bytes]:
    return [_certificate(SecretKey(b"k" * 32)), b""]


def _certificate(key: SecretKey) -> bytes:
    """The certificate of a server as it goes over the wire: DER, taken from a handshake in memory."""
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls.server_context(key).wrap_bio(ours, theirs, server_side=True)
    client = tls.client_context().wrap_bio(theirs, ours)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue

    certificate = client.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def TARGET(data: bytes) -> None:
    assert len(tls._certified_key(data)) == 32
