"""Shares connections and the disk cache among the sources of one data location."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread

from psyche_data_http.fetch.cache import DEFAULT_LIMIT, BlockCache
from psyche_data_http.fetch.client import RangeClient


class SharedResources:
    """Connections and cache, opened when first entered and closed when the last user leaves.

    client: not yet open. cache: folder for the disk cache, None caches nothing. cache_bytes: most bytes there.
    """

    def __init__(self, client: RangeClient, *, cache: Path | None = None, cache_bytes: int = DEFAULT_LIMIT) -> None:
        self.client = client
        self.cache: BlockCache | None = None
        self._cache_folder = cache if cache_bytes > 0 else None
        self._cache_bytes = cache_bytes
        self._lock = anyio.Lock()
        self._users = 0

    async def __aenter__(self) -> Self:
        async with self._lock:
            if self._users == 0:
                await self.client.open()
                if self._cache_folder is not None:
                    self.cache = BlockCache(self._cache_folder, limit=self._cache_bytes)
            self._users += 1

        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            async with self._lock:
                self._users -= 1
                if self._users:
                    return

                cache, self.cache = self.cache, None
                await self.client.aclose()
                if cache is not None:
                    await anyio.to_thread.run_sync(cache.close)
