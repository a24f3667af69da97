"""Where models come from and go to, with real processes: from members, from a member's own disk, from a store, and repaired."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from live_run import RUN_ID, RUN_KEYS, THREE, StartRun
from psyche_core.storage.checkpoint_names import checkpoints
from psyche_core.telemetry.events import CheckpointStored, EpochDigest, ModelLoaded, PhaseChanged, Problem, Resynced, StepTrained
from psyche_core.training.checkpoints.manifest import read_manifest, verify
from psyche_core.training.checkpoints.private_state import private_path

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(300)]


@pytest.fixture
def run_keys() -> Mapping[str, object]:
    return {**RUN_KEYS, "rounds_per_epoch": 6, "cooldown_time": 2}


def test_a_joiner_without_the_model_gets_all_of_it_from_the_others_and_saves_whole_checkpoints(
    live_run: StartRun, tmp_path: Path
) -> None:
    """Issue of the reference: a joiner's checkpoint lacks configuration and tokenizer."""
    run = live_run(total_steps=30)
    for name in THREE:
        run.start_client(name)
    run.wait(lambda: run.told("client-1", EpochDigest))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run.start_client("late", "--base", elsewhere, "--cache-dir", tmp_path / "cache")
    run.wait_for_steps("late", 3)
    run.wait_for_end()
    run.assert_kept_its_promises(steps=30, finishers=(*THREE, "late"))
    assert run.told("late", Resynced)
    assert any("no copy of the model" in problem.message for problem in run.told("late", Problem))
    newest = checkpoints(tmp_path / "late-checkpoints", RUN_ID)[-1]
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"} <= {p.name for p in newest.iterdir()}
    manifest = read_manifest(newest)
    assert manifest is not None
    assert (manifest.run_id, manifest.step) == (RUN_ID, 30)
    verify(newest, manifest)


@pytest.mark.soak
def test_a_restarted_client_goes_on_from_its_own_checkpoint(live_run: StartRun) -> None:
    run = live_run(total_steps=36)
    for name in THREE:
        run.start_client(name)
    run.wait(lambda: run.told("client-2", EpochDigest))
    killed = time.time()
    run.kill("client-2")
    run.start_again("client-2")
    run.wait_for_steps("client-2", 3, after=killed)
    run.wait_for_end()
    run.assert_kept_its_promises(steps=36, finishers=THREE)
    loaded = run.told("client-2", ModelLoaded, after=killed)
    assert loaded[0].step is not None
    assert loaded[0].step >= 6
    private = private_path(run.folder / "client-2-checkpoints", RUN_ID)
    assert private.is_file()
    assert not any("without it" in problem.message for problem in run.told("client-2", Problem))


@pytest.mark.soak
def test_when_all_members_are_gone_the_next_epoch_begins_with_the_stored_model(live_run: StartRun) -> None:
    """Killed in a cooldown, so that nothing trained is lost: who comes next has nothing but the place the run refers to."""
    run = live_run(total_steps=18, cooldown_time=6, server=("--reconnect-seconds", 1))
    (run.config / "models").mkdir()  # where members say that relative paths start
    for name in THREE:
        run.start_client(name, "--hub-repo", "models")
    stored = run.wait(lambda: [event for name in THREE for event in run.told(name, CheckpointStored)])[-1]
    run.wait(lambda: all(run.told(name, EpochDigest) for name in THREE))
    ended = run.told("client-1", EpochDigest)[-1]
    run.kill(*THREE)
    (place,) = (run.config / "models").iterdir()
    assert stored.step == ended.step == 6
    assert place.name == f"{RUN_ID}-step6"

    begun = time.time()
    others = ("client-4", "client-5", "client-6")
    for name in others:
        run.start_client(name)
    run.wait_for_steps("client-4", 1, after=begun)
    run.wait_for_end()
    run.assert_kept_its_promises(steps=18, finishers=others)
    assert run.told("client-4", StepTrained)[0].step == 7
    phases = [event.phase for event in run.told("client-4", PhaseChanged)]
    assert "Warmup" in phases
    # Who comes before the epoch begins looks at its model then too, and takes the stored one when it does.
    assert [run.told(name, ModelLoaded)[-1].step for name in others] == [6, 6, 6], "the stored model"


FLIPPING = '''
"""DisTrO whose masters lose a bit once, in the process that is told so."""

import os

import torch

from psyche_core.hookspecs import OptimizerRegistration, hookimpl

PSYCHE_PLUGIN_API = "1.0"


def create(context):
    from psyche_optim_distro.optimizer import DistroOptimizer

    class Flipping(DistroOptimizer):
        def apply(self, step, payloads, **rest):
            super().apply(step, payloads, **rest)
            if str(step) == os.environ.get("FLIP_AFTER_STEP"):
                values = next(iter(self.masters.values())).view(-1).view(torch.int32)
                values[7] ^= 1

    return Flipping(context.settings, context.model)


@hookimpl
def psyche_register_optimizers():
    from psyche_optim_distro.settings import DistroSettings

    return [OptimizerRegistration(name="Flipping", summary="DisTrO with a flipped bit", settings=DistroSettings, create=create)]
'''


@pytest.fixture
def flipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed plugin `optimizer.Flipping`, in a folder that all processes of the test see."""
    site = tmp_path / "site"
    info = site / "psyche_flipping-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "psyche_flipping.py").write_text(FLIPPING)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: psyche-flipping\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[psyche.plugins]\noptimizer.Flipping = psyche_flipping\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")])))


@pytest.mark.soak  # tests/integration/test_model_repair.py repairs each time
@pytest.mark.usefixtures("flipping")
def test_a_flipped_weight_is_noticed_and_repaired_in_the_same_epoch(live_run: StartRun) -> None:
    run = live_run(total_steps=24, rounds_per_epoch=24, optimizer="Flipping")
    for name in THREE:
        run.start_client(name, inside=("env", "FLIP_AFTER_STEP=4") if name == "client-2" else ())
    run.wait(lambda: run.told("client-2", Resynced))
    run.wait_for_end()
    run.assert_kept_its_promises(steps=24, finishers=THREE)
    warned = [problem.message for problem in run.told("client-2", Problem)]
    assert any("differs from" in message for message in warned), warned
    assert [event.epoch for event in run.told("client-2", Resynced)] == [0], "in the same epoch"
    assert len(run.told("client-2", ModelLoaded)) == 1
    for name in ("client-1", "client-3"):
        assert not run.told(name, Resynced)
