"""What the full screen knows of checks of shares: of states and of events, whatever comes first."""

from __future__ import annotations

from psyche_core.state_events import checks_between
from psyche_core.tui.lines import EventLine, StateLine
from psyche_core.tui.watched import Watched
from tests.unit.coordinator.checked_run import CHEAT, checked_run


def test_a_client_s_screen_counts_and_logs_each_check_once() -> None:
    states, checks = checked_run()
    screen = Watched(of_member=True)
    for time, state in enumerate(states):
        screen.enter(StateLine(float(time), state))
        for source in ("client-1", "client-2"):
            for event in checks_between(states[time - 1], state) if time else ():
                screen.enter(EventLine(source, float(time), event))
    lines = [line for line in screen.log if "share of" in line.text]
    assert len(lines) == len(checks)
    (cheat,) = [member for member in screen.members if member.strikes]
    assert (cheat.id, cheat.strikes) == (states[-1].epoch.clients[CHEAT].id.signer.hex(), 2)
    assert sum(member.checks for member in screen.members) == sum(check.outcome == "passed" for check in checks)
