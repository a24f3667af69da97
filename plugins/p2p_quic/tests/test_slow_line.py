"""A member behind a slow line of its own, with honest neighbours only, gets all results. In virtual time."""

from __future__ import annotations

import pytest

from plugins.p2p_quic.tests.virtual_line import World, run
from psyche_core.p2p.demand import QUICK_SECONDS
from psyche_core.p2p.downloads import AT_ONCE, MOST_AT_ONCE
from psyche_p2p_quic.settings import QuicSettings

FAST = 12_500_000.0
SLOW_LINES = [
    (line, size, neighbours)
    for line in (60_000, 80_000, 100_000, 150_000, 300_000, 600_000)
    for size, neighbours in ((54_000, 20), (100_000, 4), (500_000, 20), (1_000_000, 4), (1_000_000, 12))
    if size < 1_000_000 or line != 100_000  # as 80,000 and 150,000
]


async def received(line: float, size: int, neighbours: int, *, results: int) -> World:
    """Fetch results of honest neighbours."""
    world = World(line=line, size=size, results=results, settings=QuicSettings())
    peers = [b"honest %d" % number for number in range(neighbours)]
    for peer in peers:
        world.honest(peer, rate=FAST)
    world.announce(peers)
    await world.fetch_all(limit=3 * results * size / line + 10)
    return world


@pytest.mark.parametrize(("line", "size", "neighbours"), SLOW_LINES)
def test_on_a_slow_line_all_results_come_nearly_in_the_time_that_it_needs_and_nobody_is_blamed(
    line: float, size: int, neighbours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of up to 16 sources had to send 8 kB a second; below that all were given up, again and again, and nothing came."""
    results = 12 if size == 1_000_000 else 20
    world = run(received(line, size, neighbours, results=results), monkeypatch)
    assert len(world.got) == results
    assert not world.failed
    assert max(world.got.values()) < 1.2 * results * size / line + 1
    assert world.received < 1.05 * results * size
    assert world.brought < 1.15 * results * size
    assert not world.results._downloads._late


def test_small_results_come_as_many_at_once_as_a_fast_line_has_room_for_also_in_the_next_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = run(received(FAST, 54_000, 20, results=30), monkeypatch)
    assert len(world.got) == 30
    assert max(world.got.values()) < QUICK_SECONDS
    assert world.results._demand.places == MOST_AT_ONCE


def test_on_a_slow_line_few_results_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = run(received(60_000, 100_000, 20, results=20), monkeypatch)
    assert world.results._demand.places == AT_ONCE
