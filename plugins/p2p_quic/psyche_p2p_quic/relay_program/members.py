"""Keeps the members of runs up to date, from their coordinators, for a relay that serves members only.

While a coordinator cannot be reached, the last known members stay members.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from psyche_core.coordinator.membership.members import transport_keys
from psyche_core.errors import PsycheError, UserError
from psyche_core.sdk.observe import observed_run
from psyche_core.wire.signing import SecretKey

_log = logging.getLogger("psyche.relay.members")
_PATIENCE_SECONDS = 5.0
"""Seconds for which a backend tries to reconnect by itself before anything is logged."""

_RETRY_SECONDS = 5.0


class MemberSource(Protocol):
    """A source of the members of a run. Read-only: it does not affect the run."""

    @property
    def name(self) -> str:
        """A name for log lines."""
        ...

    def follow(self) -> AsyncGenerator[frozenset[bytes], None]:
        """Yield the transport keys (32 bytes each) of the present members, then again after each change, forever.

        Raises PsycheError when the connection is lost; another call connects again. UserError means that trying again is useless.
        """
        ...


class CoordinatorSource:
    """The members of one run, from its coordinator, by any backend plugin.

    address: as clients give it. key: for a coordinator that admits listed keys only.
    """

    def __init__(self, run_id: str, address: str, *, backend: str = "tcp", key: SecretKey | None = None) -> None:
        self._run_id, self._address, self._backend = run_id, address, backend
        self._key = key or SecretKey.generate()

    @property
    def name(self) -> str:
        """The run's name."""
        return f"run {self._run_id}"

    async def follow(self) -> AsyncGenerator[frozenset[bytes], None]:
        """Yield the present members, and the members after each change."""
        before = None
        opening = observed_run(self._run_id, self._address, backend=self._backend, key=self._key, retry_seconds=_PATIENCE_SECONDS)
        async with opening as coordinator:
            while True:
                update = await coordinator.next_state()
                members = transport_keys(update.state)
                if members != before:
                    before = members
                    yield members


class Membership:
    """The members of several runs together. on_change: called with all keys whenever they change."""

    def __init__(self, sources: Sequence[MemberSource], on_change: Callable[[frozenset[bytes]], None]) -> None:
        self._sources = sources
        self._on_change = on_change
        self._members: dict[int, frozenset[bytes]] = {}
        self._tried: set[int] = set()
        self._answered = asyncio.Event()

    async def answered(self) -> None:
        """Wait until every source has answered, or is known not to be reachable."""
        await self._answered.wait()

    @property
    def silent(self) -> tuple[str, ...]:
        """The names of the sources that have not answered yet."""
        return tuple(source.name for place, source in enumerate(self._sources) if place not in self._members)

    async def follow(self) -> None:
        """Follow all sources until cancelled.

        Raises UserError if the first answer of a source shows that it can never work as it was given.
        """
        async with asyncio.TaskGroup() as tasks:
            for place, source in enumerate(self._sources):
                tasks.create_task(self._follow_one(place, source))

    def _note_answer(self, place: int) -> None:
        self._tried.add(place)
        if len(self._tried) == len(self._sources):
            self._answered.set()

    async def _follow_one(self, place: int, source: MemberSource) -> None:
        trouble = ""
        while True:
            try:
                async with contextlib.aclosing(source.follow()) as changes:
                    async for members in changes:
                        if trouble:
                            _log.warning("%s answers again", source.name)
                            trouble = ""
                        self._members[place] = members
                        _log.info("%s has %d members", source.name, len(members))
                        self._on_change(frozenset().union(*self._members.values()))
                        self._note_answer(place)
            except PsycheError as error:
                if isinstance(error, UserError) and place not in self._members:
                    raise
                sentence = error.sentence
                if sentence != trouble:
                    trouble = sentence
                    kept = "its members known last stay members" if place in self._members else "it has no members until then"
                    _log.warning("cannot follow %s: %s; %s", source.name, sentence, kept)
                self._note_answer(place)
            await asyncio.sleep(_RETRY_SECONDS)
