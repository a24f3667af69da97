"""The client's side of one connection, without sockets: the server's frames in, what they mean out.

Decided here: a document is believed only when its SHA-256 is the announced one; a patch that does not fit or does not lead there
is answered by asking for the whole document, once until it comes. Refuses whole documents that lie about their own hash.
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
        self._revision: int | None = None
        self._asked = False

    @property
    def revision(self) -> int | None:
        """Revision of the document we have."""
        return self._revision

    def receive(self, payload: bytes) -> Received:
        """Take in a frame. Raises WireError when the server breaks the rules; the connection is then worth nothing."""
        match decode_server(payload):
            case Heartbeat():
                return Received(reply=encode_client(Heartbeat()))
            case Answer() as answer:
                return Received(answer=answer)
            case Bye() as bye:
                return Received(bye=bye)
            case Whole(revision, digest, document):
                if document_digest(document) != digest:
                    message = "the server's document does not have the announced hash"
                    raise WireError(message)

                return self._accept(revision, document)
            case Patch(base, revision, digest, patch):
                return self._follow(base, revision, digest, patch)
            case Welcome():
                message = "the server welcomed us twice"
                raise WireError(message)

    def _follow(self, base: int, revision: int, digest: bytes, patch: Any) -> Received:
        if self._asked:
            return Received()

        if base == self._revision:
            try:
                document = patched(self._document, patch)
                if document_digest(document) == digest:
                    return self._accept(revision, document)
            except (WireError, ValueError):
                pass  # as bad as another hash

        self._asked = True
        return Received(reply=encode_client(WholeRequest()))

    def _accept(self, revision: int, document: Any) -> Received:
        update = read_document(document)
        self._document = document
        self._revision = revision
        self._asked = False
        return Received(update=update)
