"""Relays and routers fail: members lose no peer for good. Minutes long; the figures are those of the table in docs."""

from __future__ import annotations

import json
import shutil
import time
from functools import partial

import pytest

from tests.nat.lab import Lab
from tests.nat.meeting import Meeting, Voice

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

AFTER_SECONDS = 8.0
"""How long a change is watched after everything is well again, so that gaps that end are noted."""


needs_conntrack = pytest.mark.skipif(
    shutil.which("conntrack") is None, reason="routers forget connections by conntrack (Debian: apt install conntrack)"
)


def met(lab: Lab, meeting: Meeting, one: str, other: str, path: str) -> tuple[Voice, Voice]:
    """Two members that have met on the expected path."""
    pair = meeting.join(lab.host(one, "one")), meeting.join(lab.host(other, "other"))
    meeting.until_paths([(*pair, path)])
    for voice, peer in zip(pair, ("other", "one"), strict=True):
        meeting.until(partial(voice.of, "heard", peer), "a message")
    return pair


def gaps_since(pair: tuple[Voice, Voice], moment: float) -> float:
    """The longest silence that either told of."""
    return max([each["seconds"] for voice in pair for each in voice.of("gap") if each["at"] > moment], default=0.0)


def note(name: str, gap: float, pair: tuple[Voice, Voice], moment: float) -> None:
    """One line for the table."""
    paths = [(round(each["at"] - moment, 1), each["path"]) for each in pair[0].of("path") if each["at"] > moment]
    print(json.dumps({"fault": name, "longest_silence_s": gap, "paths_of_one": paths}))


def relay_away(lab: Lab, meeting: Meeting, path: str, seconds: float) -> None:
    """The relay is killed and comes back after a while."""
    pair = met(lab, meeting, "sym", "sym" if path == "relayed" else "full", path)
    moment = time.time()
    meeting.stop_relay()
    time.sleep(seconds)
    meeting.start_relay()
    meeting.until_paths([(*pair, path)], seconds=90)
    settle(meeting, pair)
    note(f"relay away for {seconds:g} s, {path}", gaps_since(pair, moment), pair, moment)
    if path == "direct":
        assert gaps_since(pair, moment) < 5


def settle(meeting: Meeting, pair: tuple[Voice, Voice]) -> None:
    """Wait until messages come through without a gap for some seconds."""
    quiet_since, before = time.monotonic(), sum(len(voice.of("gap")) for voice in pair)

    def quiet() -> bool:
        nonlocal quiet_since, before
        now = sum(len(voice.of("gap")) for voice in pair)
        connected = all("none" not in voice.paths.values() for voice in pair)
        if now != before or not connected:
            quiet_since, before = time.monotonic(), now
        return time.monotonic() - quiet_since > AFTER_SECONDS

    meeting.until(quiet, "messages without a gap", seconds=150)


@pytest.mark.parametrize("seconds", [1, 10, 60])
@pytest.mark.parametrize("path", ["relayed", "direct"])
def test_a_relay_that_is_away(lab: Lab, meeting: Meeting, path: str, seconds: float) -> None:
    relay_away(lab, meeting, path, seconds)


@needs_conntrack
def test_a_router_forgets_its_mappings(lab: Lab, meeting: Meeting) -> None:
    pair = met(lab, meeting, "port", "port", "direct")
    moment = time.time()
    router = pair[0].host.router
    assert router is not None
    router.forget_mappings()
    settle(meeting, pair)
    note("mapping lost", gaps_since(pair, moment), pair, moment)
    meeting.until_paths([(*pair, "direct")], seconds=90)


def test_udp_is_cut_for_a_minute(lab: Lab, meeting: Meeting) -> None:
    pair = met(lab, meeting, "port", "port", "direct")
    moment = time.time()
    router = pair[0].host.router
    assert router is not None
    router.cut_udp()
    meeting.until_paths([(*pair, "relayed")], seconds=60)
    cut_for = 60 - (time.time() - moment)
    time.sleep(max(0.0, cut_for))
    router.mend_udp()
    mended = time.time()
    meeting.until_paths([(*pair, "direct")], seconds=150)
    note("UDP cut for 60 s", gaps_since(pair, moment), pair, moment)
    print(json.dumps({"direct_again_after_s": round(time.time() - mended, 1)}))


@needs_conntrack
def test_the_address_outside_changes(lab: Lab, meeting: Meeting) -> None:
    pair = met(lab, meeting, "port", "port", "direct")
    moment = time.time()
    router = pair[0].host.router
    assert router is not None
    router.new_outside_address()
    settle(meeting, pair)
    meeting.until_paths([(*pair, "direct")], seconds=150)
    note("new outside address", gaps_since(pair, moment), pair, moment)
