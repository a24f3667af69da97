"""TLS of one connection as bytes in and bytes out, without sockets.

asyncio's own TLS keeps 256 kB of buffers for each connection, and reports a connection only after its handshake, too late to
count it. This implementation keeps only what OpenSSL keeps.
"""

from __future__ import annotations

import ssl

_READ_BYTES = 65_536


class TlsFailed(Exception):
    """The client broke TLS, or used another protocol. What is left to be sent is its alert."""


class ServerTls:
    """The server's side. ready: whether the handshake is done. ended: whether the client has closed its direction."""

    __slots__ = ("_incoming", "_object", "_outgoing", "ended", "ready")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.ready: bool = False
        self.ended: bool = False

    def receive(self, data: memoryview) -> bytes:
        """Decrypt what the client sent. Something may be left to be sent afterwards. Raises TlsFailed."""
        self._incoming.write(data)
        parts = []
        try:
            if not self.ready:
                self._object.do_handshake()
                self.ready = True
            while part := self._object.read(_READ_BYTES):
                parts.append(part)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            message = f"TLS failed: {error.reason}"
            raise TlsFailed(message) from error

        return b"".join(parts)

    def send(self, data: bytes) -> None:
        """Encrypt bytes for the client; dropped before the handshake is done, when there is nothing to encrypt them with."""
        if self.ready and data:
            self._object.write(data)

    def close(self) -> None:
        """Inform the client that we send nothing more."""
        try:
            self._object.unwrap()
        except (ssl.SSLError, ValueError):
            return  # it does not answer at once, or there was no handshake; in any case the socket is closed

    def left_to_send(self) -> bytes:
        """Return bytes for the socket."""
        return self._outgoing.read()
