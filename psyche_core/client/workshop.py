"""The heavy half of a client: model, optimizer, data and payload bytes, worked in threads so that the event loop never blocks.

Decided here: one trainer thread at a time (the machine never asks for two pieces of work), payload checks beside it, samples of
the next share read while the trainer is busy with something else; model and data are opened before the run is joined, so that a
model that does not fit keeps nobody waiting. Refuses to decide anything: it does one `Work` and says what happened.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import anyio
import anyio.to_thread

from psyche_core.client import report
from psyche_core.client.agenda import starts_from_members
from psyche_core.client.bench import Bench, ModelStore, Start
from psyche_core.client.description_exchange import DescriptionExchange
from psyche_core.client.events import (
    Applied,
    Apply,
    CloseEpoch,
    Digest,
    Digested,
    EpochClosed,
    Event,
    FetchModel,
    Load,
    ModelFetched,
    ModelFetchFailed,
    ModelReady,
    ModelStored,
    SnapshotFailed,
    SnapshotTaken,
    StoreFailed,
    StoreModel,
    TakeSnapshot,
    Train,
    Trained,
    TrainFailed,
    Work,
)
from psyche_core.client.events import SourceMissing as SourceMissingEvent
from psyche_core.client.model_exchange import ModelExchange
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import (
    DataError,
    ModelError,
    NonFiniteError,
    PayloadRejected,
    RanksLost,
    StoreError,
    TransportError,
    WireError,
)
from psyche_core.interfaces import Transport
from psyche_core.interfaces.data import Samples
from psyche_core.run_config import ModelConfig
from psyche_core.training.checkpoint import checkpoint_path, save_checkpoint
from psyche_core.training.checkpoint_manifest import Facts
from psyche_core.training.origin import SourceMissing
from psyche_core.training.private_state import private_path
from psyche_core.types import BatchId

DATA_TIMEOUT = 120.0


class Workshop:
    """Does work for the machine.

    build: opens everything for a run, called for each Load, may take long; raises SourceMissing when nothing on this machine says
    how the run's model is built. store: where models of epochs' ends go. exchange, descriptions: how models go to others.
    """

    def __init__(
        self,
        build: Callable[[Start], Awaitable[Bench]],
        *,
        transport: Transport,
        tell: Callable[[report.Event], None],
        store: ModelStore | None = None,
        exchange: ModelExchange | None = None,
        descriptions: DescriptionExchange | None = None,
    ) -> None:
        self._build = build
        self._transport = transport
        self._tell = tell
        self._model_store = store
        self._exchange = exchange or ModelExchange(transport, tell=tell)
        self._descriptions = descriptions or DescriptionExchange(transport)
        self._bench: Bench | None = None
        self._prepared: tuple[ModelConfig, Bench] | None = None
        self._opening = anyio.Lock()
        self._run_id = ""
        self._payloads: dict[bytes, tuple[int, bytes]] = {}
        self._reading: dict[tuple[BatchId, ...], _Reading] = {}

    @property
    def bench(self) -> Bench:
        """The open bench; the machine never asks for work before ModelReady."""
        if self._bench is None:
            message = "the model is not loaded yet"
            raise RuntimeError(message)

        return self._bench

    async def do(self, work: Work) -> Event:
        """Carry out one piece of work. ModelError and DataError while loading propagate: nothing can go on then."""
        match work:
            case Load():
                return await self._load(work)
            case Train():
                return await self._train(work)
            case Apply():
                return await self._apply(work)
            case Digest():
                return Digested(work.height, await anyio.to_thread.run_sync(self.bench.trainer.sampled_digest, work.seed))
            case CloseEpoch():
                return await self._close(work)
            case TakeSnapshot():
                return await self._offer(work)
            case FetchModel(build=None):
                return await self._exchange.fetch(self.bench.trainer, work, run_id=self._run_id)
            case FetchModel():
                return await self._build_and_fetch(work)

    async def prepare(self, state: CoordinatorState) -> None:
        """Open everything before the run is joined, so that who cannot take part says why and joins nothing.

        The first Load takes what is open. Does nothing where the other members have to say how the model is built, nor where a
        run that has begun still names a stored model: its next epoch may begin with the members' own. Raises ModelError,
        DataError and ConfigError.
        """
        if state.progress.step > 1 and not starts_from_members(state):
            return

        async with self._opening:
            if self._bench is None and self._take_prepared(state, keep=True) is None:
                with contextlib.suppress(SourceMissing):
                    self._prepared = state.model, await self._open(Start(state))

    def _take_prepared(self, state: CoordinatorState, *, keep: bool = False) -> Bench | None:
        """What was opened before joining, if the run is still what it was opened for; otherwise it is let go."""
        if self._prepared is None:
            return None

        model, bench = self._prepared
        if model != state.model or (bench.step is not None and bench.step >= state.progress.step):
            self._prepared = None
            return None

        if not keep:
            self._prepared = None
        return bench

    async def _open(self, start: Start) -> Bench:
        started = perf_counter()
        bench = await self._build(start)
        step = bench.stored_step if bench.step is None else bench.step
        self._tell(report.ModelLoaded(bench.trainer.parameter_count, perf_counter() - started, step))
        return bench

    async def _load(self, work: Load) -> Event:
        async with self._opening:  # who comes back while still a member has both to do: to join and to load
            prepared = None if work.fresh else self._take_prepared(work.state)
            self._prepared = None  # a second model in memory would be one too many
            try:
                bench = prepared or await self._open(Start(work.state, fresh=work.fresh))
            except SourceMissing as error:
                return SourceMissingEvent(str(error))

            self._bench = bench
        self._exchange.loaded_anew()
        self._run_id = work.state.run_id
        digest = await anyio.to_thread.run_sync(bench.trainer.full_digest)
        if work.state.progress.step == 1:  # later these weights are a starting point that the run has left behind
            await self._validate(0)
        return ModelReady(digest, bench.trainer.max_payload_bytes, bench.step)

    async def _offer(self, work: TakeSnapshot) -> SnapshotTaken | SnapshotFailed:
        """Offer the masters, and how the model is built; a model that cannot be described is offered to those who know it."""
        taken = await self._exchange.offer(self.bench.trainer, work, run_id=self._run_id)
        if isinstance(taken, SnapshotFailed):
            return taken

        taken = replace(taken, digest=await anyio.to_thread.run_sync(self.bench.trainer.full_digest))
        try:
            files = await anyio.to_thread.run_sync(lambda: self.bench.trainer.description)
            described = await self._descriptions.offer(files, tag=work.tag)
        except ModelError as error:
            self._tell(report.Problem("warning", str(error)))
            return taken

        return replace(taken, description_hash=described[0], description_bytes=described[1])

    async def _build_and_fetch(self, work: FetchModel) -> ModelReady | ModelFetchFailed:
        """Build the model as the other members say, and give it their masters; the descriptions are tried in turn."""
        assert work.build is not None
        reason = "no member says how the model is built"
        for blob_hash, size in work.descriptions:
            try:
                folder = await self._descriptions.fetch(blob_hash, size, sources=work.sources, tag=work.tag)
                bench = await self._build(Start(work.build, folder=folder))
            except RanksLost:
                raise  # not the description's fault
            except (TransportError, WireError, ModelError, TimeoutError) as error:
                reason = str(error) or "a time-out"
                continue

            done = await self._exchange.fetch(bench.trainer, work, run_id=work.build.run_id)
            if isinstance(done, ModelFetched):
                self._bench, self._run_id = bench, work.build.run_id
                self._exchange.loaded_anew()
                return ModelReady(done.digest, bench.trainer.max_payload_bytes, work.step)
            reason = done.reason
        return ModelFetchFailed(work.step, f"the model of the run could not be built: {reason}")

    async def prefetch(self, share: tuple[BatchId, ...]) -> None:
        """Read a share's samples ahead of its Train work."""
        if share in self._reading or self._bench is None:
            return

        for stale in [known for known, reading in self._reading.items() if reading.done.is_set()]:
            del self._reading[stale]
        reading = self._reading[share] = _Reading()
        try:
            reading.samples = await self.bench.data.read(share, timeout=DATA_TIMEOUT)
        except (DataError, TimeoutError) as error:
            reading.error = error
        finally:
            reading.done.set()

    async def _samples(self, share: tuple[BatchId, ...]) -> Samples:
        reading = self._reading.get(share)
        if reading is None:
            return await self.bench.data.read(share, timeout=DATA_TIMEOUT)

        await reading.done.wait()
        self._reading.pop(share, None)
        if reading.samples is None:
            raise DataError(str(reading.error) or "reading samples was cancelled") from reading.error

        return reading.samples

    async def _train(self, work: Train) -> Event:
        try:
            self._exchange.check_usable()
            samples = await self._samples(work.share)
            done = await anyio.to_thread.run_sync(self.bench.trainer.train, work.step, samples)
        except RanksLost:
            raise  # no later step can be trained either
        except (DataError, ModelError, NonFiniteError, TimeoutError) as error:
            return TrainFailed(work.height, f"step {work.step} was not trained: {str(error) or type(error).__name__}")

        payload_hash = await self._transport.publish(done.payload, tag=work.tag)
        self._payloads[payload_hash] = (work.tag, done.payload)
        return Trained(work.height, done.loss, done.tokens, done.seconds, payload_hash, len(done.payload))

    async def receive(self, payload_hash: bytes, payload: bytes, *, tag: int) -> bool:
        """Keep a fetched payload if it fits our parameter table; says whether it does."""
        try:
            await anyio.to_thread.run_sync(self.bench.trainer.check, payload)
        except PayloadRejected as error:
            self._tell(report.Problem("warning", f"a peer's result was refused: {error}"))
            return False

        self._payloads[payload_hash] = (tag, payload)
        return True

    async def aclose(self) -> None:
        """Remove what was kept on disk for others. Idempotent."""
        await self._exchange.aclose()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._descriptions.close)

    async def expire(self, before: int) -> None:
        """Drop payloads and snapshots with older tags."""
        for payload_hash in [known for known, (tag, _) in self._payloads.items() if tag < before]:
            del self._payloads[payload_hash]
        await self._exchange.expire(before)

    async def _apply(self, work: Apply) -> Event:
        self._exchange.check_usable()
        payloads = [self._payloads[payload_hash][1] for payload_hash in work.payload_hashes]
        started = perf_counter()

        def apply() -> None:
            self.bench.trainer.apply(work.step, payloads, own_accepted=work.own_accepted)

        await anyio.to_thread.run_sync(apply)
        return Applied(work.height, perf_counter() - started)

    async def _close(self, work: CloseEpoch) -> Event:
        self._exchange.check_usable()
        digest = await anyio.to_thread.run_sync(self.bench.trainer.full_digest)
        await self._validate(work.step)
        bench, saved = self.bench, False
        if bench.checkpoints is not None:
            directory = checkpoint_path(bench.checkpoints, self._run_id, work.step)
            try:
                facts = Facts(run_id=self._run_id, step=work.step, epoch=work.epoch, data_index=work.data_index)
                await anyio.to_thread.run_sync(lambda: save_checkpoint(directory, facts, write=bench.trainer.save))
            except (ModelError, OSError) as error:
                self._tell(report.Problem("error", f"the checkpoint of step {work.step} was not saved: {error}"))
            else:
                saved = True
                self._tell(report.CheckpointSaved(work.step, str(directory)))
                await self._after_saving(bench, bench.checkpoints, directory, step=work.step)
        return EpochClosed(digest, saved)

    async def _after_saving(self, bench: Bench, folder: Path, directory: Path, *, step: int) -> None:
        """What belongs to a saved checkpoint; neither part hinders the other, and the checkpoint is good without them."""
        private = private_path(folder, self._run_id)
        after: list[Callable[[], object]] = [lambda: bench.trainer.save_private(private)]
        if bench.keep_checkpoints is not None:
            after.append(functools.partial(bench.keep_checkpoints, directory))
        for work in after:
            try:
                await anyio.to_thread.run_sync(work)
            except (ModelError, OSError) as error:
                self._tell(report.Problem("warning", f"the checkpoint of step {step} is saved, but {error}"))

    async def store(self, action: StoreModel) -> ModelStored | StoreFailed:
        """Put the checkpoint of an epoch's end into our store; what prevents it is one sentence."""
        checkpoints = self.bench.checkpoints
        if self._model_store is None or checkpoints is None:
            return StoreFailed(action.step, "there is no store for the model, or no folder of checkpoints")

        directory = checkpoint_path(checkpoints, self._run_id, action.step)
        try:
            location = await self._model_store.put(directory, run_id=self._run_id, step=action.step)
        except StoreError as error:
            return StoreFailed(action.step, f"the model of step {action.step} was not stored: {error}")

        return ModelStored(action.step, location)

    async def _validate(self, step: int) -> None:
        validation = self.bench.validation
        if validation is not None:
            loss = await anyio.to_thread.run_sync(self.bench.trainer.evaluate, validation)
            self._tell(report.Validated(step, loss))


class _Reading:
    """Samples on their way."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.samples: Samples | None = None
        self.error: Exception | None = None
