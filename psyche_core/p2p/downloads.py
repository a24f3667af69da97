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
fetch ran out comes after all other holders until the epoch ends, and gets one request at once. So does a source that stopped in
the middle or whose connection ended, also when it has connected again, and who twice did not have what it had announced. This
module knows nothing of time: the transport notices who is too slow, and whether our own line is full (`patience`), and reports it
here.
"""

from __future__ import annotations

import math
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

LAGGING = 4
"""So many times as many results may come from sources that lag as there are places. Each takes memory."""

MOST_FORGIVEN = 1
"""How often in an epoch a peer that was late is not late any more, because our line or others were slow."""

MOST_ABSENT = 2
"""After so many announcements of a result that it did not have, a peer is not asked for that any more."""


@dataclass(slots=True, eq=False)
class _Wanted:
    """A result that we lack.

    drawn: decides among results that are equal otherwise. asked: peers with a request of ours. source: the one of them that
    sends. lagging: one that sends too, so slowly that another source may send beside it; it takes none of the places. excused:
    whether that may be because of our own line. absent: how often peers did not have it though they had announced it.
    """

    drawn: float
    plan: FetchPlan = field(default_factory=FetchPlan)
    asked: set[bytes] = field(default_factory=set)
    source: bytes | None = None
    lagging: bytes | None = None
    excused: bool = False
    absent: Counter[bytes] = field(default_factory=Counter)


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
        self._places: int | None = None
        self._spare = math.inf
        self._open = 0
        self._sources = sources
        self._per_peer = per_peer
        self._draw = draw or random.Random()
        self._wanted: dict[bytes, _Wanted] = {}
        self._waiting: Counter[bytes] = Counter()
        self._answered: set[bytes] = set()
        self._receiving = 0
        self._failed: set[bytes] = set()
        self._late: set[bytes] = set()
        self._forgiven: Counter[bytes] = Counter()
        self._gave: set[bytes] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._wanted

    def __len__(self) -> int:
        """Return how many results we still lack."""
        return len(self._wanted)

    def expect_size(self, size: int) -> None:
        """Note how large results are, in bytes: of small ones more are received at once, see `at_once_of`."""
        self._at_once = at_once_of(size)

    def limit(self, *, places: int, spare: float) -> None:
        """Note what our line carries, see `demand`.

        places: results to receive at once, if that is less than `expect_size` allows. spare: requests that may wait for an answer
        beyond those for free places.
        """
        self._places, self._spare = places, spare

    @property
    def places(self) -> int:
        """How many results are received at once now."""
        return self._at_once if self._places is None else min(self._at_once, self._places)

    @property
    def full(self) -> bool:
        """Whether no place is free."""
        return self._receiving >= self.places

    @property
    def starved(self) -> bool:
        """Whether places are free and all requests wait that may."""
        return not self.full and self._open >= self.places - self._receiving + self._spare

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
        room: bool = True,
    ) -> tuple[bytes, bytes] | None:
        """Choose the next result and the peer to ask for it, and note the request; None if there is nothing to ask for now.

        reachable, doubted, slow: see `FetchPlan.begin`; peers that did not give what they had announced are doubted as well, and
        those that are late (`give_up`), which get one request at once, and none for what somebody else was asked for who is not.
        among: only these results are considered. After an announcement, nothing but the announced results can have become
        possible. room: whether our own line has room; if not, nothing is asked for that a lagging source sends.
        """
        if self.full or self.starved:
            return None

        free = {peer for peer in reachable if self._waiting[peer] < (1 if peer in self._late else self._per_peer)}
        if not free:
            return None

        doubted = self._failed.union(doubted) if self._failed else doubted
        ready = [
            (len(wanted.asked), held, wanted.drawn, name)
            for name in (self._wanted if among is None else dict.fromkeys(among))
            if (wanted := self._wanted.get(name)) is not None
            and wanted.source is None
            and (room or wanted.lagging is None)
            and len(wanted.asked) < self._sources
            and (held := self._holders.count(name)) > len(wanted.asked)
        ]
        for *_, name in sorted(ready):
            wanted = self._wanted[name]
            holders = [peer for peer in self._holders.of(name) if peer in free and self._may_ask(wanted, peer)]
            if not holders:
                continue

            peer = wanted.plan.begin(members=holders, reachable=free, doubted=doubted, slow=slow, load=self._waiting)
            if peer is not None:
                wanted.asked.add(peer)
                self._waiting[peer] += 1
                self._open += 1
                return name, peer

        return None

    def started(self, name: bytes, peer: bytes) -> tuple[bytes, ...] | None:
        """Note that a peer begins to send a result. Return the peers at which the request must be withdrawn now.

        None if this request must be withdrawn, because the result comes from another peer already, or enough others come, from
        this peer alone if it is late, or has given nothing yet while others are asked. Then `begin` asks for it again later. A
        lagging source of the result goes on.
        """
        wanted = self._wanted.get(name)
        if wanted is None or wanted.source is not None or peer not in wanted.asked:
            return None

        if self.full or (self._sends(peer) and self._is_one_enough(peer)):
            self._release(name, wanted, peer)
            return None

        wanted.source = peer
        self._receiving += 1
        self._open -= 1
        others = tuple(wanted.asked - {peer, wanted.lagging})
        for other in others:
            self._release(name, wanted, other)
        return others

    def lags(self, name: bytes, *, room: bool, excused: bool = False) -> bool:
        """Note that the source of a result is slow. Returns whether it gave up its place, so that `begin` may find something.

        room: whether our own line has room (`patience.Line`). If not, no more sources give up their places than there are places.
        None does where another source of the same result is slow already. excused: whether that may be because of our own line;
        then it is late only if another source, which began later, is done before it. See also `surplus`.
        """
        wanted = self._wanted.get(name)
        if wanted is not None and wanted.lagging is not None and wanted.excused and not excused:
            self.give_up(wanted.lagging)
            wanted.excused = False
        if wanted is None or wanted.source is None or wanted.lagging is not None:
            return False

        if (excused or not room) and len(self._lagging()) >= self.places * (LAGGING if excused else 1):
            return False

        if not excused:
            self.give_up(wanted.source)
        wanted.excused = excused
        wanted.source, wanted.lagging = None, wanted.source
        self._receiving -= 1
        self._ask_again()
        return True

    def surplus(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return all requests whose sources lag if these are more than allowed; then one must be dropped, the slowest."""
        lagging = self._lagging()
        return lagging if len(lagging) > LAGGING * self.places else ()

    def drop(self, name: bytes, peer: bytes, *, room: bool = False) -> None:
        """Note that one of two sources of a result is stopped, because the other will be done sooner, or one of many that lag.

        room: whether our own line has room. If not, and if the other one lagged, that takes a place again, and is not late any
        more: our line is slow. Otherwise it goes on without a place, and further sources can be tried.
        """
        wanted = self._wanted.get(name)
        if wanted is None or peer not in wanted.asked:
            return

        self._release(name, wanted, peer)
        if not room and wanted.source is None and wanted.lagging is not None:
            if not wanted.excused:
                self._forgive(wanted.lagging)
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
        self._forgiven.clear()
        self._gave.clear()

    def finished(self, name: bytes, *, giver: bytes | None = None) -> tuple[bytes, ...]:
        """Note that a result is here, or is not needed any more. Return the peers at which requests must be withdrawn now.

        giver: the peer that gave it; the source unless told.
        """
        wanted = self._wanted.pop(name, None)
        self._holders.forget_blob(name)
        if wanted is None:
            return ()

        if giver is not None and giver == wanted.lagging and wanted.source is not None:
            self._forgive(giver)  # it was done before the other, which began later
        if giver is not None and giver == wanted.source and wanted.lagging is not None and wanted.excused:
            self.give_up(wanted.lagging)
        giver = wanted.source if giver is None else giver
        if giver is not None:
            self._gave.add(giver)
        others = tuple(wanted.asked - {giver})
        for peer in tuple(wanted.asked):
            self._leave(wanted, peer)
        self._ask_again()
        return others

    def failed(self, name: bytes, peer: bytes, answer: Answer) -> None:
        """Note how a request ended without the result. Does nothing if there is no such request.

        Who had begun to send is late, and who did not have what it had announced MOST_ABSENT times; others are doubted.
        """
        wanted = self._wanted.get(name)
        if wanted is None or peer not in wanted.asked:
            return

        wanted.plan.settle(peer, answer)
        self._answered.add(name)
        if answer is Answer.ABSENT:
            self._holders.withdraw(peer, name)  # until it announces the result again
            wanted.absent[peer] += 1
        self._note_failure(wanted, peer)
        self._leave(wanted, peer)
        self._ask_again()

    def forget_peer(self, peer: bytes) -> None:
        """Note that the connection with a peer ended, and all requests at it with that. If it was sending, it is late."""
        self._holders.forget_peer(peer)
        for name, wanted in self._wanted.items():
            if peer in wanted.asked:
                wanted.plan.settle(peer, Answer.LOST)
                self._answered.add(name)
                self._note_failure(wanted, peer)
                self._leave(wanted, peer)
        self._ask_again()

    def _ask_again(self) -> None:
        """Allow to ask peers again at which a request was withdrawn: the result did not come, or there is room for it now."""
        for name in self._answered:
            if name in self._wanted:
                self._wanted[name].plan.ask_again()
        self._answered.clear()

    def may_have(self, name: bytes, peer: bytes) -> bool:
        """Whether a peer that announced a result is asked for it; not if it had none, too often."""
        wanted = self._wanted.get(name)
        return wanted is None or wanted.absent[peer] < MOST_ABSENT

    def _may_ask(self, wanted: _Wanted, peer: bytes) -> bool:
        return wanted.absent[peer] < MOST_ABSENT and (peer not in self._late or wanted.asked <= self._late)

    def _note_failure(self, wanted: _Wanted, peer: bytes) -> None:
        self._failed.add(peer)
        if peer in (wanted.source, wanted.lagging) or wanted.absent[peer] >= MOST_ABSENT:
            self._late.add(peer)

    def _forgive(self, peer: bytes) -> None:
        if self._forgiven[peer] < MOST_FORGIVEN:
            self._forgiven[peer] += 1
            self._late.discard(peer)

    def _lagging(self) -> tuple[tuple[bytes, bytes], ...]:
        return tuple((name, wanted.lagging) for name, wanted in self._wanted.items() if wanted.lagging is not None)

    def _release(self, name: bytes, wanted: _Wanted, peer: bytes) -> None:
        wanted.plan.release(peer)
        self._answered.add(name)
        self._leave(wanted, peer)

    def _leave(self, wanted: _Wanted, peer: bytes) -> None:
        wanted.asked.discard(peer)
        self._waiting[peer] -= 1
        if wanted.source == peer:
            wanted.source = None
            self._receiving -= 1
        elif wanted.lagging == peer:
            wanted.lagging = None
        else:
            self._open -= 1
        if not self._waiting[peer]:
            del self._waiting[peer]

    def _is_one_enough(self, peer: bytes) -> bool:
        """Whether one result of this peer at once is enough, so that fewer places are lost if it turns out to be slow."""
        if peer in self._late:
            return True

        return peer not in self._gave and any(
            count and other != peer and not self._sends(other) for other, count in self._waiting.items()
        )

    def _sends(self, peer: bytes) -> bool:
        return any(peer in (wanted.source, wanted.lagging) for wanted in self._wanted.values())
