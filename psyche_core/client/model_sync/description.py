"""Sends the description of how a model is built from member to member, for members that have nothing to build it from.

To send it, the model's small files become one blob. To receive it, the blob that the offers name is read as files of harmless
kinds and written to its own folder. A description is kept under its hash, so it is fetched once; a folder is complete or absent.
Whether it is the run's description is checked later: the model built from it must have the parameters of the manifest on which
most members agree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from psyche_core.client.model_sync.multi_source import fetch_timeout
from psyche_core.errors import ModelError, TransportError
from psyche_core.interfaces import Transport
from psyche_core.p2p.description import MAX_DESCRIPTION_BYTES, decode, encode
from psyche_core.storage.folders import whole_folder


class DescriptionExchange:
    """Sends and fetches descriptions for one client. folder: where they are kept; None for a private folder of this process."""

    def __init__(self, transport: Transport, *, folder: Path | None = None) -> None:
        self._transport = transport
        self._folder = folder
        self._own: tempfile.TemporaryDirectory[str] | None = None

    async def offer(self, files: Mapping[str, bytes], *, tag: int) -> tuple[bytes, int]:
        """Publish a model's description; return its hash and length, zeros for a model without one. Raises ModelError."""
        if not files:
            return bytes(32), 0

        try:
            blob = await anyio.to_thread.run_sync(encode, files)
            return await self._transport.publish(blob, tag=tag), len(blob)
        except (ValueError, TransportError) as error:
            message = f"how the model is built cannot be told to others: {error}"
            raise ModelError(message) from error

    async def fetch(self, blob_hash: bytes, size: int, *, sources: Sequence[bytes], tag: int) -> Path:
        """Return a folder with the files of a description. Raises TransportError, WireError, TimeoutError, ModelError."""
        folder = await anyio.to_thread.run_sync(self._place, blob_hash)
        if folder.is_dir():
            return folder

        limit = min(size, MAX_DESCRIPTION_BYTES)
        blob = await self._transport.fetch(
            blob_hash, sources=sources, max_bytes=limit, timeout=fetch_timeout(limit), tag=tag, keep=False
        )
        await anyio.to_thread.run_sync(_write, folder, blob)
        return folder

    def close(self) -> None:
        """Remove our private folder. Idempotent."""
        if self._own is not None:
            self._own.cleanup()

    def _place(self, blob_hash: bytes) -> Path:
        if self._folder is None:
            self._own = self._own or tempfile.TemporaryDirectory(prefix="psyche-description-")
        parent = self._folder if self._folder is not None else Path(self._own.name if self._own is not None else "")
        return parent / blob_hash.hex()


def _write(folder: Path, blob: bytes) -> None:
    files = decode(blob)
    try:
        with whole_folder(folder) as partial:
            for name, content in files.items():
                (partial / name).write_bytes(content)
    except OSError as error:
        message = f"how the model is built cannot be written to {folder}: {error.strerror or error}"
        raise ModelError(message) from error
