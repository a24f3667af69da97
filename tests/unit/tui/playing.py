"""A screen in textual's test terminal: steps begin once it is built, and it is taken down as the program takes it down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from textual.pilot import Pilot

from tests.unit.tui.conftest import Shown

SMALL, LARGE = (80, 24), (200, 60)


def play(screen: Shown, steps: Callable[[Pilot[None]], Awaitable[None]], *, size: tuple[int, int] = SMALL) -> None:
    """Show the screen, carry the steps out on it, and end it.

    `run_test` takes an app's widgets away while its timers still run; ours draw, and would miss the widgets. A real screen is
    never ended so: `run_async` waits for the end of the loop, which stops the timers first.
    """

    screen.app.animation_level = "none"  # else most of the work is drawing what moves

    async def run() -> None:
        async with screen.app.run_test(size=size) as pilot:
            try:
                await until(pilot, lambda: bool(screen.app.query("#filter")))  # the last part that is built
                await settled(screen, pilot)
                await steps(pilot)
            finally:
                screen.app.exit()
                await until(pilot, lambda: not screen.app.is_running)

    asyncio.run(run())


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Let the screen work until something is so; the test's own time limit ends a wait in vain."""
    while not condition():
        if pilot.app.is_running:
            await pilot.pause(0.02)
        else:
            await asyncio.sleep(0.02)


async def settled(screen: Shown, pilot: Pilot[None]) -> None:
    """Everything is taken in and drawn."""
    screen.app.take()
    await pilot.pause()
    screen.app._drawn = ()
    screen.app.draw()
    await pilot.pause()
