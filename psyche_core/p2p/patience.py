"""For how long a fetch waits, and how fast a source must send: by what comes, not by a fixed time. Pure; the caller passes times.

A blob of many bytes needs longer on a slow line, and longer if others come on it at the same time. So a fetch that makes progress
is not given up (`Patience`), and what counts as too slow for a source depends on what came before (`Pace`). How fast one source
sends now, `Course` measures, and `Line` whether all together send as much as our own line carries. Where they do, or may do, a
source that sends its share of that is not slow, however little that is.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

REMEMBERED = 5
"""Rates of a peer that are remembered. Their median counts, so that one that came very fast or slowly decides little."""

VOICES = 3
"""Peers that must have sent a result before it is known what is usual: of fewer, one may decide it."""

TELLING_BYTES = 64 * 1024
TELLING_SECONDS = 0.25
"""What is smaller tells nothing about a line. What came in less time counts as having taken that: most was in buffers already."""

SLOWER = 16
"""How many times slower than usual a source may be."""

FULL = 3 / 4
"""A line counts as full that brings this part of the most that it has brought lately."""

LATELY_SECONDS = 300.0
"""After this time half of the most that a line has brought counts."""

IDLE = 1 / 2
"""A line has room for certain, and sources are slow by themselves, if less than this part of the most comes."""

TRIES = 4
GROWN = 23 / 20
"""After so many tries that brought no more, in this proportion, a line counts as full."""

TRY_SECONDS = 20.0
"""After this time without a try, one more is allowed on a line that counts as full."""

_LOOKS = 8

LAGS = 4
"""A source lags that needs so many times longer for a blob than is usual. Before that is known, it lags if it needs longer than
one of so many parts of the fetch's time."""


class Patience:
    """The wait of one fetch.

    timeout: seconds without progress after which it is over. now: when it begins, seconds. least: bytes a second that count as
    progress; with the default nothing does, and the timeout is one for all.
    """

    def __init__(self, timeout: float, *, now: float, least: float = math.inf) -> None:
        self.timeout: float = timeout
        self._until = now + timeout
        self._step = math.inf if math.isinf(least) else least * timeout
        self._fresh = 0

    def note(self, received: int, now: float) -> None:
        """Note bytes that have come since the last call. The wait begins anew when as many came as `least` asks of a timeout."""
        self._fresh += received
        if received and self._fresh >= self._step:
            self._fresh = 0
            self._until = now + self.timeout

    def left(self, now: float) -> float:
        """Return the seconds for which to wait; 0 when it is over."""
        return max(0.0, self._until - now)


@dataclass(slots=True, eq=False)
class Course:
    """How one source sends one blob.

    looked_at: when it began, then when it was last looked at. size: of the blob in bytes, None before it is known. received:
    bytes so far. rate: bytes a second between the last two looks. looks: how many there were since the last `start_over`. began:
    when it began.
    """

    looked_at: float
    size: int | None = None
    received: int = 0
    rate: float = 0.0
    looks: int = 0
    began: float = 0.0
    _seen: int = 0

    def __post_init__(self) -> None:
        self.began = self.looked_at

    def look(self, now: float, *, every: float) -> None:
        """Measure the rate, if so many seconds have passed since the last time."""
        passed = now - self.looked_at
        if passed >= every:
            self.rate = (self.received - self._seen) / max(passed, 1e-3)
            self._seen, self.looked_at = self.received, now
            self.looks += 1

    def is_behind(self, share: float, now: float) -> bool:
        """Whether the source sends much less than its share, lately and on the whole. share: bytes a second."""
        mean = self.received / max(now - self.began, 1e-3)
        return max(self.rate, mean) * LAGS < share

    def start_over(self, now: float) -> None:
        """Measure from now on, to compare the source with another one."""
        self._seen, self.looked_at, self.looks = self.received, now, 0

    @property
    def rest(self) -> float:
        """Seconds for the rest of the blob at the last rate."""
        left = 0 if self.size is None else self.size - self.received
        return 0.0 if left <= 0 else left / self.rate if self.rate > 0 else math.inf


