"""Make the pictures of the full screen in docs/how-to from the event files of a run, as far as a step.

    psyche testnet start --num-clients 3 --config-path examples/local_testnet --out runs/screen
    python tools/screen_pictures.py runs/screen --step 250

Textual's SVG: text stays text, and no terminal is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import queue
from pathlib import Path

from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.event_files import EventFolderReader, SourcedEvent, find_runs
from psyche_core.tui.app import RunScreen
from psyche_core.tui.lines import EventLine, FeedLine, Request

FOLDER = Path(__file__).parents[1] / "docs" / "how-to"
SIZE = (100, 28)
PICTURES = {"1": "screen-run.svg", "2": "screen-members.svg"}
"""The key of a tab -> its picture."""


def told(folder: Path, *, step: int) -> list[SourcedEvent]:
    """What happened until a step was applied everywhere, by time."""
    (place,) = find_runs(folder).values()
    told = sorted(EventFolderReader(place).read(), key=lambda each: each.time)
    ends = [
        number for number, each in enumerate(told) if isinstance(each.event, telemetry.StepApplied) and each.event.step == step
    ]
    return told[: ends[-1] + 1]


async def draw(events: list[SourcedEvent]) -> None:
    """Write the pictures."""
    feed: queue.Queue[FeedLine] = queue.Queue()
    for each in events:
        feed.put(EventLine(each.source, each.time, each.event))
    asked: list[Request] = []
    screen = RunScreen("testnet", title="", feed=feed, ask=asked.append, clock=lambda: events[-1].time + 0.5)
    screen.animation_level = "none"
    async with screen.run_test(size=SIZE) as pilot:
        for key, name in PICTURES.items():
            await pilot.press(key)
            for _ in range(5):
                screen.take()
                await pilot.pause(0.2)
            picture = screen.export_screenshot(title="psyche testnet start --logs tui")
            (FOLDER / name).write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n")
        screen.exit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(draw(told(given.folder, step=given.step)))
