"""Which of many wanted results is asked for next, and from which neighbours, so that no member has to send much more than others.

Where a member is connected with some others only, results reach it in several hops: who has fetched one announces it to its
neighbours (`HolderBook`), and each of these asks some of those that announced it. A request waits until the holder's line is
free (`UploadQueue`). The first holder that begins to send is the source, and the requests at the others are withdrawn. So a
line is idle only if no neighbour can take anything that its owner has, and nobody waits in the queue of an author when others
can send already.

Results that were asked for at fewest neighbours come first, then those that fewest neighbours have. Of the holders, the one is
asked where fewest of our requests wait. There is a `FetchPlan` for each result, which knows who was asked and what the answer
was; this module chooses among the plans.

A source that sends slowly does not keep its place: it goes on, another result may come beside it, and the same result from
another holder, until one of the two is done or is dropped. Whoever was slow, was given up, or was a source when the time of a
fetch ran out comes after all other holders until the epoch ends, and gets one request at once. This module knows nothing of time:
the transport notices who is too slow (`patience`), and reports it here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from psyche_core.p2p.fetch_plan import Answer, FetchPlan
from psyche_core.p2p.holders import HolderBook

AT_ONCE = 2
"""Results received at once: what is complete can be passed on, so few that come soon are better than many that come late."""

MOST_AT_ONCE = 16
BYTES_AT_ONCE = 4 * 2**20
"""Of small results so many are received at once as have this size together, MOST_AT_ONCE at most: each takes its round trips, and
two of them would leave the line idle meanwhile."""

SOURCES = 2
PER_PEER = 8


@dataclass(slots=True, eq=False)
class _Wanted:
    """A result that we lack.

    drawn: decides among results that are equal otherwise. asked: peers with a request of ours. source: the one of them that
    sends. lagging: one that sends too, so slowly that another source may send beside it; it takes none of the places.
    """

    drawn: float
    plan: FetchPlan = field(default_factory=FetchPlan)
    asked: set[bytes] = field(default_factory=set)
    source: bytes | None = None
    lagging: bytes | None = None


def at_once_of(size: int) -> int:
    """Return how many results of a size in bytes are received or sent at once."""
    return max(AT_ONCE, min(MOST_AT_ONCE, BYTES_AT_ONCE // max(size, 1)))


class Downloads:
    """The results that one member lacks.

    holders: who announced what; results have the same names there as here. at_once: most results received at once. sources: most
    requests for one result at once. per_peer: most requests at one peer at once. draw: for the order among results that are equal
    otherwise, so that not all members ask for the same first.
    """

    def __init__(
        self,
        holders: HolderBook,
        *,
        at_once: int = AT_ONCE,
        sources: int = SOURCES,
        per_peer: int = PER_PEER,
        draw: random.Random | None = None,
    ) -> None:
        self._holders = holders
        self._at_once = at_once
        self._sources = sources
        self._per_peer = per_peer
        self._draw = draw or random.Random()
        self._wanted: dict[bytes, _Wanted] = {}
        self._waiting: Counter[bytes] = Counter()
        self._receiving = 0
        self._failed: set[bytes] = set()
        self._late: set[bytes] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._wanted

    def __len__(self) -> int:
        """Return how many results we still lack."""
        return len(self._wanted)

    def expect_size(self, size: int) -> None:
        """Note how large results are, in bytes: of small ones more are received at once, see `at_once_of`."""
        self._at_once = at_once_of(size)

    def want(self, name: bytes) -> None:
        """Note that we lack a result. Does nothing if that is known."""
        if name not in self._wanted:
            self._wanted[name] = _Wanted(self._draw.random())

    def begin(
        self,
        reachable: Collection[bytes],
        *,
        doubted: Collection[bytes] = (),
        slow: Collection[bytes] = (),
        among: Collection[bytes] | None = None,
    ) -> tuple[bytes, bytes] | None:
        """Choose the next result and the peer to ask for it, and note the request; None if there is nothing to ask for now.

        reachable, doubted, slow: see `FetchPlan.begin`; peers that did not give what they had announced are doubted as well, and
        those that are late (`give_up`), which get one request at once.
        among: only these results are considered. After an announcement, nothing but the announced results can have become
        possible.
        """
        if self._receiving >= self._at_once:
            return None

        free = {peer for peer in reachable if self._waiting[peer] < (1 if peer in self._late else self._per_peer)}
        if not free:
            return None

        doubted = self._failed.union(doubted) if self._failed else doubted
        ready = [
            (len(wanted.asked), held, wanted.drawn, name)
            for name in (self._wanted if among is None else among)
            if (wanted := self._wanted.get(name)) is not None
            and wanted.source is None
            and len(wanted.asked) < self._sources
            and (held := self._holders.count(name)) > len(wanted.asked)
        ]
        for *_, name in sorted(ready):
            wanted = self._wanted[name]
            holders = self._holders.of(name)
            if free.isdisjoint(holders):
                continue

            peer = wanted.plan.begin(members=holders, reachable=free, doubted=doubted, slow=slow, load=self._waiting)
            if peer is not None:
                wanted.asked.add(peer)
                self._waiting[peer] += 1
                return name, peer

        return None

    def started(self, name: bytes, peer: bytes) -> tuple[bytes, ...] | None:
        """Note that a peer begins to send a result. Return the peers at which the request must be withdrawn now.

        None if this request must be withdrawn, because the result comes from another peer already, or enough others come, from
        this peer alone if it is late. Then `begin` asks for it again later. A lagging source of the result goes on.
        """
        wanted = self._wanted.get(name)
        if wanted is None or wanted.source is not None or peer not in wanted.asked:
            return None

        if self._receiving >= self._at_once or (peer in self._late and self._sends(peer)):
            wanted.plan.release(peer)
            self._leave(wanted, peer)
            return None

        wanted.source = peer
        self._receiving += 1
        others = tuple(wanted.asked - {peer, wanted.lagging})
        for other in others:
            wanted.plan.release(other)
            self._leave(wanted, other)
        return others

    def lags(self, name: bytes) -> bool:
        """Note that the source of a result is slow. Returns whether it gave up its place, so that `begin` may find something.

        It does not if another source of the result is slow already, or as many are as there are places: then our line is slow.
        """
        wanted = self._wanted.get(name)
        if wanted is None or wanted.source is None or wanted.lagging is not None:
            return False

        if sum(each.lagging is not None for each in self._wanted.values()) >= self._at_once:
            return False

        self.give_up(wanted.source)
        wanted.source, wanted.lagging = None, wanted.source
        self._receiving -= 1
        self._ask_again()
        return True

    def drop(self, name: bytes, peer: bytes) -> None:
        """Note that one of two sources of a result is stopped, because the other will be done sooner.

        If that is the lagging one, it is not late any more: others are slower, or our line is slow.
        """
        wanted = self._wanted.get(name)
        if wanted is None or peer not in wanted.asked:
            return

        wanted.plan.release(peer)
        self._leave(wanted, peer)
        if wanted.source is None and wanted.lagging is not None:
            self._late.discard(wanted.lagging)
            wanted.source, wanted.lagging = wanted.lagging, None
            self._receiving += 1

    def give_up(self, peer: bytes) -> None:
        """Note that a peer sent too slowly: it comes after others from now on, and gets one request at once."""
        self._failed.add(peer)
        self._late.add(peer)

    def ran_out(self, name: bytes) -> None:
        """Note that the time for a result is over. `finished` must be called too."""
        wanted = self._wanted.get(name)
        if wanted is not None:
            for peer in (wanted.source, wanted.lagging):
                if peer is not None:
                    self.give_up(peer)

    def forgive(self) -> None:
        """Forget who did not give what it had announced, or was late: a new epoch has begun."""
        self._failed.clear()
        self._late.clear()

    def finished(self, name: bytes, *, giver: bytes | None = None) -> tuple[bytes, ...]:
        """Note that a result is here, or is not needed any more. Return the peers at which requests must be withdrawn now.

        giver: the peer that gave it; the source unless told.
        """
        wanted = self._wanted.pop(name, None)
        self._holders.forget_blob(name)
        if wanted is None:
            return ()

        if giver is not None and giver == wanted.lagging and wanted.source is not None:
            self._late.discard(giver)  # it was done before the other, which began later
        others = tuple(wanted.asked - {wanted.source if giver is None else giver})
        for peer in tuple(wanted.asked):
            self._leave(wanted, peer)
        self._ask_again()
        return others

    def failed(self, name: bytes, peer: bytes, answer: Answer) -> None:
        """Note how a request ended without the result. Does nothing if there is no such request."""
        wanted = self._wanted.get(name)
        if wanted is None or peer not in wanted.asked:
            return

        wanted.plan.settle(peer, answer)
        if answer is Answer.ABSENT:
            self._holders.withdraw(peer, name)  # until it announces the result again
        self._failed.add(peer)
        self._leave(wanted, peer)
        self._ask_again()

    def forget_peer(self, peer: bytes) -> None:
        """Note that the connection with a peer ended, and all requests at it with that."""
        self._holders.forget_peer(peer)
        for wanted in self._wanted.values():
            if peer in wanted.asked:
                wanted.plan.settle(peer, Answer.LOST)
                self._leave(wanted, peer)
        self._ask_again()

    def _ask_again(self) -> None:
        """Allow to ask peers again at which a request was withdrawn: the result did not come, or there is room for it now."""
        for wanted in self._wanted.values():
            wanted.plan.ask_again()

    def _leave(self, wanted: _Wanted, peer: bytes) -> None:
        wanted.asked.discard(peer)
        self._waiting[peer] -= 1
        if wanted.source == peer:
            wanted.source = None
            self._receiving -= 1
        elif wanted.lagging == peer:
            wanted.lagging = None

    def _sends(self, peer: bytes) -> bool:
        return any(peer in (wanted.source, wanted.lagging) for wanted in self._wanted.values())
