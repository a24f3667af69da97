"""The documents that all clients follow: built once per version, kept for a while, encoded once for clients with the same
version.

A new document shares unchanged parts with the previous one, so keeping and comparing many is cheap. A document is identified by
the SHA-256 of its encoding. The last 64 are kept, so that a client that was absent gets only the changes; a client with an older
one (or one from before a restart of the server) gets the whole document. A document is first drafted and later published by its
owner, because it is written to disk in between.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psyche_backend_tcp.protocol import Patch, Whole, encode_server, make_document
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.wire.codec import encode
from psyche_core.wire.diff import diff, patched

REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Document:
    """A version. digest: its hash; tree: the plain tree, which shares parts with other versions and is never modified."""

    digest: bytes
    tree: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Draft:
    """A version that is not published yet. encoded: its canonical bytes, which a store keeps."""

    document: Document
    encoded: bytes


class Documents:
    """The versions a server publishes. The first one is published on construction. relays: part of each of them."""

    def __init__(self, state: CoordinatorState, addresses: Mapping[bytes, bytes], *, relays: Sequence[str] = ()) -> None:
        self._relays = tuple(relays)
        first = _draft(make_document(state, addresses, self._relays))
        self._newest = self._drafted = first.document
        self._known: OrderedDict[bytes, Document] = OrderedDict({first.document.digest: first.document})
        self._frames: dict[bytes | None, bytes] = {}
        self.versions: int = 1

    @property
    def newest(self) -> Document:
        """The newest published version."""
        return self._newest

    def draft(self, state: CoordinatorState, addresses: Mapping[bytes, bytes]) -> Draft | None:
        """Return a new version, None when nothing changed since the last draft."""
        patch = diff(self._drafted.tree, make_document(state, addresses, self._relays))
        if patch is None:
            return None

        draft = _draft(patched(self._drafted.tree, patch))
        self._drafted = draft.document
        return draft

    def publish(self, draft: Draft) -> None:
        """Make a draft the newest version. Drafts must be published in their order; some may be skipped."""
        document = draft.document
        if document.digest == self._newest.digest:
            return

        self._newest = document
        self._frames.clear()
        self._known[document.digest] = document
        self._known.move_to_end(document.digest)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        self.versions += 1

    def named(self, digest: bytes) -> Document | None:
        """Return a published version that is still kept, else None."""
        return self._known.get(digest)

    def frame(self, known: Document | None) -> bytes:
        """Return the frame that turns a version (None: nothing) into the newest; built once for all clients with that version."""
        key = None if known is None else known.digest
        if key not in self._frames:
            self._frames[key] = self._make_frame(known)
        return self._frames[key]

    def _make_frame(self, known: Document | None) -> bytes:
        newest = self._newest
        if known is None:
            return encode_server(Whole(newest.digest, newest.tree))

        return encode_server(Patch(known.digest, newest.digest, diff(known.tree, newest.tree) or [0, newest.tree]))


def _draft(tree: dict[str, Any]) -> Draft:
    encoded = encode(tree)
    return Draft(Document(hashlib.sha256(encoded).digest(), tree), encoded)
