"""Fetches sequences by file and number: from the disk cache, from another read's request in progress, or by range requests.

Two overlapping reads fetch their common sequences once. Each read has its own timeout. If one read gives up or fails, the other
fetches the remaining common sequences. Fetched sequences are passed to the cache, which writes them later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

import anyio
import anyio.to_thread

from psyche_data_http.fetch.cache import Block, BlockCache, Buffer
from psyche_data_http.fetch.range_plan import Place, Run, joined
from psyche_data_http.file_source import FileSource, RemoteFile, read_range
from psyche_data_http.retries import LastFailure, gather


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A remote file and the position of its first token, in bytes."""

    remote: RemoteFile
    start: int


@dataclass(eq=False, slots=True)
class _Flight:
    """A run that is being fetched. done: set when it has ended; it succeeded if `contents` has its places."""

    run: Run
    done: anyio.Event = field(default_factory=anyio.Event)
    contents: dict[Place, Buffer] = field(default_factory=dict)


class SequenceFetcher:
    """Fetches sequences of `size` bytes from the files of a source. Concurrent calls are allowed.

    cache: None caches nothing.
    """

    def __init__(self, source: FileSource, files: Sequence[TokenFile], *, size: int, cache: BlockCache | None) -> None:
        self._source = source
        self._files = files
        self._size = size
        self._cache = cache
        self._flights: dict[Place, _Flight] = {}
        self._block_files = [self._block_file(file) if cache is not None else None for file in files]

    async def fetch(self, places: Iterable[Place], last_failure: LastFailure) -> dict[Place, Buffer]:
        """Return the content of every place. Raises DataError; may retry forever, so call it with a deadline."""
        missing = sorted(set(places))
        found = await self._cached(missing)
        while missing := [place for place in missing if place not in found] if found else missing:
            # No await until the flights are listed, so that no other call lists the same places.
            flying = self._flights
            theirs = list({id(flight): flight for place in missing if (flight := flying.get(place))}.values()) if flying else []
            ours = self._listed([place for place in missing if place not in flying] if theirs else missing)
            try:
                await gather([partial(self._fly, flight, last_failure) for flight in ours])
            finally:
                for flight in ours:
                    self._land(flight)

            for flight in theirs:
                await flight.done.wait()

            for flight in (*ours, *theirs):
                found |= flight.contents

        return found

    def _listed(self, places: Iterable[Place]) -> list[_Flight]:
        runs = joined(places, size=self._size, serves_ranges=lambda file: self._source.serves_ranges(self._files[file].remote))
        flights = [_Flight(run) for run in runs]
        for flight in flights:
            self._flights.update(dict.fromkeys(flight.run.places, flight))

        return flights

    async def _fly(self, flight: _Flight, last_failure: LastFailure) -> None:
        run, size = flight.run, self._size
        file = self._files[run.file]
        received = await read_range(self._source, file.remote, file.start + run.first * size, run.count * size, last_failure)
        content, begins = memoryview(received).toreadonly(), run.first
        flight.contents = {place: content[(place[1] - begins) * size : (place[1] - begins + 1) * size] for place in run.places}

        self._land(flight)
        block_file = self._block_files[run.file]
        if self._cache is not None and block_file is not None:
            self._cache.keep([(Block(block_file, number), piece) for (_, number), piece in flight.contents.items()])

    def _land(self, flight: _Flight) -> None:
        if not flight.done.is_set():
            for place in flight.run.places:
                del self._flights[place]
            flight.done.set()

    async def _cached(self, places: Sequence[Place]) -> dict[Place, Buffer]:
        if self._cache is None:
            return {}

        blocks = {Block(name, place[1]): place for place in places if (name := self._block_files[place[0]]) is not None}
        found = await anyio.to_thread.run_sync(partial(self._cache.find, blocks, size=self._size), abandon_on_cancel=True)
        return {blocks[block]: content for block, content in found.items()}

    def _block_file(self, file: TokenFile) -> str | None:
        identity = file.remote.identity
        return None if identity is None else sha256(f"{identity} {file.start} {self._size}".encode()).hexdigest()[:32]
