"""The client's side of the conversation, without sockets: the server's frames in, what they mean out.

It outlives connections: what is known is told at the next login, and the server goes on from there. Decided here: a document is
believed only when its SHA-256 is the announced one; a patch that does not fit or does not lead there is answered by asking for
the whole document, once until it comes. Refuses whole documents that lie about their own hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psyche_backend_tcp.protocol import (
    Answer,
    Bye,
    Heartbeat,
    Patch,
    Welcome,
    Whole,
    WholeRequest,
    decode_server,
    document_digest,
    encode_client,
    read_document,
)
from psyche_core.errors import WireError
from psyche_core.interfaces.backend import StateUpdate
from psyche_core.wire.diff import patched


@dataclass(frozen=True, slots=True)
class Received:
    """What a frame meant. reply: a frame to send; the others are None where the frame was something else."""

    reply: bytes | None = None
    answer: Answer | None = None
    update: StateUpdate | None = None
    bye: Bye | None = None


class Session:
    """Follows the server's document."""

    def __init__(self) -> None:
        self._document: Any = None
        self._digest = b""
        self._asked = False

    @property
    def digest(self) -> bytes:
        """Hash of the document we have, empty before the first."""
        return self._digest

    def begin(self) -> bytes:
        """A new connection begins; what to say at its login about what we know."""
        self._asked = False
        return self._digest

    def receive(self, payload: bytes) -> Received:
        """Take in a frame. Raises WireError when the server breaks the rules; the connection is then worth nothing."""
        match decode_server(payload):
            case Heartbeat():
                return Received(reply=encode_client(Heartbeat()))
            case Answer() as answer:
                return Received(answer=answer)
            case Bye() as bye:
                return Received(bye=bye)
            case Whole(digest, document):
                if document_digest(document) != digest:
                    message = "the server's document does not have the announced hash"
                    raise WireError(message)

                return self._accept(digest, document)
            case Patch(base, digest, patch):
                return self._follow(base, digest, patch)
            case Welcome():
                message = "the server welcomed us twice"
                raise WireError(message)

    def _follow(self, base: bytes, digest: bytes, patch: Any) -> Received:
        if self._asked:
            return Received()

        if base == self._digest:
            try:
                document = patched(self._document, patch)
                if document_digest(document) == digest:
                    return self._accept(digest, document)
            except (WireError, ValueError):
                pass  # as bad as another hash

        self._asked = True
        return Received(reply=encode_client(WholeRequest()))

    def _accept(self, digest: bytes, document: Any) -> Received:
        update = read_document(document)
        self._document = document
        self._digest = digest
        self._asked = False
        return Received(update=update)