class Pace:
    """How fast results have come in this epoch, by who sent them. floor: bytes a second that a source must send in any case.

    Each peer has one voice, and the median of the voices counts: fewer than half of the peers decide nothing, however many
    results they send. A voice is the median of what the peer sent last, and at least half of its fastest, so that a peer which
    sends ever more slowly does not make that usual. With fewer voices than VOICES, what was usual in the epoch before counts.
    """

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._rates: dict[bytes, deque[float]] = {}
        self._best: dict[bytes, float] = {}
        self._usual: float | None = None
        self._before: float | None = None

    def completed(self, peer: bytes, size: int, seconds: float) -> None:
        """Note that a result has come. size: bytes; of few the rate says nothing. seconds: between its first and last byte."""
        if size < TELLING_BYTES:
            return

        rate = size / max(seconds, TELLING_SECONDS)
        self._rates.setdefault(peer, deque(maxlen=REMEMBERED)).append(rate)
        self._best[peer] = max(rate, self._best.get(peer, 0.0))
        if len(self._rates) >= VOICES:
            self._usual = median(max(median(rates), self._best[peer] / 2) for peer, rates in self._rates.items())

    def begin_epoch(self) -> None:
        """Forget who sent how fast. What was usual counts until there are enough voices again."""
        self._before = self.usual
        self._usual = None
        self._rates.clear()
        self._best.clear()

    @property
    def usual(self) -> float | None:
        """Bytes a second with which results usually come, None before that is known."""
        return self._before if self._usual is None else self._usual

    @property
    def least(self) -> float:
        """Bytes a second below which a source is too slow: the floor, or SLOWER times less than usual if that is more."""
        return self._floor if self.usual is None else max(self._floor, self.usual / SLOWER)

    def least_of(self, sources: int, share: float | None) -> float:
        """Return the bytes a second below which one of so many sources is too slow that send now.

        share: see `Line.share`. Who sends a part of LAGS of that, and its part of the floor, is not too slow.
        """
        return self.least if share is None else max(min(self.least, share / LAGS), self._floor / max(sources, 1))

    def longest(self, size: int, timeout: float) -> float:
        """Return the seconds that a source may need for a blob before it lags. size: bytes. timeout: of the fetch."""
        return timeout / LAGS if self.usual is None else LAGS * size / self.usual

    def lags(self, course: Course, *, now: float, timeout: float, least: float) -> bool:
        """Whether a source lags: at its rate it needs too long for the whole blob.

        timeout: of the fetch, seconds. least: seconds for the rest that are never too long.
        """
        return course.rest > least and now - course.began + course.rest > self.longest(course.size or 0, timeout)


class Line:
    """Whether it is our own line that makes sources slow. over: seconds in which rates are measured.

    What comes in altogether is compared with the most that came lately. A source that sends slowly does not change what the line
    carries; and if all that send now bring much less together, the line has room, and other sources should be tried. As long as
    the line is not known, a few are tried too: on a full line they bring no more together.
    """

    def __init__(self, *, over: float) -> None:
        self._over = over
        self._seen: deque[tuple[float, int]] = deque()
        self._rate = 0.0
        self._best = 0.0
        self._best_at = -math.inf
        self._tries = 0
        self._best_before = 0.0
        self._now = -math.inf
        self._tried_at = -math.inf

    def look(self, received: int, now: float) -> None:
        """Measure. received: all bytes of results so far."""
        self._now = now
        if self._seen and now - self._seen[-1][0] >= self._over:
            self._seen.clear()  # nothing was wanted meanwhile
            self._best_at = now
        if not self._seen or now - self._seen[-1][0] >= self._over / _LOOKS:
            self._seen.append((now, received))
        while len(self._seen) > 1 and now - self._seen[1][0] >= self._over:
            self._seen.popleft()
        passed = now - self._seen[0][0]
        if passed >= self._over:
            self._rate = (received - self._seen[0][1]) / passed
            self._best = max(self._rate, self._best * 0.5 ** ((now - self._best_at) / LATELY_SECONDS))
            self._best_at = now
            if self._best > GROWN * self._best_before:
                self._tries = 0

    def tried(self) -> None:
        """Note that another source is tried beside a slow one."""
        self._tries += 1
        self._tried_at = self._now
        self._best_before = max(self._best, self._best_before)

    def stopped(self) -> None:
        """Note that a slow source was stopped to try another one. What the line once carried counts less, unless that helps."""
        self._best *= FULL

    @property
    def room(self) -> bool:
        """Whether further sources may bring more: much less comes than the line has carried lately, or few were tried in vain."""
        return self._rate < FULL * self._best or self._tries < TRIES

    @property
    def rate(self) -> float:
        """Bytes a second that come now, all results together; 0 before that is known."""
        return self._rate

    @property
    def best(self) -> float:
        """Bytes a second that came at most lately; 0 before that is known."""
        return self._best

    @property
    def idle(self) -> bool:
        """Whether the line certainly has room: it is not our line that makes sources slow."""
        return self._rate < IDLE * self._best

    @property
    def full(self) -> bool:
        """Whether the line counts as full: enough was tried in vain, and nearly as much comes as ever."""
        return self._tries >= TRIES and not self.idle

    @property
    def may_try(self) -> bool:
        """Whether another source may be tried beside one that is slow only if our line is not."""
        return self._tries < TRIES or self._now - self._tried_at >= TRY_SECONDS

    def share(self, sources: int) -> float | None:
        """Return the bytes a second that each of so many sources brings on average.

        None if that excuses nobody, because the line has room, or because one alone sends on a line that is not known to be full.
        """
        return None if self.idle or (sources < 2 and not self.full) else self._rate / max(sources, 1)
