"""The members of an observed run: finds the member of an event file, and the member whose key begins with given digits."""

from __future__ import annotations

from collections.abc import Iterator

from psyche_core.observer.member_view import MemberView

MAX_MEMBERS = 1024
"""Most members in the roster; further ones are left out."""


SHORT = 8
"""Number of hex digits of an id that identify a member."""


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
        """Return the member with an event file of this name, adding it if unknown. None if there are too many members."""
        return self._known_or_new(self._aliases.get(source, source), name=source, id="", version=version)

    def of_id(self, id: str, *, version: int) -> MemberView | None:  # noqa: A002  # the events' word
        """Return the member whose id equals this one, begins with it or is its beginning; add the member if it is unknown.

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
        """Do the same as `of_id`, but return None for an unknown member."""
        return self._find(id)

    def introduce(self, source: str, id: str, *, version: int) -> MemberView | None:  # noqa: A002
        """Note the id of the member to whom an event file belongs. What was known by the id and from the file is merged."""
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
        """Return the member with an id. The result is cached, because each state of a coordinator names every member."""
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
