"""The screen by textual's pilot: every tab at 80x24 and at 200x60, keys, questions, hostile text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from psyche_core.telemetry import events as telemetry
from psyche_core.tui.app import TABS
from psyche_core.tui.lines import EndLine, Request
from tests.unit.tui.conftest import Shown
from tests.unit.tui.playing import LARGE, SMALL, play, settled, until

NewScreen = Callable[[str], Shown]
SEEN = {
    "Run": ("loss 3.2", "phase", "step", "40 of 100", "efficiency", "tokens/s", "⠉"),
    "Members": ("3 members", "client-1", "client-2", "client-3", "healthy", "3.2"),
    "Coordinator": ("no state of the coordinator",),
    "Network": ("direct", "relayed", "12 ms", "1.0 kB/s"),
    "Rewards": ("earned", "client-1"),
    "Log": ("trained step 40", "warning: the disk is nearly full"),
}


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("kind", sorted(TABS))
def test_every_tab_shows_what_it_is_for(shown: NewScreen, kind: str, size: tuple[int, int]) -> None:
    screen = shown(kind)
    screen.train()

    async def steps(pilot: Pilot[None]) -> None:
        for number, tab in enumerate(TABS[kind], 1):
            await pilot.press(str(number))
            await settled(screen, pilot)
            for _ in range(100):  # a pane that is shown for the first time is laid out before it is filled
                missing = [words for words in SEEN[tab] if words not in screen.text]
                if not missing:
                    break
                await settled(screen, pilot)
            assert not missing, f"{tab} of {kind} lacks {missing}:\n{screen.text}"
            assert max(map(len, screen.text.splitlines())) <= size[0]

    play(screen, steps, size=size)


def test_the_whole_tab_run_fits_into_the_smallest_usual_terminal(shown: NewScreen) -> None:
    screen = shown("testnet")
    screen.train()

    async def steps(pilot: Pilot[None]) -> None:
        assert "here" in screen.text
        assert screen.app.pane.max_scroll_y == 0, screen.text

    play(screen, steps)


def test_closing_asks_first_and_tells_the_program(shown: NewScreen) -> None:
    screen = shown("client")

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("q")
        await until(pilot, lambda: "Close this screen?" in screen.text)
        await pilot.press("n")
        await until(pilot, lambda: "Close this screen?" not in screen.text)
        assert not screen.asked
        await pilot.press("q")
        await until(pilot, lambda: "Close this screen?" in screen.text)
        await pilot.press("y")
        await until(pilot, lambda: not screen.app.is_running)

    play(screen, steps)
    assert screen.asked == [Request("leave")]


def test_ctrl_c_asks_the_program_and_leaves_the_screen(shown: NewScreen) -> None:
    screen = shown("client")

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+c")
        await until(pilot, lambda: bool(screen.asked))
        assert screen.app.is_running

    play(screen, steps)
    assert screen.asked == [Request("interrupt")]


def test_the_owner_pauses_expels_after_a_question_and_updates(shown: NewScreen) -> None:
    screen = shown("server")
    screen.train()

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p", "2")
        await settled(screen, pilot)
        await until(pilot, lambda: "client-2" in screen.text)
        await pilot.press("down", "x")
        await until(pilot, lambda: "Expel client-2 from the run?" in screen.text)
        await pilot.press("n")
        await until(pilot, lambda: "Expel client-2 from the run?" not in screen.text)
        assert screen.asked == [Request("pause")]
        await pilot.press("x")
        await until(pilot, lambda: "Expel client-2 from the run?" in screen.text)
        await pilot.press("y")
        await until(pilot, lambda: len(screen.asked) == 2)
        await pilot.press("u")
        await until(pilot, lambda: "Update the run's configuration?" in screen.text)
        await pilot.press("y")
        await until(pilot, lambda: len(screen.asked) == 3)

    play(screen, steps)
    assert screen.asked == [Request("pause"), Request("expel", "bb" * 32), Request("update")]


def test_only_a_server_has_the_owners_keys(shown: NewScreen) -> None:
    screen = shown("testnet")
    screen.train()

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p", "2", "x", "u")

    play(screen, steps)
    assert screen.asked == []


def test_the_log_is_filtered_by_words_and_level(shown: NewScreen) -> None:
    screen = shown("testnet")
    screen.train()

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("5", "slash", *"trained", "space", *"client-2", "enter")
        await settled(screen, pilot)
        await until(pilot, lambda: "client-2: trained step 40" in screen.text)
        assert "client-1: trained" not in screen.text
        assert "applied" not in screen.text
        await pilot.press("slash", "ctrl+u", "enter", "l")
        await settled(screen, pilot)
        await until(pilot, lambda: "trained step" not in screen.text and "the disk is nearly full" in screen.text)
        assert "trained step" not in screen.text

    play(screen, steps)


def test_text_of_others_cannot_colour_or_mark_up(shown: NewScreen) -> None:
    screen = shown("testnet")
    screen.tell("[bold]x\x1b[31m", telemetry.Started("client", "[red]" + "\x1b" * 3, "run\x1b]0;title\x07", "[link=x]"))
    screen.tell("[bold]x\x1b[31m", telemetry.Problem("warning", "\x1b[2J[bold]gone[/nothing]"))

    async def steps(pilot: Pilot[None]) -> None:
        for number in range(1, 6):
            await pilot.press(str(number))
            await settled(screen, pilot)
            assert "\x1b" not in screen.text
            assert "\x07" not in screen.text
        await until(pilot, lambda: "\\x1b[2J[bold]gone[/nothing]" in screen.text)

    play(screen, steps)


def test_replicas_that_differ_are_said_on_every_tab(shown: NewScreen) -> None:
    screen = shown("testnet")
    screen.train()
    screen.tell("client-1", telemetry.ReplicasDiffer(0, "00" * 32, "11" * 32, "client-2"))

    async def steps(pilot: Pilot[None]) -> None:
        for number in range(1, 6):
            await pilot.press(str(number))
            await settled(screen, pilot)
            await until(pilot, lambda: "REPLICAS DIFFER" in screen.text)

    play(screen, steps)


def test_the_end_of_the_program_closes_the_screen_and_a_replays_end_does_not(shown: NewScreen) -> None:
    replay, client = shown("replay"), shown("client")
    replay.feed.put(EndLine(stays=True))
    client.feed.put(EndLine())

    async def over(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "the run is over" in replay.text)

    async def closed(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: not client.app.is_running)

    play(replay, over)
    play(client, closed)
