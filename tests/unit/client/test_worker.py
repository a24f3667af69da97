"""One worker: when it opens its model, what it says of its steps, what it saves, and how a newcomer gets its model."""

from __future__ import annotations

import hashlib
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
import torch

from psyche_core.builtin.dummy_data import DummyData
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.runtime import model_lending
from psyche_core.client.runtime.reports.result_files import ResultFiles
from psyche_core.client.runtime.reports.step_observer import StepObserver
from psyche_core.client.runtime.resources import Resources, ResourcesRequest
from psyche_core.errors import ModelError
from psyche_core.evaluation.spare_time import SpareTime
from psyche_core.p2p import description
from psyche_core.telemetry import events as telemetry
from psyche_core.training.checkpoints.initial_model import NoModelSource
from psyche_core.training.checkpoints.manifest import read_manifest
from psyche_core.training.checkpoints.private_state import private_path
from psyche_core.training.trainer import Trainer
from psyche_core.training.update_statistics import group_of
from psyche_core.types import BatchId
from worker_parts import SHAPES, STEP, TAG, Member, members, run_state


# ------------------------------------------------------------------------------------------------ opening
async def test_who_joins_and_loads_at_once_opens_its_model_once() -> None:
    """A process that comes back while it is still a member is asked to load while it joins (end to end: killed in turn)."""
    opened: list[ResourcesRequest] = []
    finish = anyio.Event()

    class Slow(Member):
        async def _build(self, start: ResourcesRequest) -> Resources:
            opened.append(start)
            await finish.wait()
            return await super()._build(start)

    member = Slow("one", MemoryNetwork(), seed=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(member.worker.prepare, run_state())
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(member.worker.do, act.Load(run_state()))
        await anyio.wait_all_tasks_blocked()
        finish.set()
    assert len(opened) == 1
    assert [type(event) for event in member.told].count(telemetry.ModelLoaded) == 1
    await member.worker.prepare(run_state())
    assert len(opened) == 1, "what is loaded is not opened again"
    member.scratch.close()


@pytest.mark.parametrize("changed", ["model", "fresh"])
async def test_what_was_opened_for_another_model_is_not_taken(changed: str) -> None:
    member = Member("one", MemoryNetwork(), seed=1)
    state = run_state()
    await member.worker.prepare(state)
    llm = state.model.LLM.model_copy(update={"max_seq_len": 8} if changed == "model" else {})
    later = replace(state, model=state.model.model_copy(update={"LLM": llm}))
    await member.worker.do(act.Load(later, fresh=changed == "fresh"))
    assert [type(event) for event in member.told].count(telemetry.ModelLoaded) == 2
    member.scratch.close()


async def test_a_member_that_is_made_slow_waits_after_each_step_it_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[tuple[float, bool]] = []

    class Slow(Member):
        async def _build(self, start: ResourcesRequest) -> Resources:
            return replace(await super()._build(start), training_delay=30.0)

    async def wait(seconds: float) -> None:
        assert isinstance(member.transport, Watched)
        waited.append((seconds, member.transport.published))

    class Watched(MemoryTransport):
        published = False

        async def publish(self, payload: bytes, *, tag: int) -> bytes:
            self.published = True
            return await super().publish(payload, tag=tag)

    member = Slow("one", MemoryNetwork(), seed=1, transport=Watched)
    async with member.transport:
        await member.worker.do(act.Load(run_state()))
        with monkeypatch.context() as patched:
            patched.setattr("psyche_core.client.runtime.worker.anyio.sleep", wait)
            done = await member.worker.do(act.Train(1, 1, (BatchId(0, 0),), TAG))
    member.scratch.close()
    assert isinstance(done, ev.Trained)
    assert waited == [(30.0, False)], "others get its result only after the wait"


async def test_results_and_statistics_of_a_step_reach_who_asked_for_them(tmp_path: Path) -> None:
    class Watching(Member):
        async def _build(self, start: ResourcesRequest) -> Resources:
            files = ResultFiles(self.told.append, member="ab" * 32, own=tmp_path / "own", accepted=tmp_path / "all")
            self.files = files
            observer = StepObserver(files=files, statistics=self.trainer.update_statistics(every=1))
            return replace(await super()._build(start), observer=observer)

    member = Watching("one", MemoryNetwork(), seed=1)
    async with member.transport:
        await member.worker.do(act.Load(run_state()))
        done = await member.worker.do(act.Train(1, 1, (BatchId(0, 0),), TAG))
        assert isinstance(done, ev.Trained)
        assert isinstance(await member.worker.do(act.Apply(1, 1, (done.payload_hash,), own_accepted=True)), ev.Applied)
    await anyio.to_thread.run_sync(member.files.close)
    member.scratch.close()
    own, applied = (next((tmp_path / kind).rglob("*.payload")).read_bytes() for kind in ("own", "all"))
    assert own == applied
    assert hashlib.sha256(own).digest() == done.payload_hash
    measured = [event for event in member.told if isinstance(event, telemetry.OptimizerStatistics)]
    assert all(event.sign_agreement is not None for event in measured), "our own momentum is known"
    assert [event.group for event in measured] == sorted({group_of(name) for name in SHAPES})


# ------------------------------------------------------------------------------------------------ loading and saving
async def test_the_model_is_validated_at_load_only_where_it_is_the_runs() -> None:
    async with members("one") as (one,):
        assert [event.step for event in one.told if isinstance(event, telemetry.Validated)] == [0]
        one.told.clear()
        ready = await one.worker.do(act.Load(run_state(step=5)))
        assert isinstance(ready, ev.ModelReady)
        assert ready.step is None
        assert not [event for event in one.told if isinstance(event, telemetry.Validated)]


async def test_who_wants_to_see_the_first_model_sees_it_before_the_member_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = threading.Event()

    class Spare(SpareTime):
        def wait_until_first_seen(self, seconds: float) -> None:
            waits.set()
            super().wait_until_first_seen(seconds)

    monkeypatch.setattr(model_lending, "FIRST_MODEL_SECONDS", 600.0)
    spare = Spare(lambda: None, lambda: None)
    member = Member("one", MemoryNetwork(), seed=1, spare=spare)
    ready: list[ev.Event] = []

    async def load(step: int) -> None:
        ready.append(await member.worker.do(act.Load(run_state(step=step))))

    with anyio.fail_after(60):
        async with member.transport, anyio.create_task_group() as tasks:
            await load(5)
            assert not waits.is_set(), "this model is not the run's first"
            tasks.start_soon(load, 1)
            await anyio.to_thread.run_sync(waits.wait)
            assert len(ready) == 1
            spare.note_first_seen()
    assert [type(event) for event in ready] == [ev.ModelReady, ev.ModelReady]
    member.scratch.close()


async def test_a_run_id_never_leads_a_checkpoint_out_of_its_folder(tmp_path: Path) -> None:
    def save(directory: Path) -> None:
        directory.mkdir()
        (directory / "config.json").write_text("{}")

    async with members("one") as (one,):
        one.checkpoints = tmp_path / "mine"
        one.trainer.save = save  # type: ignore[method-assign]  # the toy model has no checkpoint format
        await one.worker.do(act.Load(run_state(run_id="../a run")))
        closed = await one.worker.do(act.CloseEpoch(0, 3, 24))
    assert isinstance(closed, ev.EpochClosed)
    assert closed.saved
    names = {path.name for path in (tmp_path / "mine").iterdir()}
    assert names == {".._a_run-step3", "..._a_run-private.safetensors"}, "its checkpoint, and what only it has"
    folder = tmp_path / "mine" / ".._a_run-step3"
    manifest = read_manifest(folder)
    assert manifest is not None
    assert (manifest.run_id, manifest.step, manifest.epoch, manifest.data_index) == ("../a run", 3, 0, 24)


@pytest.mark.parametrize("part", ["private", "rotation"])
async def test_a_checkpoint_that_is_saved_is_not_said_to_be_lost(tmp_path: Path, part: str) -> None:
    """A disk that is full, or a folder that cannot be deleted, after the checkpoint itself lies there whole."""

    def save(directory: Path) -> None:
        directory.mkdir()
        (directory / "config.json").write_text("{}")

    async with members("one") as (one,):
        one.checkpoints = tmp_path
        one.trainer.save = save  # type: ignore[method-assign]  # the toy model has no checkpoint format
        await one.worker.do(act.Load(run_state()))
        kept: list[Path] = []

        def keep(directory: Path) -> None:
            kept.append(directory)
            if part == "rotation":
                raise ModelError("cannot delete the old checkpoint")

        one.worker._resources = replace(one.worker.resources, keep_checkpoints=keep)
        one.worker.checkpoints.use(one.worker.resources, run_id=run_state().run_id, instance=run_state().instance)
        if part == "private":
            private_path(tmp_path, run_state().run_id).mkdir()  # a file cannot take a folder's place
        closed = await one.worker.do(act.CloseEpoch(0, 3, 24))
    assert isinstance(closed, ev.EpochClosed)
    assert closed.saved
    (saved,) = [event for event in one.told if isinstance(event, telemetry.CheckpointSaved)]
    assert kept == [Path(saved.path)], "old ones make room for new ones all the same"
    (problem,) = [event for event in one.told if isinstance(event, telemetry.Problem)]
    assert problem.message.startswith("the checkpoint of step 3 is saved, but ")
    assert {"private": "own state was not saved", "rotation": "cannot delete"}[part] in problem.message


class Newcomer(Member):
    """A member that has nothing to build the model from."""

    folders: list[Path]

    async def _build(self, start: ResourcesRequest) -> Resources:
        if start.folder is None:
            message = "this machine has no copy of the model"
            raise NoModelSource(message)

        self.folders.append(start.folder)
        if (start.folder / "config.json").read_bytes() != b'{"toy": 1}':
            message = "this is no toy"
            raise ModelError(message)
        return Resources(self.trainer, DummyData(sequence_length=16), checkpoints=self.checkpoints)


async def newcomer_and_sharer(stack: AsyncExitStack) -> tuple[Member, Newcomer]:
    network = MemoryNetwork()
    one = Member("one", network, seed=1)
    new = Newcomer("new", network, seed=2)
    new.folders = []
    for member in (one, new):
        stack.callback(member.scratch.close)
        await stack.enter_async_context(member.transport)
    for member, other in ((one, new), (new, one)):
        await member.transport.set_peers({other.key: b""})
    await one.worker.do(act.Load(run_state()))
    return one, new


@pytest.mark.parametrize("false_first", [False, True])
async def test_who_has_nothing_gets_how_the_model_is_built_and_the_model(
    monkeypatch: pytest.MonkeyPatch, false_first: bool
) -> None:
    """Checkpoints of the reference's joiners lack their config: here it comes with the model."""
    async with AsyncExitStack() as stack:
        one, new = await newcomer_and_sharer(stack)
        missing = await new.worker.do(act.Load(run_state()))
        assert isinstance(missing, ev.SourceMissing)

        files = {"config.json": b'{"toy": 1}', "tokenizer.json": b"{}"}
        monkeypatch.setattr(Trainer, "description", property(lambda self: files))
        taken = await one.snapshot()
        true = (taken.description_hash, taken.description_bytes)
        assert true[1] > 0
        lie = description.encode({"config.json": b'{"toy": 2}'})
        false = (await one.transport.publish(lie, tag=TAG), len(lie))
        descriptions = (false, true) if false_first else (true, false)
        work = act.FetchModel(
            taken.step, taken.manifest_hash, taken.manifest_bytes, (one.key,), TAG, build=run_state(), descriptions=descriptions
        )
        ready = await new.worker.do(work)
        assert isinstance(ready, ev.ModelReady), ready
        assert ready.step == STEP
        assert all(torch.equal(tensor, one.masters[name]) for name, tensor in new.masters.items())
        assert len(new.folders) == 1 + false_first
        assert {path.name: path.read_bytes() for path in new.folders[-1].iterdir()} == files
        await new.worker.aclose()
        assert not new.folders[-1].exists()


async def test_when_nobody_says_how_the_model_is_built_that_is_the_reason() -> None:
    async with AsyncExitStack() as stack:
        one, new = await newcomer_and_sharer(stack)
        taken = await one.snapshot()
        assert (taken.description_hash, taken.description_bytes) == (bytes(32), 0), "the toy model cannot be described"
        work = act.FetchModel(taken.step, taken.manifest_hash, taken.manifest_bytes, (one.key,), TAG, build=run_state())
        failed = await new.worker.do(work)
        assert isinstance(failed, ev.ModelFetchFailed)
        assert "no member says how the model is built" in failed.reason
