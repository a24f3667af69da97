"""Sources of files that are read by their addresses on web servers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from psyche_data_http.fetch.client import RangeClient
from psyche_data_http.file_source import FileSource, RemoteFile
from psyche_data_http.retries import LastFailure, gather, retry_until_success


class WebSource(FileSource):
    """Base of the sources that read through a client, which the caller opens and closes."""

    def __init__(self, client: RangeClient) -> None:
        self._client = client

    async def receive(self, file: RemoteFile, start: int, wanted: int, received: bytearray) -> None:
        """See FileSource."""
        await self._client.receive(file, start, wanted, received)

    def serves_ranges(self, file: RemoteFile) -> bool:
        """See FileSource."""
        return self._client.serves_ranges(file)


class WebFiles(WebSource):
    """The files at `urls`, in their order."""

    def __init__(self, urls: Sequence[str], client: RangeClient) -> None:
        super().__init__(client)
        self._urls = tuple(urls)

    async def files(self, last_failure: LastFailure) -> list[RemoteFile]:
        """Request sizes and validators concurrently, and return the files."""
        return await gather([partial(retry_until_success, partial(self._client.find, url), last_failure) for url in self._urls])
