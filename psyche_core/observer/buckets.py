"""A series of figures in limited memory: neighbouring keys share a bucket, which keeps the mean, the minimum and the maximum.

Keys are steps or whole seconds. When there are too many buckets, their width doubles and neighbours are merged. So a series of
any length keeps its shape, and no peak or dip is lost. Keys may come in any order. Each bucket stores the version of its last
change, so that a reader can be sent only what is new.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MAX_KEY = 2**40
"""Keys are at least 0 and below this; others are ignored."""


@dataclass(slots=True)
class Bucket:
    """A summary of the values of some neighbouring keys.

    start: first key. mean: weighted by `weight`, over the finite values. low, high: their minimum and maximum. All three are None
    without a finite value. weight: sum over all values, finite or not. time: unix seconds of the newest value. changed: version
    of the newest.
    """

    start: int
    weight: float = 0.0
    time: float = 0.0
    changed: int = 0
    low: float | None = None
    high: float | None = None
    _total: float = 0.0
    _weighed: float = 0.0

    @property
    def mean(self) -> float | None:
        """Mean of the finite values."""
        return self._total / self._weighed if self._weighed > 0 else None

    def add(self, value: float, *, weight: float, time: float, changed: int) -> None:
        """Add a value."""
        self.weight += weight
        self.time = max(self.time, time)
        self.changed = max(self.changed, changed)
        if math.isfinite(value):
            self._total += weight * value
            self._weighed += weight
            self.low = value if self.low is None else min(self.low, value)
            self.high = value if self.high is None else max(self.high, value)

    def merge(self, other: Bucket) -> None:
        """Add all values of another bucket."""
        self.weight += other.weight
        self.time = max(self.time, other.time)
        self.changed = max(self.changed, other.changed)
        self._total += other._total
        self._weighed += other._weighed
        self.low = _chosen(min, self.low, other.low)
        self.high = _chosen(max, self.high, other.high)


class BucketSeries:
    """At most `capacity` buckets of equal width. width: number of keys in a bucket. reshaped: version of the last reshaping."""

    def __init__(self, capacity: int) -> None:
        if capacity < 2:
            message = f"a series needs room for at least 2 buckets, got {capacity}"
            raise ValueError(message)
        self._capacity = capacity
        self._buckets: dict[int, Bucket] = {}
        self.width: int = 1
        self.reshaped: int = 0

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def newest(self) -> Bucket | None:
        """The bucket with the highest keys; None before the first."""
        return self._buckets[max(self._buckets)] if self._buckets else None

    def add(self, key: int, value: float, *, time: float, changed: int, weight: float = 1.0) -> None:
        """Add a value.

        time: unix seconds. changed: version of this change, ascending. weight: positive, for the mean. A key out of range is
        ignored.
        """
        if not 0 <= key < MAX_KEY or not weight > 0:
            return

        index = key // self.width
        bucket = self._buckets.get(index)
        if bucket is None:
            bucket = self._buckets[index] = Bucket(index * self.width)
        bucket.add(value, weight=weight, time=time, changed=changed)
        while len(self._buckets) > self._capacity:
            self._halve(changed)

    def cut(self, last: int, *, changed: int) -> None:
        """Forget the buckets that begin after the key `last`."""
        kept = {index: bucket for index, bucket in self._buckets.items() if bucket.start <= last}
        if len(kept) != len(self._buckets):
            self._buckets, self.reshaped = kept, changed

    def rows(self, *, since: int = 0) -> Iterator[Bucket]:
        """Yield the buckets that changed after version `since`, by key; all if the series was reshaped since then."""
        if self.reshaped > since:
            since = -1
        for index in sorted(self._buckets):
            if self._buckets[index].changed > since:
                yield self._buckets[index]

    def _halve(self, changed: int) -> None:
        self.width *= 2
        self.reshaped = changed
        before, self._buckets = self._buckets, {}
        for _, bucket in sorted(before.items()):
            index = bucket.start // self.width
            known = self._buckets.get(index)
            if known is None:
                bucket.start = index * self.width
                self._buckets[index] = bucket
            else:
                known.merge(bucket)


def _chosen(choose: Callable[[float, float], float], ours: float | None, theirs: float | None) -> float | None:
    if ours is None or theirs is None:
        return ours if theirs is None else theirs

    return choose(ours, theirs)
