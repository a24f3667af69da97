"""Every tab, character by character at 80x24: what is drawn is compared with the files in `screens/`.

UPDATE_SCREENS=1 writes them anew; look at the difference before it is committed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from textual.color import Color
from textual.pilot import Pilot
from textual.widgets import TabbedContent

from psyche_core.coordinator.commands import SetFutureEpochRates
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.tui.app import TABS
from psyche_core.tui.lines import StateLine
from psyche_core.tui.panes.coordinator_pane import slot_rows
from psyche_core.verification.standing import Standing
from tests.unit.coordinator.conftest import Play, make_state, member
from tests.unit.tui.conftest import BEGAN, Shown
from tests.unit.tui.playing import SMALL, play, settled, until

NewScreen = Callable[[str], Shown]
FOLDER = Path(__file__).parent / "screens"
SETTLED = 2
"""Times that a screen must look the same before it is taken."""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The log shows the time of here."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def voted_state() -> CoordinatorState:
    """Round 2 of a run of four members: two statements of the round before are here, one member saw less, one is dropped."""
    playing = Play(make_state(init_min_clients=4, min_clients=2, total_steps=100))
    playing.do(SetFutureEpochRates(earning_total_shared=1000, slashing_per_client=50))
    playing.start(4)
    playing.play_round()
    playing.play_round(seen=[0, 1, 2])
    first, second, *_ = playing.elected
    playing.do(playing.statement(first), after=1)
    playing.do(playing.statement(second, seen=[0, 1]))
    playing.withdraw(3)
    return playing.state


def test_who_recomputes_and_who_has_strikes_is_seen() -> None:
    state = voted_state()
    one, two, *others = state.epoch.clients
    clients = (replace(one, standing=Standing(1)), replace(two, standing=Standing(2)), *others)
    rounds = (*state.epoch.rounds[:-1], replace(state.epoch.rounds[-1], recomputing=(1,)))
    rows = slot_rows(replace(state, epoch=replace(state.epoch, clients=clients, rounds=rounds)), own="")
    seen = [(str(cells[2]), str(cells[3])) for _, cells in rows]
    assert seen[0] == ("healthy · 1 strike", "witness")
    assert seen[1] == ("healthy · 2 strikes", "verifier")
    assert seen[3][0] == "left"


def told(shown: NewScreen, kind: str) -> Shown:
    screen = shown(kind)
    screen.train(ids=[member(number).signer.hex() for number in range(4)])
    screen.tell("client-1", telemetry.StepFigures(40, 0.00025, 24.9, 0.6, 1.5, 12288, 491520, 6000.0, 0.75), at=123.5)
    if kind in ("client", "server"):
        screen.feed.put(StateLine(BEGAN + 124, voted_state()))
    return screen


async def drawn(screen: Shown, pilot: Pilot[None]) -> str:
    """The screen once it does not change any more."""
    seen, same = "", 0
    while same < SETTLED:
        await settled(screen, pilot)
        before, seen = seen, screen.text
        same = same + 1 if seen == before else 0
    return seen


@pytest.mark.parametrize("kind", sorted(TABS))
def test_every_tab_looks_as_it_did(shown: NewScreen, kind: str) -> None:
    screen = told(shown, kind)
    tabs: list[str] = []

    async def steps(pilot: Pilot[None]) -> None:
        for number, tab in enumerate(TABS[kind], 1):
            await pilot.press(str(number))
            await until(pilot, lambda tab=tab: screen.app.query_one(TabbedContent).active == tab.lower())  # type: ignore[misc]
            tabs.append(f"---- {tab}\n{await drawn(screen, pilot)}\n")

    play(screen, steps, size=SMALL)
    file = FOLDER / f"{kind}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text("".join(tabs))
    assert "".join(tabs) == file.read_text()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "server" else pytest.mark.soak) for kind in sorted(TABS)]
)
def test_without_colour_nothing_is_coloured_and_what_is_chosen_is_reversed(
    shown: NewScreen, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = told(shown, kind)
    reversed_words: dict[str, str] = {}

    async def steps(pilot: Pilot[None]) -> None:
        for number, tab in enumerate(TABS[kind], 1):
            await pilot.press(str(number))
            await until(pilot, lambda tab=tab: screen.app.query_one(TabbedContent).active == tab.lower())  # type: ignore[misc]
            await drawn(screen, pilot)
            words = []
            for strip in screen.app.screen._compositor.render_strips():
                for layer in screen.app._filters:  # what is sent to the terminal
                    strip = strip.apply_filter(layer, Color(0, 0, 0)) if layer.enabled else strip
                for segment in strip:
                    style = segment.style
                    assert style is not None
                    for colour in (style.color, style.bgcolor):
                        assert colour is None or colour.is_default, f"{tab} of {kind}: {segment}"
                    words += [segment.text.strip()] if style.reverse else []
            reversed_words[tab] = " ".join(words)

    play(screen, steps, size=SMALL)
    for number, tab in enumerate(TABS[kind], 1):
        assert f"{number} {tab}" in reversed_words[tab], "the tab that is seen"
    if "Members" in TABS[kind]:
        assert "client-1" in reversed_words["Members"], "the row under the cursor"
        assert "client-2" not in reversed_words["Members"]
