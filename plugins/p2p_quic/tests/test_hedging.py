"""Which sources of a blob are asked at once: progress, trials and places, in made-up seconds."""

from psyche_p2p_quic.blobs.hedging import HedgedRequest, Hedging

HEDGE, LEAST, LONGEST, PAUSE = 0.5, 4096, 3.0, 1.0


class Fetch:
    """Requests to sources that send at given rates, bytes a second, and looks every HEDGE seconds."""

    def __init__(self) -> None:
        self.hedging = Hedging(HEDGE, LEAST, LONGEST, PAUSE)
        self.requests: list[HedgedRequest] = []
        self.now = 0.0

    def ask(self, name: bytes, *, size: int | None = 600_000) -> HedgedRequest:
        request = HedgedRequest(name, self.now, self.now, size=size)
        self.hedging.entered(request, self.requests)
        self.requests.append(request)
        return request

    def look(self, *rates: float) -> HedgedRequest | None:
        self.now += HEDGE
        for request, rate in zip(self.requests, rates, strict=True):
            request.received += int(rate * HEDGE)
        return self.hedging.look(self.requests, self.now)

    @property
    def wants_another(self) -> bool:
        return self.hedging.wants_another(self.requests, self.now)


def test_a_source_that_would_take_long_at_its_pace_is_hedged_whatever_it_sends() -> None:
    """8 KB/s was progress, and held a fetch of 600 kB until its time was over."""
    fetch = Fetch()
    fetch.ask(b"drips")
    assert not fetch.wants_another
    assert fetch.look(8_400) is None
    assert fetch.wants_another


def test_a_source_that_is_soon_done_is_not_hedged() -> None:
    fetch = Fetch()
    fetch.ask(b"fast")
    fetch.look(400_000)
    assert not fetch.wants_another


def test_where_our_own_line_is_slow_the_second_source_is_given_up_after_a_moment() -> None:
    fetch = Fetch()
    fetch.ask(b"first")
    fetch.look(40_000)
    second = fetch.ask(b"second")
    assert fetch.look(20_000, 20_000) is None
    more = fetch.wants_another
    assert not more, "one trial at a time"
    assert fetch.look(20_000, 20_000) is second
    fetch.requests.remove(second)

    tried = []
    for _ in range(12):
        fetch.look(40_000)
        if fetch.wants_another:
            tried.append(fetch.now)
            newest = fetch.ask(b"again")
            fetch.look(20_000, 20_000)
            assert fetch.look(20_000, 20_000) is newest
            fetch.requests.remove(newest)
    assert len(tried) <= 3, "longer and longer pauses"


def test_a_second_source_that_makes_it_faster_is_kept_beside_the_first() -> None:
    fetch = Fetch()
    fetch.ask(b"slow")
    fetch.look(8_400)
    fetch.ask(b"better")
    assert fetch.look(8_400, 100_000) is None
    assert fetch.look(8_400, 100_000) is None


def test_a_source_that_stops_when_another_is_tried_is_the_one_to_go() -> None:
    """Else it would have the other given up, and go on as before."""
    fetch = Fetch()
    liar = fetch.ask(b"liar")
    fetch.look(40_000)
    fetch.ask(b"honest")
    fetch.look(0, 45_000)
    assert fetch.look(0, 45_000) is liar


def test_places_are_made_by_those_that_send_nothing_longest_asked_first() -> None:
    """The one with the fewest bytes was given up: an honest one that was about to answer, and not those that dripped."""
    fetch = Fetch()
    drips = fetch.ask(b"drips")
    fetch.look(2)
    busy = fetch.ask(b"busy", size=None)
    fetch.look(2, 0)
    assert fetch.hedging.makes_place(fetch.requests, fetch.now) is drips
    fetch.requests.remove(drips)
    assert fetch.hedging.makes_place(fetch.requests, fetch.now) is busy


def test_where_all_send_the_one_that_needs_longest_makes_place_now_and_then() -> None:
    fetch = Fetch()
    slowest = fetch.ask(b"slowest")
    fetch.look(10_000)
    fetch.ask(b"slow")
    fetch.look(10_000, 60_000)
    fetch.look(10_000, 60_000)
    assert fetch.hedging.makes_place(fetch.requests, fetch.now) is slowest
    assert fetch.hedging.makes_place(fetch.requests, fetch.now) is None


def test_members_that_had_nothing_are_asked_again_after_longer_and_longer() -> None:
    hedging = Hedging(HEDGE, LEAST, LONGEST, PAUSE)
    asked = [moment / 10 for moment in range(100) if hedging.again_due(moment / 10)]
    assert asked == [1.0, 3.0, 7.0]
