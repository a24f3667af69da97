"""A member that moves to another network: its own address changes, and the router in front of it."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest

from tests.nat.lab import Lab
from tests.nat.meeting import Meeting

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("relay", [None, "disabled"])
def test_a_member_that_moves_is_connected_directly_again(lab: Lab, meeting: Meeting, relay: str | None) -> None:
    """It binds the new address. Without a relay, the others only hear of it by that."""
    moving, other = (meeting.join(lab.host(kind, kind), relay=relay) for kind in ("port", "public"))
    meeting.until_paths([(moving, other, "direct")])
    for voice in (moving, other):
        meeting.until(partial(voice.of, "heard"), "a message")
    moment = time.time()
    lab.move(moving.host, "port")
    meeting.until(lambda: [each for each in moving.of("path") if each["at"] > moment], "the end of the old path")
    meeting.until_paths([(moving, other, "direct")], seconds=90)
    outside = moving.host.outside
    meeting.until(lambda: outside in meeting.published(moving) if relay is None else True, "the new address published")
    paths = [(round(each["at"] - moment, 1), each["path"]) for each in moving.of("path") if each["at"] > moment]
    print(json.dumps({"moved": "no relay" if relay else "relay", "paths": paths}))
