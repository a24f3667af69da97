"""Who is asked for which blob: fast sources give more, silent ones are left alone, nothing that can be had is missed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.model_sync.multi_source import ATTEMPTS, MOST_PER_SOURCE, Sources, gather
from psyche_core.errors import BlobNotFound, ModelError

SIZE = 4 * 2**20
BLOBS = {hashlib.sha256(text).digest(): len(text) for text in (b"%d" % n for n in range(40))}


class Scripted(MemoryTransport):
    """Answers fetches itself. script: the source that comes first, and how often the blob was asked for -> whether it is had."""

    def __init__(self, script: Callable[[bytes, int], bool]) -> None:
        super().__init__(MemoryNetwork(), b"k" * 32)
        self.script = script
        self.asked: Counter[bytes] = Counter()
        self.running = self.most_running = 0

    async def fetch(  # type: ignore[override]
        self, blob_hash: bytes, *, sources: Sequence[bytes], keep: bool, **how: object
    ) -> bytes:
        assert not keep
        self.asked[blob_hash] += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await anyio.sleep(0)
        self.running -= 1
        if not self.script(sources[0] if sources else b"", self.asked[blob_hash]):
            message = "nobody has it"
            raise BlobNotFound(message)

        return b"blob"


async def gathered(transport: MemoryTransport, *, sources: Sequence[bytes] = (b"a",), at_once: int = 8) -> Counter[bytes]:
    """What was handed over, each blob how often."""
    kept: Counter[bytes] = Counter()

    async def keep(blob_hash: bytes, _: bytes) -> None:
        kept[blob_hash] += 1

    with anyio.fail_after(30):
        await gather(transport, BLOBS, sources=sources, at_once=at_once, tag=1, keep=keep)
    return kept


async def test_everything_comes_once() -> None:
    transport = Scripted(lambda *_: True)
    assert await gathered(transport) == dict.fromkeys(BLOBS, 1)
    assert transport.asked == dict.fromkeys(BLOBS, 1)
    assert transport.most_running == MOST_PER_SOURCE


async def test_without_sources_the_other_members_are_asked() -> None:
    assert await gathered(Scripted(lambda source, _: source == b""), sources=()) == dict.fromkeys(BLOBS, 1)


async def test_what_cannot_be_had_at_first_is_asked_for_again_after_the_rest() -> None:
    transport = Scripted(lambda _, times: times == ATTEMPTS)
    with pytest.raises(BlobNotFound):  # nothing comes at all for so long that it is of no use
        await gathered(transport, at_once=2)

    once = iter([False] * 5)
    assert await gathered(Scripted(lambda *_: next(once, True))) == dict.fromkeys(BLOBS, 1)


async def test_one_that_nobody_has_does_not_keep_the_others_from_coming() -> None:
    lost = min(BLOBS)
    kept: set[bytes] = set()

    class Lacking(Scripted):
        async def fetch(self, blob_hash: bytes, **how: object) -> bytes:
            if blob_hash == lost:
                self.asked[blob_hash] += 1
                message = "nobody has it"
                raise BlobNotFound(message)
            return b"blob"

    async def keep(blob_hash: bytes, _: bytes) -> None:
        kept.add(blob_hash)

    transport = Lacking(lambda *_: True)
    with pytest.raises(BlobNotFound):
        await gather(transport, BLOBS, sources=(b"a", b"b"), at_once=8, tag=1, keep=keep)
    assert kept == BLOBS.keys() - {lost}
    assert transport.asked[lost] == ATTEMPTS


async def test_what_cannot_be_kept_ends_it_at_once() -> None:
    async def keep(*_: bytes) -> None:
        message = "no room"
        raise ModelError(message)

    transport = Scripted(lambda *_: True)
    with pytest.raises(ModelError, match="no room"):
        await gather(transport, BLOBS, sources=(b"a",), at_once=8, tag=1, keep=keep)
    assert transport.asked.total() <= 8


# ------------------------------------------------------------------------------------------------ who is asked


def played(seconds: dict[bytes, float], blobs: int, *, at_once: int) -> Counter[bytes]:
    """How many blobs each source gives when one takes so many seconds of it, one after the other; inf for never."""
    sources, now, given = Sources(tuple(seconds)), 0.0, Counter[bytes]()
    running: list[tuple[float, float, bytes]] = []  # end, begin, peer
    free_at = dict.fromkeys(seconds, 0.0)
    for _ in range(blobs):
        if len(running) == at_once:
            running.sort()
            end, begin, peer = running.pop(0)
            now = max(now, end)
            source = next(source for source in sources.ranked(SIZE, now) if source.peer == peer)
            source.begun.remove(begin)
            source.took(SIZE, end - begin)
            given[peer] += 1
        source = sources.ranked(SIZE, now)[0]
        source.begun.append(now)
        free_at[source.peer] = max(free_at[source.peer], now) + seconds[source.peer]
        running.append((free_at[source.peer], now, source.peer))
    return given


@given(st.integers(2, 20))
def test_a_source_that_is_faster_gives_more(times: int) -> None:
    given_by = played({b"slow": 0.1 * times, b"fast": 0.1}, 400, at_once=8)
    assert given_by[b"fast"] > given_by[b"slow"] > 0


@given(st.integers(2, 5))
def test_equal_sources_give_about_the_same(count: int) -> None:
    given_by = played({bytes((n,)): 0.2 for n in range(count)}, 100 * count, at_once=8)
    assert min(given_by.values()) > 0.5 * max(given_by.values())


@given(st.lists(st.sampled_from([0.05, 0.2, 1.0]), min_size=1, max_size=4), st.integers(1, 3))
def test_a_silent_source_is_soon_asked_for_nothing_more(honest: list[float], silent: int) -> None:
    speeds = {b"honest %d" % n: seconds for n, seconds in enumerate(honest)}
    never = {b"silent %d" % n: float("inf") for n in range(silent)}
    sources = Sources((*never, *speeds))
    for peer in never:
        stuck = next(source for source in sources.ranked(SIZE, 0.0) if source.peer == peer)
        stuck.begun.append(0.0)
    assert sources.ranked(SIZE, 10.0)[0].peer in speeds


def test_a_source_is_not_given_everything_while_others_are_free() -> None:
    sources = Sources((b"a", b"b"))
    taken: Counter[bytes] = Counter()
    for _ in range(2 * MOST_PER_SOURCE):
        source = sources.ranked(SIZE, 0.0)[0]
        source.begun.append(0.0)
        taken[source.peer] += 1
    assert taken == {b"a": MOST_PER_SOURCE, b"b": MOST_PER_SOURCE}
