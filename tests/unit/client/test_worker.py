"""Two workshops over a memory network: a model goes from one to the other, bit for bit or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from blockbuster import blockbuster_ctx

from party import RUN
from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.model_sync import exchange, multi_source
from psyche_core.client.model_sync.exchange import ModelExchange
from psyche_core.client.runtime.reports.result_files import ResultFiles
from psyche_core.client.runtime.reports.step_observer import StepObserver
from psyche_core.client.runtime.resources import Resources, ResourcesRequest
from psyche_core.client.runtime.worker import Worker
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import new_state
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BlobNotFound, ModelError, TransportError
from psyche_core.p2p import description, manifest
from psyche_core.p2p.manifest import PIECE_BYTES
from psyche_core.storage.scratch import Scratch
from psyche_core.telemetry import events as telemetry
from psyche_core.testing.toy_model import TOY_SHAPES, ToyModel, toy_samples
from psyche_core.training.checkpoints.initial_model import NoModelSource
from psyche_core.training.checkpoints.manifest import read_manifest
from psyche_core.training.checkpoints.private_state import private_path
from psyche_core.training.trainer import Trainer
from psyche_core.training.update_statistics import group_of
from psyche_core.types import BatchId
from psyche_core.wire import codec

SHAPES = {**TOY_SHAPES, "big.weight": (3, PIECE_BYTES // 8 + 5), "layers.1.norm.weight": (64,)}
PIECES = len(SHAPES) + 1
STEP, TAG = 4, 50


def run_state(*, step: int = 1, run_id: str = "world") -> CoordinatorState:
    table = {"total_steps": 9, "clients": 2, "min_clients": 2, "witness_nodes": 0, "rounds_per_epoch": 3, "cooldown_time": 1}
    run = parse_run_file(RUN.format(**table), source="world")
    state = new_state(run_id, run.config, run.model, instance=bytes(32))
    return replace(state, progress=replace(state.progress, step=step))


def build_trainer(seed: int) -> Trainer:
    model = ToyModel(SHAPES, seed=seed)
    return Trainer(model=model, optimizer=AdamW(AdamWSettings(), model), learning_rate=lambda _: 0.01, micro_batch_size=1)


class Member:
    """A worker with a real trainer, and what it told."""

    def __init__(
        self,
        name: str,
        network: MemoryNetwork,
        *,
        seed: int,
        transport: type[MemoryTransport] = MemoryTransport,
        folder: Path | None = None,
    ) -> None:
        self.transport = transport(network, hashlib.sha256(name.encode()).digest())
        self.trainer = build_trainer(seed)
        self.told: list[telemetry.Event] = []
        self.scratch = Scratch(folder)
        self.exchange = ModelExchange(self.transport, report=self.told.append, scratch=self.scratch)
        self.worker = Worker(self._build, transport=self.transport, report=self.told.append, exchange=self.exchange)
        self.checkpoints: Path | None = None

    async def _build(self, _: ResourcesRequest) -> Resources:
        data = DummyData(sequence_length=16)
        return Resources(self.trainer, data, validation=toy_samples(7), checkpoints=self.checkpoints)

    @property
    def key(self) -> bytes:
        return self.transport.peer_id

    @property
    def masters(self) -> dict[str, torch.Tensor]:
        masters: dict[str, torch.Tensor] = dict(self.trainer._optimizer.masters)
        return masters

    async def snapshot(self) -> ev.SnapshotTaken:
        taken = await self.worker.do(act.TakeSnapshot(STEP, TAG))
        assert isinstance(taken, ev.SnapshotTaken)
        return taken

    async def fetch(self, taken: ev.SnapshotTaken, *sources: Member) -> ev.Event:
        keys = tuple(source.key for source in sources)
        return await self.worker.do(act.FetchModel(taken.step, taken.manifest_hash, taken.manifest_bytes, keys, TAG))

    def progress(self) -> list[telemetry.ModelSync]:
        return [event for event in self.told if isinstance(event, telemetry.ModelSync)]


@asynccontextmanager
async def members(
    *names: str, transports: dict[str, type[MemoryTransport]] | None = None, folder: Path | None = None
) -> AsyncIterator[list[Member]]:
    """Entered, loaded, connected with each other; the first has seed 1, all others seed 2. folder: shared by their files."""
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        found = []
        for number, name in enumerate(names):
            kind = (transports or {}).get(name, MemoryTransport)
            member = Member(name, network, seed=1 if number == 0 else 2, transport=kind, folder=folder)
            stack.callback(member.scratch.close)
            await stack.enter_async_context(member.transport)
            found.append(member)
        for member in found:
            await member.transport.set_peers({other.key: b"" for other in found})
            await member.worker.do(act.Load(run_state()))
        yield found


def files(folder: Path) -> list[Path]:
    return sorted((folder / "scratch").iterdir())


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


# ------------------------------------------------------------------------------------------------ handing over


async def test_a_model_goes_over_bit_for_bit_without_blocking_the_loop() -> None:
    async with members("maker", "taker") as (maker, taker):
        with blockbuster_ctx("psyche_core"):
            taken = await maker.snapshot()
            fetched = await taker.fetch(taken, maker)

        assert fetched == ev.ModelFetched(STEP, maker.trainer.full_digest())
        assert taker.trainer.full_digest() == maker.trainer.full_digest()
        total = sum(4 * tensor.numel() for tensor in maker.masters.values())
        assert taker.progress()[0] == telemetry.ModelSync(STEP, 0, PIECES, 0)
        assert taker.progress()[-1] == telemetry.ModelSync(STEP, PIECES, PIECES, total)


async def test_equal_members_take_equal_snapshots() -> None:
    async with members("one", "two", "three") as (one, two, three):
        assert await two.snapshot() == await three.snapshot() != await one.snapshot()


async def test_only_pieces_that_differ_are_fetched() -> None:
    async with members("maker", "taker") as (maker, taker):
        await taker.fetch(await maker.snapshot(), maker)
        maker.masters["big.weight"][2, -1] += 1.0  # in the last piece
        maker.masters["odd.single"][0] += 1.0
        before = taker.transport.stats.bytes_received
        taken = await maker.snapshot()
        taker.told.clear()
        fetched = await taker.fetch(taken, maker)

        assert fetched == ev.ModelFetched(STEP, maker.trainer.full_digest())
        last = 4 * 3 * (PIECE_BYTES // 8 + 5) - PIECE_BYTES
        assert [(event.pieces_done, event.pieces_total) for event in taker.progress()] == [(0, 2), (1, 2), (2, 2)]
        assert taker.transport.stats.bytes_received - before == last + 4 + taken.manifest_bytes


async def test_nothing_is_fetched_where_nothing_differs() -> None:
    async with members("maker", "taker", "twin") as (_, taker, twin):
        taken = await twin.snapshot()
        before = taker.transport.stats.bytes_received
        assert await taker.fetch(taken, twin) == ev.ModelFetched(STEP, twin.trainer.full_digest())
        assert taker.transport.stats.bytes_received - before == taken.manifest_bytes


async def test_equal_pieces_are_fetched_once() -> None:
    async with members("maker", "taker") as (maker, taker):
        for name in ("layers.0.norm.weight", "layers.1.norm.weight"):
            maker.masters[name].fill_(0.5)
        fetched = await taker.fetch(await maker.snapshot(), maker)
        assert fetched == ev.ModelFetched(STEP, maker.trainer.full_digest())
        assert taker.progress()[-1].pieces_total == PIECES - 1


async def test_what_was_read_and_received_before_stays_valid() -> None:
    """Samples read ahead and payloads of the rounds being played are used after a model was fetched."""
    share = (BatchId(3, 4),)
    async with members("maker", "taker") as (maker, taker):
        await taker.worker.prefetch(share)
        payload = maker.trainer.train(1, toy_samples(1)).payload
        payload_hash = hashlib.sha256(payload).digest()
        assert await taker.worker.receive(payload_hash, payload, tag=1) == ev.PayloadChecked(payload_hash, True, 1)
        assert isinstance(await taker.fetch(await maker.snapshot(), maker), ev.ModelFetched)
        for member in (maker, taker):
            await member.worker.receive(payload_hash, payload, tag=1)
            assert isinstance(await member.worker.do(act.Apply(1, 1, (payload_hash,), own_accepted=False)), ev.Applied)
        assert taker.trainer.full_digest() == maker.trainer.full_digest()
        assert isinstance(await taker.worker.do(act.Train(2, 2, share, 2)), ev.Trained)


# ------------------------------------------------------------------------------------------------ sources that fail


class Corrupting(MemoryTransport):
    """Serves blobs with their last bit flipped."""

    async def blob(self, blob_hash: bytes) -> bytes | None:
        blob = await super().blob(blob_hash)
        return None if blob is None else blob[:-1] + bytes((blob[-1] ^ 1,))


async def test_a_corrupted_source_is_refused_and_nothing_changes() -> None:
    async with members("maker", "taker", transports={"maker": Corrupting}) as (maker, taker):
        before = taker.trainer.full_digest()
        answer = await taker.fetch(await maker.snapshot(), maker)

        assert isinstance(answer, ev.ModelFetchFailed)
        assert "did not match its hash" in answer.reason
        assert taker.trainer.full_digest() == before


async def test_other_sources_stand_in_for_a_corrupted_one() -> None:
    async with members("maker", "taker", "liar", transports={"liar": Corrupting}) as (maker, taker, liar):
        taken = await maker.snapshot()
        await liar.fetch(taken, maker)
        assert await liar.snapshot() == taken
        assert await taker.fetch(taken, liar, maker) == ev.ModelFetched(STEP, maker.trainer.full_digest())


class Vanishing(MemoryTransport):
    """Cuts itself off from everybody after serving some blobs."""

    serves = 5

    async def blob(self, blob_hash: bytes) -> bytes | None:
        if self.serves == 0:
            for peer in self.members:
                self._network.disconnect(self.peer_id, peer)
            return None

        self.serves -= 1
        return await super().blob(blob_hash)


async def test_when_a_source_vanishes_half_way_the_rest_comes_from_another() -> None:
    async with members("maker", "taker", "weak", transports={"weak": Vanishing}) as (maker, taker, weak):
        taken = await maker.snapshot()
        await weak.fetch(taken, maker)
        assert await weak.snapshot() == taken
        assert isinstance(weak.transport, Vanishing)
        fetched = await taker.fetch(taken, weak)

        assert fetched == ev.ModelFetched(STEP, maker.trainer.full_digest())
        assert weak.transport.serves == 0


class Counting(MemoryTransport):
    """Refuses to fetch after some pieces, until told to go on."""

    allowed = 10_000
    running = most_running = 0

    async def fetch(self, blob_hash: bytes, **how: Any) -> bytes:
        if self.allowed == 0:
            message = "nobody has it"
            raise BlobNotFound(message)

        self.allowed -= 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await anyio.sleep(0)
            return await super().fetch(blob_hash, **how)
        finally:
            self.running -= 1


async def test_a_second_attempt_begins_where_the_first_ended() -> None:
    async with members("maker", "taker", transports={"taker": Counting}) as (maker, taker):
        assert isinstance(taker.transport, Counting)
        taken = await maker.snapshot()
        before = taker.trainer.full_digest()
        taker.transport.allowed = 1 + 9  # the manifest and nine pieces, of which some may be on their way when the next fails
        failed = await taker.fetch(taken, maker)
        assert failed == ev.ModelFetchFailed(STEP, "the model after step 4 could not be had from others: nobody has it")
        assert taker.trainer.full_digest() == before

        done = taker.progress()[-1].pieces_done
        assert 10 - exchange.PIECES_AT_ONCE < done < 10
        taker.told.clear()
        taker.transport.allowed = 1 + PIECES - done
        assert await taker.fetch(taken, maker) == ev.ModelFetched(STEP, maker.trainer.full_digest())
        assert taker.progress()[0].pieces_done == done
        assert taker.transport.allowed == 0


async def test_a_few_pieces_at_once_are_fetched_and_sources_take_turns() -> None:
    async with members("maker", "taker", "twin", transports={"taker": Counting}) as (maker, taker, twin):
        assert isinstance(taker.transport, Counting)
        taken = await maker.snapshot()
        await twin.fetch(taken, maker)
        assert await twin.snapshot() == taken
        before = [member.transport.stats.bytes_sent for member in (maker, twin)]
        assert isinstance(await taker.fetch(taken, maker, twin), ev.ModelFetched)
        assert taker.transport.most_running == min(exchange.PIECES_AT_ONCE, 2 * multi_source.MOST_PER_SOURCE)
        sent = [member.transport.stats.bytes_sent - start for member, start in zip((maker, twin), before, strict=True)]
        assert min(sent) > 0


async def test_masters_replaced_half_way_are_not_worked_with_until_they_are_whole_again() -> None:
    """The optimizer fails in the middle, twice: nothing is trained, applied, saved or offered at such masters."""
    async with members("maker", "taker") as (maker, taker):
        taken = await maker.snapshot()
        load, failures = taker.trainer._optimizer.load_parameters, [OSError("the disk is broken")] * 2

        def fails_half_way(parameters: Any) -> None:
            if not failures:
                load(parameters)
                return
            master = taker.masters["big.weight"]
            parameters.copy_to("big.weight", master)
            raise failures.pop()

        taker.trainer._optimizer.load_parameters = fails_half_way  # type: ignore[method-assign]
        failed = await taker.fetch(taken, maker)
        assert isinstance(failed, ev.ModelFetchFailed)
        assert "only partly replaced by that of step 4" in failed.reason

        refused = await taker.worker.do(act.Train(2, 2, (BatchId(3, 4),), 2))
        assert isinstance(refused, ev.TrainFailed)
        assert "only partly replaced" in refused.reason
        for work in (act.Apply(1, 1, (), own_accepted=False), act.CloseEpoch(0, 3)):
            broken = await taker.worker.do(work)
            assert isinstance(broken, ev.WorkFailed)
            assert "only partly replaced" in broken.reason
        assert isinstance(await taker.worker.do(act.TakeSnapshot(STEP, TAG)), ev.SnapshotFailed)
        digests = [await member.worker.do(act.Digest(1)) for member in (maker, taker)]
        assert digests[0] != digests[1], "what others see is that they differ"

        assert await taker.fetch(taken, maker) == ev.ModelFetched(STEP, maker.trainer.full_digest())
        assert isinstance(await taker.worker.do(act.Train(2, 2, (BatchId(3, 4),), 2)), ev.Trained)


# ------------------------------------------------------------------------------------------------ manifests that lie


async def refused(taker: Member, maker: Member, blob: bytes, *, step: int = STEP, said: int | None = None) -> str:
    """Why a manifest of these bytes is refused; nothing may have changed."""
    before = taker.trainer.full_digest()
    manifest_hash = await maker.transport.publish(blob, tag=TAG)
    answer = await taker.fetch(ev.SnapshotTaken(step, manifest_hash, len(blob) if said is None else said), maker)
    assert isinstance(answer, ev.ModelFetchFailed)
    assert taker.trainer.full_digest() == before
    return answer.reason


async def test_manifests_that_are_not_of_our_model_run_and_step_are_refused() -> None:
    async with members("maker", "taker") as (maker, taker):
        taken = await maker.snapshot()
        data = await maker.transport.fetch(taken.manifest_hash, sources=(), max_bytes=10_000, timeout=1.0, tag=TAG)
        own = manifest.decode(data, expected=maker.trainer.table)

        def variant(**changes: Any) -> bytes:
            return manifest.encode(replace(own, **changes))

        assert "of step 5 of run 'world'" in await refused(taker, maker, variant(step=5))
        assert "of step 4 of run 'other'" in await refused(taker, maker, variant(run_id="other"))
        fewer = manifest.parameter_table({"odd.single": (1,)})
        assert "1 parameters, our model has" in await refused(taker, maker, variant(table=fewer, hashes=(bytes(32),)))
        assert "CBOR" in await refused(taker, maker, b"\xff" * 100)
        assert "a list of version" in await refused(taker, maker, codec.encode("manifest"))
        assert "is said to have 99999 bytes" in await refused(taker, maker, variant(), said=99_999)
        assert "larger than allowed" in await refused(taker, maker, b"\x00" * 99_999, said=9)
        assert "no" in await refused(taker, maker, variant(hashes=tuple(bytes(32) for _ in own.hashes)))


async def test_a_manifest_of_values_that_are_not_finite_is_refused() -> None:
    async with members("maker", "taker") as (maker, taker):
        before = taker.trainer.full_digest()
        maker.masters["odd.bias"][1] = float("nan")
        answer = await taker.fetch(await maker.snapshot(), maker)
        assert isinstance(answer, ev.ModelFetchFailed)
        assert "odd.bias" in answer.reason
        assert "not finite" in answer.reason
        assert taker.trainer.full_digest() == before


async def test_a_piece_of_another_length_than_our_table_says_is_refused() -> None:
    """Its hash is right, and it is longer than the piece: the transport refuses it before it is read."""
    async with members("maker", "taker") as (maker, taker):
        long = await maker.transport.publish(bytes(8), tag=TAG)
        table = maker.trainer.table
        numbers = {piece.name: piece.number for piece in manifest.cut(table)}
        hashes = [hashlib.sha256(maker.trainer.read_piece(piece)).digest() for piece in manifest.cut(table)]
        for piece in manifest.cut(table):
            await maker.transport.publish(maker.trainer.read_piece(piece), tag=TAG)
        hashes[numbers["odd.single"]] = long
        reason = await refused(taker, maker, manifest.encode(manifest.Manifest("world", STEP, table, tuple(hashes))))
        assert "larger than allowed" in reason

        short = await maker.transport.publish(bytes(3), tag=TAG)
        hashes[numbers["odd.single"]] = short
        reason = await refused(taker, maker, manifest.encode(manifest.Manifest("world", STEP, table, tuple(hashes))))
        assert "odd.single" in reason


# ------------------------------------------------------------------------------------------------ limits


async def test_old_snapshots_are_gone_from_disk_when_they_expire(tmp_path: Path) -> None:
    async with members("maker", "taker", folder=tmp_path) as (maker, taker):
        taken = await maker.snapshot()
        size = sum(4 * tensor.numel() for tensor in maker.masters.values())
        assert [file.stat().st_size for file in files(tmp_path)] == [size]
        assert isinstance(await maker.worker.do(act.TakeSnapshot(STEP + 1, TAG + 1)), ev.SnapshotTaken)
        assert len(files(tmp_path)) == 2

        await maker.worker.expire(TAG + 1)
        await maker.transport.expire(TAG + 1)
        assert len(files(tmp_path)) == 1
        answer = await taker.fetch(taken, maker)
        assert isinstance(answer, ev.ModelFetchFailed), "the manifest is still offered"


async def test_nobody_fills_our_disk_by_asking_for_one_model_after_the_other(tmp_path: Path) -> None:
    async with members("maker", folder=tmp_path) as (maker,):
        for later in range(exchange.MOST_OFFERED):
            assert isinstance(await maker.worker.do(act.TakeSnapshot(STEP + later, TAG + later)), ev.SnapshotTaken)
        failed = await maker.worker.do(act.TakeSnapshot(STEP + 9, TAG + 9))
        assert isinstance(failed, ev.SnapshotFailed)
        assert "8 are being offered already" in failed.reason
        assert len(files(tmp_path)) == exchange.MOST_OFFERED
        assert isinstance(await maker.worker.do(act.TakeSnapshot(STEP + 9, TAG + 9, withdrawn=(TAG, TAG + 2))), ev.SnapshotTaken)
        assert len(files(tmp_path)) == exchange.MOST_OFFERED - 1
        await maker.worker.expire(TAG + 3)
        assert len(files(tmp_path)) == exchange.MOST_OFFERED - 2


async def test_a_snapshot_is_of_the_masters_as_they_were_whatever_becomes_of_them() -> None:
    """One copy, on disk: the members that fetch it may take minutes, and training goes on meanwhile."""
    async with members("maker", "taker") as (maker, taker):
        taken, digest = await maker.snapshot(), maker.trainer.full_digest()
        for master in maker.masters.values():
            master.add_(1.0)
        assert await taker.fetch(taken, maker) == ev.ModelFetched(STEP, digest)


class Full(MemoryTransport):
    """A store without room."""

    async def offer(self, blob_hash: bytes, **how: Any) -> None:
        message = "the store is full"
        raise TransportError(message)


async def test_a_transport_that_cannot_publish_is_told_and_survived(tmp_path: Path) -> None:
    async with members("maker", transports={"maker": Full}, folder=tmp_path) as (maker,):
        failed = await maker.worker.do(act.TakeSnapshot(STEP, TAG))
        assert failed == ev.SnapshotFailed(STEP, "the model after step 4 cannot be offered to others: the store is full")
        assert telemetry.Problem("warning", failed.reason) in maker.told
        assert not files(tmp_path)


# ------------------------------------------------------------------------------------------------ loading and saving


async def test_the_model_is_validated_at_load_only_where_it_is_the_runs() -> None:
    async with members("one") as (one,):
        assert [event.step for event in one.told if isinstance(event, telemetry.Validated)] == [0]
        one.told.clear()
        ready = await one.worker.do(act.Load(run_state(step=5)))
        assert isinstance(ready, ev.ModelReady)
        assert ready.step is None
        assert not [event for event in one.told if isinstance(event, telemetry.Validated)]


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
