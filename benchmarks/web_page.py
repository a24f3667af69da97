"""How well the web page carries a long run of many members, in a real Chromium; and the pictures of its how-to page.

python -m benchmarks.web_page [--steps 10000] [--members 64] [--json] [--pictures FOLDER]

events, read_cpu_seconds   lines in all event files, and the processor time to read them and enter them in a view
document_bytes, gzip_bytes what a new visitor is sent
increment_bytes            what a visitor is sent when every member has trained one more step
load_seconds               from opening the page until its chart is drawn
frame_ms                   median and 95th percentile between two frames while the loss curve is moved, with the mean curve and
                           its band, and then with a line for each member
The run is made up: losses that fall, a member that is dropped and returns, one that is ejected.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from psyche_core.observer.documents import run_document
from psyche_core.observer.run_view import RunView
from psyche_core.telemetry.event_files import EventFolderReader
from psyche_core.telemetry.events import StepTrained

ROUND_SECONDS = 12.0
EPOCHS = 8
RUN = "first-light"
PICTURES = (
    ("run", "light", 1280, 1460),
    ("run-dark", "dark", 1280, 900),
    ("member", "light", 1280, 900),
    ("phone", "dark", 390, 844),
)

FRAMES = """async (frames) => {
  const chart = psyche.charts.loss;
  chart.scale(0.2);
  const found = [];
  let last = performance.now();
  for (let frame = 0; frame < frames; frame++) {
    chart.move(frame % 60 < 30 ? 0.03 : -0.03);
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    found.push(now - last);
    last = now;
  }
  chart.reset();
  return found.sort((a, b) => a - b);
}"""


def write_run(folder: Path, *, steps: int, members: int, began: float) -> None:
    """Event files of a run of so many steps."""
    chance = random.Random(3)
    rounds = max(1, steps // EPOCHS)
    ids = [chance.randbytes(32).hex() for _ in range(members)]
    out_at, away = int(steps * 0.7), range(int(steps * 0.3), int(steps * 0.42))
    with (folder / "server.jsonl").open("w") as stream:
        tell(stream, began, "started", role="server", id="ff" * 32, run_id=RUN, address="x", total_steps=steps * 5 // 4)
        for step in range(1, steps + 1):
            moment, epoch, height = began + 60 + step * ROUND_SECONDS, (step - 1) // rounds, (step - 1) % rounds
            healthy = members - (step in away) - (step > out_at)
            if height == 0:
                tell(stream, moment - 9, "phase_changed", phase="Warmup", epoch=epoch, step=step, clients=healthy)
            for phase, later in (("RoundTrain", 0), ("RoundWitness", 8)):
                tell(stream, moment + later, "phase_changed", phase=phase, epoch=epoch, step=step, clients=healthy, height=height)
            if step == out_at:
                tell(stream, moment, "member_exited", epoch=epoch, member=ids[-1][:8], why="ejected")
            if height == rounds - 1:
                tell(stream, moment + 10, "epoch_signed", step=step, sha256=digest(epoch))
    for number, key in enumerate(ids, start=1):
        with (folder / f"client-{number}.jsonl").open("w") as stream:
            last = out_at if number == members else steps
            write_member(
                stream, number, key, range(1, last + 1), away if number == 3 else range(0), chance, began, steps, members
            )


def write_member(
    stream: TextIO,
    number: int,
    key: str,
    trained: range,
    away: range,
    chance: random.Random,
    began: float,
    steps: int,
    members: int,
) -> None:
    """One member's events."""
    rounds = max(1, steps // EPOCHS)
    tell(stream, began + 5, "started", role="client", id=key, run_id=RUN, address="203.0.113.7:20000")
    tell(stream, began + 6, "model_loading", model="HfLlama")
    tell(stream, began + 20, "model_loaded", parameters=135_000_000, seconds=14.0)
    tell(stream, began + 21, "joined", run_id=RUN)
    rounds_played = 0
    for step in trained:
        moment, epoch = began + 60 + step * ROUND_SECONDS, (step - 1) // rounds
        if away and step == away[0]:
            tell(stream, moment, "dropped", epoch=epoch, height=3, why="silent", returns=True)
        if away and step == away[-1]:
            tell(stream, moment, "model_sync", step=step, pieces_done=0, pieces_total=8, bytes_received=0)
            tell(stream, moment + 4, "came_back", epoch=epoch)
        if step in away:
            continue
        loss = 2.9 + 7.6 * math.exp(-step / (steps * 0.05)) + 1.2 * math.exp(-step / (steps * 0.4)) + chance.gauss(0, 0.07)
        tell(
            stream, moment + 6, "step_trained", epoch=epoch, step=step, loss=loss, tokens=8192, seconds=5.0, payload_bytes=812_345
        )
        accepted = members - (chance.random() < 0.03)
        tell(stream, moment + 9, "step_applied", epoch=epoch, step=step, accepted=accepted, trained=members, seconds=0.4)
        rounds_played += 1
        if step % 4 == 0:
            totals = {"bytes_sent": rounds_played * 2_400_000, "bytes_received": rounds_played * 812_345 * members}
            tell(stream, moment + 10, "network_totals", **totals, peers=members - 1)
        if number == 1 and step % max(1, steps // 40) == 0:
            tell(stream, moment + 11, "validated", step=step, loss=loss + 0.08)
        if step % rounds == 0:
            tell(stream, moment + 10, "epoch_digest", epoch=epoch, step=step, sha256=digest(epoch))
            if number == 1:
                tell(stream, moment + 11, "checkpoint_saved", step=step, path=f"checkpoints/step-{step}")
                tell(stream, moment + 11, "checkpoint_stored", step=step, location="hf://example/first-light")


def digest(epoch: int) -> str:
    return random.Random(epoch).randbytes(32).hex()


def tell(stream: TextIO, moment: float, event: str, **fields: object) -> None:
    stream.write(json.dumps({"event": event, "time": round(moment, 3), **fields}) + "\n")


@contextlib.contextmanager
def page_of(folder: Path) -> Iterator[str]:
    """The address of a page that shows a folder of runs, once it has read them."""
    command = [sys.executable, "-m", "psyche_core", "web", "--events", str(folder), "--web-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"page is at (\S+)", process.stderr.readline())
        assert found is not None, "the page could not be served"
        try:
            yield found[1]
        finally:
            process.terminate()


def wait_until_read(page: Any, url: str) -> None:
    page.goto(url)
    while not page.evaluate("async () => { const told = await (await fetch('api/runs')).json(); return told.runs[0]?.ready; }"):
        page.wait_for_timeout(500)


def measure(folder: Path, page: Any, url: str) -> dict[str, object]:
    view, events, began = RunView(), 0, time.process_time()
    for told in EventFolderReader(folder / RUN).read():
        view.handle(told.source, told.time, told.event)
        events += 1
    seconds = time.process_time() - began
    document = json.dumps(run_document(view), separators=(",", ":")).encode()
    before, last = view.version, view.last_step
    for member in list(view.roster):
        view.handle(member.name, view.newest, StepTrained(EPOCHS, last + 1, 3.0, 8192, 5.0, 812_345))
    increment = json.dumps(run_document(view, since=before), separators=(",", ":")).encode()
    began = time.monotonic()
    page.goto(f"{url}run?run={RUN}")
    page.wait_for_selector("#loss canvas")
    loaded = time.monotonic() - began
    mean = page.evaluate(FRAMES, 240)
    page.get_by_label("Each member").check()
    page.locator("#loss .u-series").nth(8).wait_for(state="attached")
    each = page.evaluate(FRAMES, 240)
    return {
        "events": events,
        "read_cpu_seconds": round(seconds, 1),
        "document_bytes": len(document),
        "gzip_bytes": len(gzip.compress(document, 6)),
        "increment_bytes": len(increment),
        "load_seconds": round(loaded, 2),
        "frame_ms": {"mean": percentiles(mean), "each member": percentiles(each)},
    }


def percentiles(ascending: list[float]) -> list[float]:
    """Median and 95th percentile."""
    return [round(ascending[len(ascending) * share // 100], 1) for share in (50, 95)]


def take_pictures(browser: Any, url: str, folder: Path) -> None:
    for name, scheme, width, height in PICTURES:
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(f"{url}{'member' if name == 'member' else 'run'}?run={RUN}&member=client-3")
        page.wait_for_selector("#loss canvas")
        page.wait_for_timeout(1000)
        page.screenshot(path=folder / f"web-{name}.png")
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pictures", type=Path)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        (folder / RUN).mkdir()
        write_run(folder / RUN, steps=given.steps, members=given.members, began=time.time() - 60 - given.steps * ROUND_SECONDS)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        with page_of(folder) as url:
            page = browser.new_page(viewport={"width": 1360, "height": 900})
            wait_until_read(page, url)
            if given.pictures is not None:
                take_pictures(browser, url, given.pictures)
            else:
                found = measure(folder, page, url)
                print(json.dumps(found) if given.json else "\n".join(f"{key:18} {value}" for key, value in found.items()))
        browser.close()


if __name__ == "__main__":
    main()
