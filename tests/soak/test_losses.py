"""The network goes away for everybody, disks are full, files are damaged, the server is killed again and again: runs go on."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from small_disks import NoDisks, SmallDisk, small_disk

from cuttable_links import SERVER, LinksUnavailable, cuttable_links
from live_run import THREE, LiveRun, StartRun
from psyche_core.telemetry.events import (
    CheckpointSaved,
    Ended,
    EpochDigest,
    ModelLoaded,
    PhaseChanged,
    Problem,
    StepApplied,
    StepTrained,
)

pytestmark = [pytest.mark.soak, pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(900)]


def test_the_network_is_away_from_everybody_for_twelve_seconds(live_run: StartRun) -> None:
    """Nobody reaches anybody, the server no more than the members; nobody is told."""
    with contextlib.ExitStack() as stack:
        try:
            links = stack.enter_context(cuttable_links())
        except LinksUnavailable as reason:
            pytest.skip(f"needs network namespaces: {reason}")

        server = ("--reconnect-seconds", 60)
        run: LiveRun = stack.enter_context(contextlib.closing(live_run(total_steps=40, host=SERVER, server=server)))
        for name in THREE:
            run.start_client(name, inside=links.inside(name))
        for name in THREE:
            run.wait_for_steps(name, 5)
        for name in THREE:
            run.note("disturb", name)
            links.cut(name)
        time.sleep(12)  # the fault itself
        mended = time.time()
        for name in THREE:
            links.mend(name)
        for name in THREE:
            run.wait_for_steps(name, 3, after=mended)
        run.wait_for_end()
        run.assert_kept_its_promises(steps=40, finishers=THREE)


def test_a_server_killed_again_and_again_goes_on_where_it_was(live_run: StartRun, tmp_path: Path) -> None:
    run: LiveRun = live_run(total_steps=60, server=("--save-state-dir", tmp_path / "saved"))
    for name in THREE:
        run.start_client(name)
    run.wait_for_steps("client-1", 3)
    for name in THREE:
        run.note("disturb", name)
    for _ in range(5):
        killed = time.time()
        run.kill("server")
        run.start_again("server")
        run.wait_for_steps("client-1", 3, after=killed)
    run.wait_for_end()
    run.assert_kept_its_promises(steps=60, finishers=THREE)


# ------------------------------------------------------------------------------------------------------------------ disks


@pytest.fixture
def disk() -> Iterator[Callable[..., SmallDisk]]:
    """A function that puts a small disk in the place of a folder."""
    with contextlib.ExitStack() as stack:

        def make(folder: Path, *, kilobytes: int) -> SmallDisk:
            try:
                return stack.enter_context(small_disk(folder, kilobytes=kilobytes))
            except NoDisks as reason:
                pytest.skip(f"needs to mount in a namespace of its own: {reason}")

        yield make


def assert_all_ended_alike(run: LiveRun, *, steps: int) -> None:
    """Everybody ended well and with one and the same model."""
    ends = {name: run.told(name, EpochDigest)[-1] for name in THREE}
    assert {end.step for end in ends.values()} == {steps}
    assert len({end.sha256 for end in ends.values()}) == 1, ends
    assert all(run.told(name, Ended)[-1].success for name in THREE)


def test_a_client_whose_disk_is_full_says_so_and_trains_on(live_run: StartRun, disk: Callable[..., SmallDisk]) -> None:
    """Neither journal nor checkpoint finds room; what a member gives the others needs no disk."""
    run: LiveRun = live_run(total_steps=40, rounds_per_epoch=10)
    full = disk(run.folder / "client-2-checkpoints", kilobytes=20_000)
    for name in THREE:
        run.start_client(name, inside=full.inside if name == "client-2" else ())
    run.wait_for_steps("client-2", 3)
    filled = time.time()
    full.fill()
    run.wait_for_end()
    said = [told.message for told in run.told("client-2", Problem, after=filled)]
    assert any("No space left" in sentence for sentence in said), run.log("client-2")
    assert not run.told("client-2", CheckpointSaved, after=filled)
    assert len(run.told("client-2", StepTrained)) > 30, "it took part to the end"
    assert_all_ended_alike(run, steps=40)


def test_a_server_whose_disk_is_full_tells_nobody_what_it_cannot_save_and_goes_on_when_there_is_room(
    live_run: StartRun, disk: Callable[..., SmallDisk], tmp_path: Path
) -> None:
    saved = disk(tmp_path / "saved", kilobytes=2000)
    run: LiveRun = live_run(total_steps=40, server=("--save-state-dir", tmp_path / "saved"), inside=saved.inside)
    for name in THREE:
        run.start_client(name)
    run.wait_for_steps("client-1", 5)
    log = run.folder / "server.log"

    def complained() -> bool:
        saved.fill()
        return re.search("cannot be saved to .* No space left", log.read_text()) is not None

    run.wait(complained)
    told = len(run.told("client-1", PhaseChanged))
    # Who sends something again meanwhile is answered, and so does not notice.
    run.wait(lambda: any("nothing was received" in (run.folder / f"{name}.log").read_text() for name in THREE))
    assert len(run.told("client-1", PhaseChanged)) == told, "members heard of what may be forgotten"
    assert len(re.findall("cannot be saved to .* No space left", log.read_text())) == 1, "a problem that stays is told once"
    for name in THREE:
        run.note("disturb", name)
    saved.free()
    run.wait_for_end()
    run.assert_kept_its_promises(steps=40, finishers=THREE)
    assert "Traceback" not in log.read_text()


def test_with_damaged_files_on_two_disks_the_third_brings_everybody_back(live_run: StartRun) -> None:
    """Bytes are changed in the middle of every checkpoint and journal of two members: they are told apart from whole ones."""
    run: LiveRun = live_run(total_steps=30, rounds_per_epoch=10)
    for name in THREE:
        run.start_client(name)
    run.wait(lambda: all(any(told.step >= 13 for told in run.told(name, StepApplied)) for name in THREE))
    gone = time.time()
    run.kill(*THREE)
    last = max(told.step for name in THREE for told in run.told(name, StepApplied))
    random = Random(11)
    for name in THREE[1:]:
        damaged = 0
        for path in (run.folder / f"{name}-checkpoints").rglob("*"):
            if path.is_file() and path.suffix in (".safetensors", ".bin", ".json") and path.stat().st_size > 64:
                content = bytearray(path.read_bytes())
                for _ in range(8):
                    content[random.randrange(len(content) // 4, len(content))] ^= 1 << random.randrange(8)
                path.write_bytes(content)
                damaged += 1
        assert damaged >= 2, [*(run.folder / f"{name}-checkpoints").rglob("*")]
    for name in THREE:
        run.start_again(name)
    run.wait_for_end()
    first = min(told.step for name in THREE for told in run.told(name, StepTrained, after=gone))
    assert first > last, f"step {last} was applied, then step {first} was trained"
    assert (run.told("client-1", ModelLoaded, after=gone)[0].step or 0) >= last
    assert_all_ended_alike(run, steps=30)
