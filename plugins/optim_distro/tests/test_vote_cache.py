"""What was checked is decoded once, in bounded memory, and changes nothing."""

from __future__ import annotations

import threading

import numpy as np

from psyche_optim_distro.direction.aggregation import TileVotes
from psyche_optim_distro.payload.vote_cache import VoteCache


def votes(count: int) -> TileVotes:
    return TileVotes(np.arange(count, dtype=np.int32), np.zeros((1, 2), dtype=np.int64))


def test_what_is_kept_is_given_once() -> None:
    cache, one = VoteCache(limit=1000), votes(3)
    cache.put(b"one", one)
    cache.put(b"one", votes(4))
    assert cache.pop(b"one") is one
    assert cache.pop(b"one") is None
    assert cache.pop(b"other") is None


def test_the_oldest_go_when_there_is_no_room() -> None:
    size = 4 * 10 + 16 + 1
    cache = VoteCache(limit=3 * size)
    for name in (b"a", b"b", b"c"):
        cache.put(name, votes(10))
    assert cache.pop(b"b") is not None
    cache.put(b"d", votes(10))
    cache.put(b"e", votes(10))
    assert cache.pop(b"a") is None
    assert all(cache.pop(name) is not None for name in (b"c", b"d", b"e"))


def test_what_has_no_room_at_all_is_not_kept() -> None:
    cache = VoteCache(limit=10)
    cache.put(b"large", votes(100))
    assert cache.pop(b"large") is None
    cache.put(b"", TileVotes(np.zeros(0, dtype=np.int32), np.zeros((0, 2), dtype=np.int64)))
    assert cache.pop(b"") is not None


def test_many_threads_leave_nothing_behind() -> None:
    cache = VoteCache(limit=10**6)

    def work(number: int) -> None:
        for turn in range(200):
            name = b"%d %d" % (number, turn)
            cache.put(name, votes(turn))
            assert cache.pop(name) is not None

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert cache._size == 0
