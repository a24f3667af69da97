"""How a round's results spread in an overlay: who uploads how much, and when all have all, in virtual time.

Each member has the real choice of what to fetch from whom (`Downloads`); only the lines are simulated. A member's line sends
one result after another at its rate, in the order of the requests, and receives in the same way, beside it; a result is
received while it is sent. Frames of requests and announcements take HOP_SECONDS and no part of the line. A result is passed on
when it is complete.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from statistics import mean
from types import MappingProxyType
from typing import Any

from benchmarks.growth.overlay_messages import HOP_SECONDS, keys
from psyche_core.p2p.downloads import Downloads
from psyche_core.p2p.fetch_plan import Answer
from psyche_core.p2p.holders import HolderBook
from psyche_core.p2p.overlay import Overlay
from psyche_core.p2p.uploads import UploadQueue

CASES = ("honest", "free riders", "false", "slow")

RESULT_BYTES = 22_000_000
RESULT_SECONDS = 22 / 12.5
"""Time of a result on a line: 22 MB, of a model of 8 billion parameters with k = 8, at 100 Mbit/s."""

AT_ONCE = 8
"""Downloads at once where everything comes from its author, as a client's `--max-concurrent-downloads` has it."""

SLOW = 4
"""How many times longer a result takes on a slow line, upwards."""


class _Member:
    """One member: its lines, what it has, and what it asks for.

    serves: whether it gives what it has. tells: whether it announces what it has.
    """

    def __init__(self, key: bytes, network: _Network, limits: Mapping[str, int]) -> None:
        self.key = key
        self.up_seconds = RESULT_SECONDS
        self.serves = True
        self.tells = True
        self.has: set[bytes] = set()
        self.uploads = 0
        self.wasted_seconds = 0.0
        self.requests = 0
        self.done_at = 0.0
        self.holders = HolderBook()
        self.downloads = Downloads(self.holders, draw=random.Random(key), **limits)
        self.queue = UploadQueue(at_once=1)
        self._network = network
        self._neighbours = network.overlay.neighbours(key)
        self._sending: dict[tuple[bytes, bytes], float] = {}
        self._up_free = 0.0
        self._down_free = 0.0

    def got(self, name: bytes) -> None:
        """Have a result, and say so."""
        self.has.add(name)
        self.done_at = self._network.now
        if self.tells:
            self.tell(name)

    def tell(self, name: bytes) -> None:
        """Announce a result to all neighbours."""
        for peer in self._neighbours:
            self._network.to(peer, lambda other: other.heard(self.key, name))

    def heard(self, peer: bytes, name: bytes) -> None:
        """Take an announcement."""
        if name in self.downloads:
            self.holders.note(peer, (name,))
            self.ask((name,))

    def ask(self, among: Sequence[bytes] | None = None) -> None:
        """Ask for what may be asked for, or for those of these results."""
        while (found := self.downloads.begin(self._neighbours, among=among)) is not None:
            name, peer = found
            self.requests += 1
            self._network.to(peer, partial(_Member.asked, name=name, peer=self.key))

    # ------------------------------------------------------------------------------------------------------ as a holder

    def asked(self, name: bytes, peer: bytes) -> None:
        """Take a request."""
        if name not in self.has or not self.serves or not self.queue.add(name, peer, size=RESULT_BYTES):
            self._network.to(peer, lambda other: other.refused(name, self.key))
        self._serve()

    def withdrawn(self, name: bytes, peer: bytes) -> None:
        """Drop a request, also one that is being answered; what is sent by then was sent in vain."""
        began = self._sending.pop((name, peer), None)
        if began is not None:
            self.wasted_seconds += self._network.now - began
        self.queue.end(name, peer, complete=False, now=self._network.now)
        self._serve()

    def _serve(self) -> None:
        while (found := self.queue.begin(self._network.now)) is not None:
            name, peer = found
            self._sending[found] = self._network.now
            self._network.to(peer, partial(_Member.sent_first, name=name, peer=self.key))
            self._network.call(self.up_seconds, partial(self._sent, found, self._network.now))

    def _sent(self, request: tuple[bytes, bytes], began: float) -> None:
        if self._sending.get(request) != began:
            return  # withdrawn meanwhile

        name, peer = request
        del self._sending[request]
        self.uploads += 1
        self.queue.end(name, peer, complete=True, now=self._network.now)
        self._network.to(peer, lambda other: other.sent_last(name))
        self._serve()

    # --------------------------------------------------------------------------------------------------- as who lacks it

    def refused(self, name: bytes, peer: bytes) -> None:
        """Take a no."""
        self.downloads.failed(name, peer, Answer.ABSENT)
        self.ask()

    def sent_first(self, name: bytes, peer: bytes) -> None:
        """Take the first bytes of a result."""
        others = self.downloads.started(name, peer)
        for other in (peer,) if others is None else others:
            self._network.to(other, lambda holder: holder.withdrawn(name, self.key))
        self.ask()

    def sent_last(self, name: bytes) -> None:
        """Take the last bytes of a result; it is complete when the line has brought all that came before."""
        self._down_free = max(self._network.now, self._down_free + RESULT_SECONDS)
        self._network.call(self._down_free - self._network.now, lambda: self._complete(name))

    def _complete(self, name: bytes) -> None:
        for other in self.downloads.finished(name):
            self._network.to(other, lambda holder: holder.withdrawn(name, self.key))
        if name not in self.has:
            self.got(name)
        self.ask()


