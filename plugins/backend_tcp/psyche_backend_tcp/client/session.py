"""The client's side of the protocol, without sockets: takes the server's frames and returns their meaning.

A session outlives connections: at the next login the client sends the hash of its document, and the server continues from there.
A document is accepted only if its SHA-256 is the announced one. If a patch does not apply or gives another hash, the whole
document is requested, once until it comes. A whole document with a wrong hash raises WireError. If a document is older than the
one before it, the client tells the server how far the run was, so that the owner learns that an older state was restored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psyche_backend_tcp import protocol
from psyche_core.errors import WireError
from psyche_core.interfaces.backend import StateUpdate
from psyche_core.wire.diff import patched


@dataclass(frozen=True, slots=True)
class Received:
    """The meaning of a frame. reply: a frame to send; the other fields are None unless the frame was of that kind."""

    reply: bytes | None = None
    answer: protocol.Answer | None = None
    update: StateUpdate | None = None
    bye: protocol.Bye | None = None


class ClientSession:
    """Follows the server's document."""

    def __init__(self) -> None:
        self._document: Any = None
        self._digest = b""
        self._asked = False
        self._latest: tuple[bytes, protocol.LaterState] | None = None

    @property
    def digest(self) -> bytes:
        """Hash of our document, empty before the first."""
        return self._digest

    def begin(self) -> bytes:
        """Note that a new connection begins; return the hash to send at its login."""
        self._asked = False
        return self._digest

    def receive(self, payload: bytes) -> Received:
        """Handle a frame. Raises WireError when the server breaks the protocol; the connection cannot be used after that."""
        match protocol.decode_server(payload):
            case protocol.Heartbeat():
                return Received(reply=protocol.encode_client(protocol.Heartbeat()))
            case protocol.Answer() as answer:
                return Received(answer=answer)
            case protocol.Bye() as bye:
                return Received(bye=bye)
            case protocol.Whole(digest, document):
                if protocol.document_digest(document) != digest:
                    message = "the server's document does not have the announced hash"
                    raise WireError(message)

                return self._accept(digest, document)
            case protocol.Patch(base, digest, patch):
                return self._follow(base, digest, patch)
            case protocol.Welcome():
                message = "the server sent two welcomes"
                raise WireError(message)

    def _follow(self, base: bytes, digest: bytes, patch: Any) -> Received:
        if self._asked:
            return Received()

        if base == self._digest:
            try:
                document = patched(self._document, patch)
                if protocol.document_digest(document) == digest:
                    return self._accept(digest, document)
            except (WireError, ValueError):
                pass  # handled like a wrong hash

        self._asked = True
        return Received(reply=protocol.encode_client(protocol.WholeRequest()))

    def _accept(self, digest: bytes, document: Any) -> Received:
        update = protocol.read_document(document)
        self._document = document
        self._digest = digest
        self._asked = False
        known, self._latest = self._latest, (update.state.instance, protocol.LaterState.of(update.state))
        if known is not None and known[0] == self._latest[0] and known[1] > self._latest[1]:
            return Received(update=update, reply=protocol.encode_client(known[1]))

        return Received(update=update)
