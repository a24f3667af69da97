"""The heavy half of a client: model, optimizer, data and payload bytes, in threads so that the event loop never blocks.

One trainer thread works at a time (the machine never asks for two pieces of work), payload checks run beside it, and samples of
the next share are read meanwhile. Model and data are opened before the run is joined, so that a model that does not fit keeps
nobody waiting. An error of any work but Load becomes an event, unless nothing can go on after it: our own result that nobody
could use, lost ranks, a plugin that fails again and again, or something that the user has to mend. The worker does one `Work` at
a time and says what happened; it decides nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import anyio
import anyio.to_thread

from psyche_core.client.machine.actions import (
    Apply,
    CloseEpoch,
    Digest,
    FetchModel,
    KeepResults,
    Load,
    StoreModel,
    TakeSnapshot,
    Train,
    Work,
)
from psyche_core.client.machine.events import (
    Applied,
    Digested,
    EpochClosed,
    ModelFetched,
    ModelFetchFailed,
    ModelReady,
    ModelStored,
    PayloadChecked,
    PayloadCheckFailed,
    PayloadsLost,
    SnapshotFailed,
    SnapshotTaken,
    SourceMissing,
    StoreFailed,
    Trained,
    TrainFailed,
    WorkDone,
    WorkFailed,
)
from psyche_core.client.model_sync.description import DescriptionExchange
from psyche_core.client.model_sync.exchange import ModelExchange
from psyche_core.client.runtime.checkpointing import Checkpointer
from psyche_core.client.runtime.opening import ResourcesOpener
from psyche_core.client.runtime.payloads import PayloadStore, check_own
from psyche_core.client.runtime.read_ahead import ReadAhead
from psyche_core.client.runtime.reports.result_overlaps import ResultOverlapMeter
from psyche_core.client.runtime.reports.step_figures import TrainedStep
from psyche_core.client.runtime.resources import Resources, ResourcesRequest
from psyche_core.client.runtime.work_failures import WorkFailures, not_done
from psyche_core.coordinator.state import NO_DIGEST, CoordinatorState
from psyche_core.errors import (
    DataError,
    ModelError,
    NonFiniteError,
    NothingForUs,
    PayloadRejected,
    PluginFailed,
    ProviderFailed,
    PsycheError,
    RanksLost,
    UserError,
)
from psyche_core.evaluation.spare_time import SpareTime
from psyche_core.interfaces import Transport
from psyche_core.plugin_errors import summary_of
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.storage.model_stores.interface import ModelStore
from psyche_core.telemetry import events as telemetry
from psyche_core.training.checkpoints.initial_model import NoModelSource
from psyche_core.types import BatchId

logger: logging.Logger = logging.getLogger("psyche.client")

ENDS_THE_CLIENT = (UserError, RanksLost, PluginFailed)
"""Errors that no other member can help with."""


def describe_exception(error: BaseException) -> str:
    """One sentence about an exception, for callers without plugins."""
    return error.sentence if isinstance(error, PsycheError) else summary_of(error)


class Worker:
    """Does work for the machine.

    build: opens everything for a run, called for each Load, may take long; raises NoModelSource when nothing on this machine
    says how the run's model is built. store: where models of epoch ends go. exchange, descriptions: transfer models to others.
    explain: one sentence about an unexpected exception. check: checks everything on this machine but the model before the run
    is joined; None checks nothing. spare: lends the model to evaluations between two pieces of work.
    """

    def __init__(
        self,
        build: Callable[[ResourcesRequest], Awaitable[Resources]],
        *,
        transport: Transport,
        report: Callable[[telemetry.Event], None],
        store: ModelStore | None = None,
        exchange: ModelExchange | None = None,
        descriptions: DescriptionExchange | None = None,
        explain: Callable[[BaseException], str] = describe_exception,
        check: Callable[[CoordinatorState], Awaitable[None]] | None = None,
        spare: SpareTime | None = None,
    ) -> None:
        self._spare = spare
        self._build = build
        self._explain = explain
        self._transport = transport
        self._report = report
        self._model_store = store
        self._exchange = exchange or ModelExchange(transport, report=report)
        self._descriptions = descriptions or DescriptionExchange(transport)
        self._resources: Resources | None = None
        self._opener = ResourcesOpener(build, report=report, check=check)
        self._run_id = ""
        self._instance = b""
        self._sequence_length = 0
        self._generation = 0
        self._payloads = PayloadStore()
        self._checkpoints = Checkpointer(report, explain=explain)
        self._reading = ReadAhead(explain=explain)
        self._overlaps = ResultOverlapMeter()
        self._applied: tuple[Apply, list[bytes]] | None = None
        self._comparing = False
        self._newest: TrainedStep | None = None
        self._failures = WorkFailures()

    @property
    def resources(self) -> Resources:
        """The open resources; the machine never asks for work before ModelReady."""
        if self._resources is None:
            message = "the model is not loaded yet"
            raise RuntimeError(message)

        return self._resources

    @property
    def newest_step(self) -> TrainedStep | None:
        """The step that was trained last, for people; None before the first."""
        return self._newest

    @property
    def training_fails(self) -> bool:
        """Whether our last share was not trained because of something on this machine."""
        return self._failures.training_fails

    @property
    def apply_failure(self) -> str | None:
        """Why results could not be applied, if our masters are unusable since then; None otherwise."""
        return self._failures.apply_failure

    @property
    def opened(self) -> Resources | None:
        """The open resources, None before there are any."""
        return self._resources

    async def do(self, work: Work) -> WorkDone:
        """Carry out one piece of work.

        Raises PsycheError when the client cannot continue: for Load any error, for other work those in ENDS_THE_CLIENT.
        """
        try:
            async with self._model_needed():
                done = await self._do(work)
                self._note_step(done, work)
                self._failures.note_success(done)
                return done
        except ENDS_THE_CLIENT:
            raise
        except Exception as error:
            logger.debug("%s failed", type(work).__name__, exc_info=error)
            if not isinstance(work, Load):
                sentence = f"{not_done(work)}: {self._explain(error)}"
                self._failures.note_failure(work, sentence, error)
                return WorkFailed(work, sentence)
            if isinstance(error, PsycheError):
                raise

            message = f"the model and its data could not be opened: {self._explain(error)}"
            raise ModelError(message) from error

    @contextlib.asynccontextmanager
    async def _model_needed(self) -> AsyncIterator[None]:
        """Take the model back from evaluations, which stop at the next layer, and lend it again afterwards."""
        if self._spare is None:
            yield
            return

        try:
            if self._spare.reclaim():
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._spare.wait_until_free)
            yield
        finally:
            self._spare.release()

    def _note_step(self, done: WorkDone, work: Work) -> None:
        """Tell evaluations which step the masters are at."""
        if self._spare is None:
            return
        match done, work:
            case ModelReady(), _:
                self._spare.step = done.step or 0
            case Applied(), Apply():
                self._spare.step = work.step
            case ModelFetched(), FetchModel():
                self._spare.step = work.step

    async def _do(self, work: Work) -> WorkDone:
        match work:
            case Load():
                return await self._load(work)
            case Train():
                return await self._train(work)
            case Apply():
                return await self._apply(work)
            case Digest():
                return Digested(work.height, await anyio.to_thread.run_sync(self.resources.trainer.full_digest))
            case CloseEpoch():
                return await self._close(work)
            case TakeSnapshot():
                return await self._offer(work)
            case FetchModel(build=None):
                self._checkpoints.masters_change()
                done = await self._exchange.fetch(self.resources.trainer, work, run_id=self._run_id)
                if isinstance(done, ModelFetched):
                    await self._checkpoints.fetched(work)
                return done
            case FetchModel():
                return await self._build_and_fetch(work)

    async def prepare(self, state: CoordinatorState) -> None:
        """Open model and data before the run is joined, see `ResourcesOpener.prepare`."""
        await self._opener.prepare(state, is_loaded=lambda: self._resources is not None)

    async def _load(self, work: Load) -> WorkDone:
        try:
            self._resources = resources = await self._opener.load(work)
        except NoModelSource as error:
            return SourceMissing(str(error))

        self._exchange.model_replaced()
        self._take_run(work.state)
        self._checkpoints.use(resources, run_id=self._run_id, instance=self._instance)
        digest = await anyio.to_thread.run_sync(resources.trainer.full_digest)
        if work.state.progress.step == 1:  # at later steps the run no longer uses these weights
            await self._validate(0)
        step = resources.step if resources.step is not None else _step_of_stored(work.state, resources.stored_step, digest)
        held = resources.held
        if resources.step is not None and resources.journal is not None:
            held += ((resources.step, digest),)  # our disk still has it when we have come further
        if step is None:  # the stored model may be an earlier end
            held += tuple(
                (end.step, digest) for end in work.state.ends if (end.step, end.digest) == (resources.stored_step, digest)
            )
        return ModelReady(digest, resources.trainer.max_payload_bytes, step, held, journalled=resources.journal is not None)

    def _take_run(self, state: CoordinatorState) -> None:
        self._run_id, self._sequence_length = state.run_id, state.model.LLM.max_seq_len
        self._instance, self._generation = state.instance, state.generation

    async def _offer(self, work: TakeSnapshot) -> SnapshotTaken | SnapshotFailed:
        """Offer the masters and the model's description; without a description only members that know the model can use them."""
        taken = await self._exchange.offer(self.resources.trainer, work, run_id=self._run_id)
        if isinstance(taken, SnapshotFailed):
            return taken

        taken = replace(taken, digest=await anyio.to_thread.run_sync(self.resources.trainer.full_digest))
        try:
            files = await anyio.to_thread.run_sync(lambda: self.resources.trainer.description)
            described = await self._descriptions.offer(files, tag=work.tag)
        except ModelError as error:
            self._report(telemetry.Problem("warning", str(error)))
            return taken

        return replace(taken, description_hash=described[0], description_bytes=described[1])

    async def _build_and_fetch(self, work: FetchModel) -> ModelReady | ModelFetchFailed:
        """Build the model from the other members' descriptions, tried in turn, and load their masters."""
        assert work.build is not None
        reason = "no member says how the model is built"
        for blob_hash, size in work.descriptions:
            try:
                folder = await self._descriptions.fetch(blob_hash, size, sources=work.sources, tag=work.tag)
                resources = await self._build(ResourcesRequest(work.build, folder=folder))
            except ENDS_THE_CLIENT:
                raise  # not the description's fault
            except Exception as error:  # another member's description may be wrong: try the next
                logger.debug("a description could not be used", exc_info=error)
                reason = self._explain(error)
                continue

            done = await self._exchange.fetch(resources.trainer, work, run_id=work.build.run_id)
            if isinstance(done, ModelFetched):
                self._resources = resources
                self._take_run(work.build)
                self._exchange.model_replaced()
                self._checkpoints.use(resources, run_id=self._run_id, instance=self._instance)
                await self._checkpoints.fetched(work)
                return ModelReady(done.digest, resources.trainer.max_payload_bytes, work.step)
            reason = done.reason
        return ModelFetchFailed(work.step, f"the model of the run could not be built: {reason}")

    async def prefetch(self, share: tuple[BatchId, ...]) -> None:
        """Read a share's samples ahead of its Train work."""
        if self._resources is not None:
            await self._reading.begin(self._resources, share, sequence_length=self._sequence_length)

    async def _train(self, work: Train) -> WorkDone:
        try:
            self._exchange.check_usable()
            samples = await self._reading.samples(self.resources, work.share, sequence_length=self._sequence_length)
            if work.generation != self._generation:  # results of an abandoned history are never settled
                await anyio.to_thread.run_sync(self.resources.trainer.forget)
                self._generation = work.generation
            done = await anyio.to_thread.run_sync(self.resources.trainer.train, work.step, samples)
            await anyio.to_thread.run_sync(self.resources.observer.compressed, work.step)
            if self.resources.training_delay:
                await anyio.sleep(self.resources.training_delay)
        except RanksLost:
            raise  # no later step can be trained either
        except (DataError, ModelError, NonFiniteError, TimeoutError) as error:
            reason = f"{not_done(work)}: {str(error) or type(error).__name__}"
            if isinstance(error, ProviderFailed):
                self._failures.note_failure(work, reason, error)
            self._failures.training_fails = not isinstance(error, NothingForUs)
            return TrainFailed(work.height, reason, passing=isinstance(error, NothingForUs))

        loss, trainer = float(done.loss), self.resources.trainer
        self._newest = TrainedStep(
            work.step,
            work.height,
            loss,
            done.seconds,
            done.learning_rate,
            done.gradient_norm,
            trainer.vocab_size,
            done.compress_seconds,
        )
        await check_own(self.resources, work.step, done.payload)
        self.resources.observer.trained(work.step, done.payload)
        payload_hash = await self._transport.publish(done.payload, tag=work.tag)
        self._payloads.put(payload_hash, done.payload, tag=work.tag)
        return Trained(work.height, loss, done.tokens, done.seconds, payload_hash, len(done.payload))

    async def receive(self, payload_hash: bytes, payload: bytes, *, tag: int) -> PayloadChecked | PayloadCheckFailed:
        """Keep a fetched payload if it fits our parameter table; returns whether it does. Raises RanksLost.

        If the check raises anything but PayloadRejected, the payload's validity is unknown.
        """
        try:
            await anyio.to_thread.run_sync(self.resources.trainer.check, payload)
        except PayloadRejected as error:
            self._report(telemetry.Problem("warning", f"a peer's result was refused: {error}"))
            return PayloadChecked(payload_hash, False, tag)
        except RanksLost:
            raise
        except Exception as error:
            logger.debug("a payload's check failed", exc_info=error)
            return PayloadCheckFailed(payload_hash, f"a peer's result could not be checked: {self._explain(error)}")

        self._payloads.put(payload_hash, payload, tag=tag)
        return PayloadChecked(payload_hash, True, tag)

    async def keep(self, action: KeepResults) -> None:
        """Write verified results to the journal, if there is one."""
        self._overlaps.note_results(action.results)
        await self._checkpoints.keep(action, self._payloads)

    async def sync(self) -> None:
        """Sync the journal to disk; await it before a statement is sent."""
        await self._checkpoints.sync()

    def checkpoint_of(self, step: int) -> Path | None:
        """The folder of the last checkpoint that we saved, if it is of this step."""
        return self._checkpoints.saved_of(step)

    async def save_on_leaving(self) -> None:
        """Save the masters if they are newer than our last checkpoint, within a timeout; reports it."""
        await self._checkpoints.leave()

    async def publish_journals(self) -> None:
        """Publish finished journals, if that is wanted, until cancelled."""
        await self._checkpoints.publish_journals()

    async def publish_present(self) -> None:
        """Publish the journal as it is now, too: the client ends in order."""
        await self._checkpoints.finish_publishing(present=True)

    async def aclose(self) -> None:
        """Publish what was not published yet, and remove files kept on disk for others. Idempotent."""
        await self._exchange.aclose()
        with anyio.CancelScope(shield=True):
            await self._checkpoints.sync()
            await self._checkpoints.finish_publishing()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._descriptions.close)

    async def expire(self, before: int) -> None:
        """Drop payloads and snapshots with older tags."""
        self._payloads.expire(before)
        try:
            await self._exchange.expire(before)
        except Exception as error:  # files that cannot be removed must not stop us
            logger.debug("removing old snapshots failed", exc_info=error)
            self._report(telemetry.Problem("warning", f"old files of the model could not be removed: {self._explain(error)}"))

    async def _apply(self, work: Apply) -> WorkDone:
        self._exchange.check_usable()
        lost = self._payloads.lacking(work.payload_hashes)
        if lost:
            return PayloadsLost(work.height, lost)

        payloads = self._payloads.all(work.payload_hashes)
        started = perf_counter()

        def apply() -> float:
            rate = self.resources.trainer.rate_of(work.step)
            with self.resources.observer.applying(work.step):
                self.resources.trainer.apply(work.step, payloads, own_accepted=work.own_accepted, learning_rate=rate)
            return rate

        self._checkpoints.masters_change()
        rate = await anyio.to_thread.run_sync(apply)
        await self._checkpoints.applied(work, learning_rate=rate)
        self.resources.observer.applied(work.step, payloads, self._report)
        self._applied = work, payloads
        return Applied(work.height, perf_counter() - started)

    async def compare_results(self) -> None:
        """Compare the results that were applied last with others, and report it; once for each step, in a thread."""
        applied, self._applied = self._applied, None
        if applied is None or self._comparing:
            return  # a step is left out rather than waited for

        self._comparing = True
        try:
            told = await anyio.to_thread.run_sync(self._overlaps.measure, *applied, self.resources.trainer)
        finally:
            self._comparing = False
        if told is not None:
            self._report(told)

    async def _close(self, work: CloseEpoch) -> WorkDone:
        self._exchange.check_usable()
        digest = await anyio.to_thread.run_sync(self.resources.trainer.full_digest)
        try:
            await self._validate(work.step)
        except RanksLost:
            raise
        except Exception as error:  # only a number to show
            logger.debug("validation failed", exc_info=error)
            self._report(
                telemetry.Problem("error", f"the model after step {work.step} was not validated: {self._explain(error)}")
            )
        saved = await self._checkpoints.close_epoch(work, digest)
        return EpochClosed(digest, saved)

    async def store(self, action: StoreModel) -> ModelStored | StoreFailed:
        """Put the checkpoint of an epoch's end into our store; a failure is reported in one sentence."""
        checkpoints = self.resources.checkpoints
        if self._model_store is None or checkpoints is None:
            return StoreFailed(action.step, "there is no store for the model, or no folder of checkpoints")

        directory = checkpoint_path(checkpoints, self._run_id, action.step)
        try:
            location = await self._model_store.put(directory, run_id=self._run_id, step=action.step)
        except Exception as error:  # StoreError, or anything unexpected
            logger.debug("storing a model failed", exc_info=error)
            return StoreFailed(action.step, f"the model of step {action.step} was not stored: {self._explain(error)}")

        return ModelStored(action.step, location)

    async def _validate(self, step: int) -> None:
        validation = self.resources.validation
        if validation is not None:
            loss = await anyio.to_thread.run_sync(self.resources.trainer.evaluate, validation)
            self._report(telemetry.Validated(step, loss))


def _step_of_stored(state: CoordinatorState, step: int | None, digest: bytes) -> int | None:
    """The step of a stored model if the run can continue from it: the coordinator knows the step, and a signed digest matches."""
    if step is None or state.from_checkpoint or step != state.stored.step:
        return None

    return step if state.stored.digest in (NO_DIGEST, digest) else None