class _Network:
    """Members, and the clock."""

    def __init__(self, overlay: Overlay, limits: Mapping[str, int]) -> None:
        self.now = 0.0
        self.overlay = overlay
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self.members = {key: _Member(key, self, limits) for key in overlay.members}

    def call(self, seconds: float, work: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), work))

    def to(self, peer: bytes, work: Callable[[_Member], None]) -> None:
        """Let a small frame reach a member."""
        self.call(HOP_SECONDS, lambda: work(self.members[peer]))

    def run(self) -> None:
        """Until nothing is on its way."""
        while self._due:
            self.now, _, work = heapq.heappop(self._due)
            work()


def swarm(
    members: int, *, results: int, case: str = "honest", seed: int = 0, limits: Mapping[str, int] = MappingProxyType({})
) -> dict[str, Any]:
    """Figures of one round in which so many members have a result, and all members fetch all, each from its neighbours.

    case: one of CASES. "free riders": a tenth announce nothing, so nobody asks them. "false": a tenth announce all results and
    give none. "slow": a tenth send SLOW times slower. With the first two, results are of other members, if there are enough
    others. limits: of `Downloads`.
    """
    names = keys(members)
    network = _Network(Overlay(names, seed), limits)
    chosen = random.Random(seed)
    tenth = [] if case == "honest" else chosen.sample(names, members // 10)
    able = names if case == "slow" else sorted(set(names) - set(tenth))
    authors = chosen.sample(able, min(results, len(able)))
    for key in tenth:
        member = network.members[key]
        member.tells = case == "slow"
        member.serves = case == "slow"
        member.up_seconds = RESULT_SECONDS * (SLOW if case == "slow" else 1)
    for member in network.members.values():
        for name in authors:
            if name != member.key:
                member.downloads.want(name)
    for name in authors:
        network.members[name].got(name)
    if case == "false":
        for key in tenth:
            for name in authors:
                network.call(HOP_SECONDS, partial(network.members[key].tell, name))
    network.run()
    return _figures(network.members.values(), len(authors))


def direct(members: int, *, results: int, seed: int = 0) -> dict[str, Any]:
    """The same as `swarm` with connections between all and every result fetched from its author, AT_ONCE at once."""
    names = keys(members)
    authors = sorted(random.Random(seed).sample(names, results))
    up_free, down_free, uploads = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0), Counter[bytes]()
    orders = {}
    for key in names:
        first = next((place for place, author in enumerate(authors) if author > key), 0)  # not all begin with the same
        orders[key] = iter([author for author in (*authors[first:], *authors[:first]) if author != key])
    due = [(0.0, key) for key in names for _ in range(AT_ONCE)]
    heapq.heapify(due)
    last = 0.0
    while due:
        now, key = heapq.heappop(due)
        author = next(orders[key], None)
        if author is not None:
            uploads[author] += 1
            up_free[author] = max(up_free[author], now + HOP_SECONDS) + RESULT_SECONDS
            down_free[key] = max(up_free[author] + HOP_SECONDS, down_free[key] + RESULT_SECONDS)
            heapq.heappush(due, (down_free[key], key))
            last = max(last, down_free[key])
    return {
        "uploads_most": max(uploads.values()),
        "upload_over_mean": round(max(uploads.values()) / (uploads.total() / members), 3),
        "time_over_ideal": round(last / (RESULT_SECONDS * (results - 1)), 3),
    }


def _figures(members: Iterable[_Member], results: int) -> dict[str, Any]:
    """What a round cost.

    uploads_most: results that the busiest member sent. upload_over_mean: that over the mean of those that serve. sent_over_mean:
    the same with what was sent until a request was withdrawn. time_over_ideal: until the last member has all, over the time that
    all results but one take on a line. requests: of a member for a result. wasted: sent until a request was withdrawn, over what
    was sent otherwise. missing: results that never came.
    """
    members = list(members)
    serving = [member for member in members if member.serves]
    uploads = [member.uploads for member in serving]
    sent = [member.uploads + member.wasted_seconds / member.up_seconds for member in serving]
    return {
        "uploads_most": max(uploads),
        "upload_over_mean": round(max(uploads) / mean(uploads), 3),
        "sent_over_mean": round(max(sent) / mean(sent), 3),
        "time_over_ideal": round(max(member.done_at for member in members) / (RESULT_SECONDS * (results - 1)), 3),
        "requests": round(mean(member.requests for member in members) / results, 2),
        "wasted": round(sum(member.wasted_seconds for member in members) / sum(uploads) / RESULT_SECONDS, 4),
        "missing": sum(results - len(member.has) for member in members),
    }
