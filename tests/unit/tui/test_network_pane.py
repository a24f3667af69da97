"""What the tab Network says of members with which no connection is kept."""

from __future__ import annotations

import pytest
from rich.text import Text

from psyche_core.telemetry import events as telemetry
from psyche_core.tui.lines import EventLine
from psyche_core.tui.panes.network_pane import totals
from psyche_core.tui.watched import Watched

NEAR = (telemetry.PathOfPeer("aaaaaaaa", "direct", 12.0), telemetry.PathOfPeer("bbbbbbbb", "none"))


def told(*events: telemetry.PeerPaths) -> Text:
    """The totals after each of these was told by another member."""
    screen = Watched(of_member=True)
    for number, event in enumerate(events):
        screen.enter(EventLine(f"client-{number}", 100.0, event))
    return totals(screen, 105.0)


@pytest.mark.parametrize(
    ("events", "line"),
    [
        ([telemetry.PeerPaths(NEAR, over_others=236)], "peers: 1 direct, 1 not reached, 236 over others (5 s ago)"),
        ([telemetry.PeerPaths(NEAR, over_others=2)] * 2, "peers: 2 direct, 2 not reached, 4 over others (5 s ago)"),
        ([telemetry.PeerPaths(NEAR)], "peers: 1 direct, 1 not reached (5 s ago)"),
    ],
)
def test_members_over_others_are_a_count_without_a_colour(events: list[telemetry.PeerPaths], line: str) -> None:
    text = told(*events)
    assert text.plain.splitlines()[-1] == line
    assert not text.spans
