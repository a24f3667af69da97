"""What was checked is decoded once, in bounded memory, and changes nothing."""

from __future__ import annotations

import threading

import numpy as np

from psyche_optim_distro.aggregation import Votes
from psyche_optim_distro.vote_cache import VoteCache


def votes(count: int) -> Votes:
    return Votes(np.arange(count, dtype=np.int32), np.zeros((1, 2), dtype=np.int64))


def test_what_is_kept_is_given_once() -> None:
    kept, one = VoteCache(limit=1000), votes(3)
    kept.keep(b"one", one)
    kept.keep(b"one", votes(4))
    assert kept.take(b"one") is one
    assert kept.take(b"one") is None
    assert kept.take(b"other") is None


def test_the_oldest_go_when_there_is_no_room() -> None:
    size = 4 * 10 + 16 + 1
    kept = VoteCache(limit=3 * size)
    for name in (b"a", b"b", b"c"):
        kept.keep(name, votes(10))
    assert kept.take(b"b") is not None
    kept.keep(b"d", votes(10))
    kept.keep(b"e", votes(10))
    assert kept.take(b"a") is None
    assert all(kept.take(name) is not None for name in (b"c", b"d", b"e"))


def test_what_has_no_room_at_all_is_not_kept() -> None:
    kept = VoteCache(limit=10)
    kept.keep(b"large", votes(100))
    assert kept.take(b"large") is None
    kept.keep(b"", Votes(np.zeros(0, dtype=np.int32), np.zeros((0, 2), dtype=np.int64)))
    assert kept.take(b"") is not None


def test_many_threads_leave_nothing_behind() -> None:
    kept = VoteCache(limit=10**6)

    def work(number: int) -> None:
        for turn in range(200):
            name = b"%d %d" % (number, turn)
            kept.keep(name, votes(turn))
            assert kept.take(name) is not None

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert kept._held == 0
