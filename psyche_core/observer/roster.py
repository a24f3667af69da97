"""The members of an observed run: whose an event file is, and who is meant by the first digits of a key."""

from __future__ import annotations

from collections.abc import Iterator

from psyche_core.observer.member_view import MemberView

MAX_MEMBERS = 1024
"""Members followed; further ones are left out."""


SHORT = 8
"""Hex digits of an id that are enough to know a member by."""


class Roster:
    """Members by key: the name of their first event file, or their id if they have none. changed: version of the newest."""

    def __init__(self) -> None:
        self.members: dict[str, MemberView] = {}
        self.changed: int = 0
        self._aliases: dict[str, str] = {}
        self._found: dict[str, MemberView] = {}

    def __iter__(self) -> Iterator[MemberView]:
        return iter(self.members.values())

    def __len__(self) -> int:
        return len(self.members)

    def of_source(self, source: str, *, version: int) -> MemberView | None:
        """The member with an event file of this name; made if it is not known. None if there are too many members."""
        return self._known_or_new(self._aliases.get(source, source), name=source, id="", version=version)

    def of_id(self, id: str, *, version: int) -> MemberView | None:  # noqa: A002  # the events' word
        """The member with this id, or with an id that begins so, or the other way round; made if it is not known.

        None for an empty id, or if there are too many members.
        """
        known = self._find(id)
        if known is None and not id:
            return None
        if known is None:
            return self._known_or_new(id, name="", id=id, version=version)

        if len(id) > len(known.id):
            known.id, known.changed = id, version
        return known

    def known(self, id: str) -> MemberView | None:  # noqa: A002
        """The same, but None for a member that is not known."""
        return self._find(id)

    def introduce(self, source: str, id: str, *, version: int) -> MemberView | None:  # noqa: A002
        """An event file says whose it is. What was known of that member by its id is joined with what the file said."""
        by_id = self._find(id)
        by_file = self.members.get(self._aliases.get(source, source))
        if by_id is not None and by_file is None:
            self._aliases[source] = by_id.key
            by_id.id, by_id.name = id, by_id.name or source
            return by_id

        member = by_file or self.of_source(source, version=version)
        if member is None:
            return None
        if by_id is not None and by_id is not member and not by_id.starts:
            member.absorb(by_id)
            del self.members[by_id.key]
            self._found.clear()
            self.changed = version
        if member.id != id:
            member.id = id
            self._found.clear()
        return member

    def _find(self, id: str) -> MemberView | None:  # noqa: A002
        """The member with an id, remembered: a coordinator's states name every member each time."""
        if not id:
            return None
        found = self._found.get(id)
        if found is None:
            for known in self.members.values():
                if known.id == id or (min(len(known.id), len(id)) >= SHORT and _begins(known.id, id)):
                    found = self._found[id] = known
                    break
        return found

    def _known_or_new(self, key: str, *, name: str, id: str, version: int) -> MemberView | None:  # noqa: A002
        known = self.members.get(key)
        if known is None and len(self.members) < MAX_MEMBERS:
            known = self.members[key] = MemberView(key, name=name, id=id)
            self.changed = version
        return known


def _begins(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
