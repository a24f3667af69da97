"""The part of the client that computes: model, optimizer, data and payloads, in threads, so that the event loop never blocks.

One trainer thread works at a time, because the machine never asks for two pieces of work. Payload checks run beside it, and
samples of the next share are read meanwhile. Model and data are opened before the client joins the run, so that a model that does
not fit delays nobody. An error of any work but Load becomes an event, unless the client cannot continue: nobody could use our own
result, ranks are lost, a plugin fails again and again, or the user has to repair something. The worker does one `Work` at a time
and reports the result; it decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from time import perf_counter

import anyio
import anyio.to_thread

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.model_sync.described_snapshot import offer_described
from psyche_core.client.model_sync.description import DescriptionExchange
from psyche_core.client.model_sync.exchange import ModelExchange
from psyche_core.client.runtime.checking.share_checker import ShareChecker
from psyche_core.client.runtime.checkpointing import Checkpointer
from psyche_core.client.runtime.model_lending import ModelLending
from psyche_core.client.runtime.opening import ResourcesOpener, start_in
from psyche_core.client.runtime.payloads import PayloadStore, check_own
from psyche_core.client.runtime.read_ahead import DATA_TIMEOUT, ReadAhead
from psyche_core.client.runtime.reports.result_overlaps import ResultOverlapMeter
from psyche_core.client.runtime.reports.step_figures import TrainedStep
from psyche_core.client.runtime.resources import Resources, ResourcesRequest
from psyche_core.client.runtime.sample_checks import read_samples
from psyche_core.client.runtime.work_failures import WorkFailures, not_done
from psyche_core.coordinator.state import CoordinatorState
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
from psyche_core.storage.model_stores.interface import CheckpointStore
from psyche_core.telemetry import events as telemetry
from psyche_core.training.checkpoints.initial_model import NoModelSource
from psyche_core.types import BatchId

logger: logging.Logger = logging.getLogger("psyche.client")

ENDS_THE_CLIENT = (UserError, RanksLost, PluginFailed)
"""Errors that end the client: no other member can help."""


def describe_exception(error: BaseException) -> str:
    """Return one sentence about an exception, for callers without plugins."""
    return error.sentence if isinstance(error, PsycheError) else summary_of(error)


class Worker:
    """Does work for the machine.

    build: opens everything for a run; called for each Load; may take long; raises NoModelSource if nothing on this machine says
    how the run's model is built. store: where models of epoch ends are stored. exchange, descriptions: transfer models between
    members. explain: returns one sentence about an unexpected exception. check: checks everything on this machine but the model
    before the client joins; None checks nothing. spare: lends the model to evaluations between two pieces of work.

    checkpoints: what is saved on this machine; `aclose` publishes what is not published yet. failures: of our own work. checks:
    our part in challenges of shares.
    """

    def __init__(
        self,
        build: Callable[[ResourcesRequest], Awaitable[Resources]],
        *,
        transport: Transport,
        report: Callable[[telemetry.Event], None],
        store: CheckpointStore | None = None,
        exchange: ModelExchange | None = None,
        descriptions: DescriptionExchange | None = None,
        explain: Callable[[BaseException], str] = describe_exception,
        check: Callable[[CoordinatorState], Awaitable[None]] | None = None,
        spare: SpareTime | None = None,
    ) -> None:
        self._lending = ModelLending(spare)
        self._build = build
        self.explain: Callable[[BaseException], str] = explain
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
        self.checkpoints: Checkpointer = Checkpointer(report, explain=explain)
        self._reading = ReadAhead(explain=explain)
        self._overlaps = ResultOverlapMeter()
        self.checks: ShareChecker = ShareChecker(transport, explain=explain)
        self._newest: TrainedStep | None = None
        self.failures: WorkFailures = WorkFailures()

    @property
    def resources(self) -> Resources:
        """The open resources; the machine never asks for work before ModelReady."""
        if self._resources is None:
            message = "the model is not loaded yet"
            raise RuntimeError(message)

        return self._resources

    @property
    def newest_step(self) -> TrainedStep | None:
        """The step that was trained last, for reports; None before the first."""
        return self._newest

    @property
    def can_store(self) -> bool:
        """Whether there is a store for models of epoch ends."""
        return self._model_store is not None

    @property
    def opened(self) -> Resources | None:
        """The open resources; None before there are any."""
        return self._resources

    async def do(self, work: act.Work) -> ev.WorkDone:
        """Carry out one piece of work.

        Raises PsycheError when the client cannot continue: any error of Load, and for other work the errors in ENDS_THE_CLIENT.
        """
        try:
            async with self._lending.taken_back():
                done = await self._do(work)
                self._lending.note_step(done, work)
                self.failures.note_success(done)
            if isinstance(work, act.Load) and isinstance(done, ev.ModelReady) and work.state.progress.step == 1:
                await self._lending.show_first()
            return done
        except ENDS_THE_CLIENT:
            raise
        except Exception as error:
            logger.debug("%s failed", type(work).__name__, exc_info=error)
            if not isinstance(work, act.Load):
                sentence = f"{not_done(work)}: {self.explain(error)}"
                self.failures.note_failure(work, sentence, error)
                return ev.WorkFailed(work, sentence)
            if isinstance(error, PsycheError):
                raise

            message = f"the model and its data could not be opened: {self.explain(error)}"
            raise ModelError(message) from error

    async def _do(self, work: act.Work) -> ev.WorkDone:
        match work:
            case act.Load():
                return await self._load(work)
            case act.Train():
                return await self._train(work)
            case act.Apply():
                return await self._apply(work)
            case act.Digest():
                return ev.Digested(work.height, await anyio.to_thread.run_sync(self.resources.trainer.full_digest))
            case act.CloseEpoch():
                return await self._close(work)
            case act.TakeSnapshot():
                return await offer_described(
                    self.resources.trainer,
                    work,
                    exchange=self._exchange,
                    descriptions=self._descriptions,
                    run_id=self._run_id,
                    report=self._report,
                )
            case act.FetchModel(build=None):
                self.checkpoints.masters_change()
                done = await self._exchange.fetch(self.resources.trainer, work, run_id=self._run_id)
                if isinstance(done, ev.ModelFetched):
                    self.checks.masters_replaced(work.step)
                    await self.checkpoints.fetched(work)
                return done
            case act.FetchModel():
                return await self._build_and_fetch(work)
            case act.Recompute():
                return await self._recompute(work)

    async def prepare(self, state: CoordinatorState) -> None:
        """Open model and data before the run is joined, see `ResourcesOpener.prepare`."""
        await self._opener.prepare(state, is_loaded=lambda: self._resources is not None)

    async def _load(self, work: act.Load) -> ev.WorkDone:
        try:
            self._resources = resources = await self._opener.load(work)
        except NoModelSource as error:
            return ev.SourceMissing(str(error))

        self._exchange.model_replaced()
        self._take_run(work.state)
        self.checkpoints.use(resources, run_id=self._run_id, instance=self._instance)
        digest = await anyio.to_thread.run_sync(resources.trainer.full_digest)
        if work.state.progress.step == 1:  # at later steps the run no longer uses these weights
            await self._validate(0)
        step, held = start_in(work.state, resources, digest)
        known = 0 if step is None and work.state.progress.step == 1 else step
        self.checks.use(resources.trainer, step=known)
        return ev.ModelReady(digest, resources.trainer.max_payload_bytes, step, held, journalled=resources.journal is not None)

    def _take_run(self, state: CoordinatorState) -> None:
        self._run_id, self._sequence_length = state.run_id, state.model.LLM.max_seq_len
        self._instance, self._generation = state.instance, state.generation

    async def _build_and_fetch(self, work: act.FetchModel) -> ev.ModelReady | ev.ModelFetchFailed:
        """Build the model from the other members' descriptions, tried one after the other, and load their master weights."""
        assert work.build is not None
        reason = "no member says how the model is built"
        for blob_hash, size in work.descriptions:
            try:
                folder = await self._descriptions.fetch(blob_hash, size, sources=work.sources, tag=work.tag)
                resources = await self._build(ResourcesRequest(work.build, folder=folder))
            except ENDS_THE_CLIENT:
                raise  # the description is not the cause
            except Exception as error:  # another member's description may be wrong: try the next
                logger.debug("a description could not be used", exc_info=error)
                reason = self.explain(error)
                continue

            done = await self._exchange.fetch(resources.trainer, work, run_id=work.build.run_id)
            if isinstance(done, ev.ModelFetched):
                self._resources = resources
                self._take_run(work.build)
                self._exchange.model_replaced()
                self.checkpoints.use(resources, run_id=self._run_id, instance=self._instance)
                self.checks.use(resources.trainer, step=work.step)
                await self.checkpoints.fetched(work)
                return ev.ModelReady(done.digest, resources.trainer.max_payload_bytes, work.step)
            reason = done.reason
        return ev.ModelFetchFailed(work.step, f"the model of the run could not be built: {reason}")

    async def prefetch(self, share: tuple[BatchId, ...]) -> None:
        """Read a share's samples before its Train work."""
        if self._resources is not None:
            await self._reading.begin(self._resources, share, sequence_length=self._sequence_length)

    async def _train(self, work: act.Train) -> ev.WorkDone:
        try:
            self._exchange.check_usable()
            samples = await self._reading.samples(self.resources, work.share, sequence_length=self._sequence_length)
            if work.generation != self._generation:  # results of a history that the run has left are never settled
                await anyio.to_thread.run_sync(self.resources.trainer.forget)
                self.checks.delta_forgotten()
                self._generation = work.generation
            done = await anyio.to_thread.run_sync(self.resources.trainer.train, work.step, samples)
            await anyio.to_thread.run_sync(self.resources.observer.compressed, work.step)
            roots = await self.checks.roots(work.step)
            if self.resources.training_delay:
                await anyio.sleep(self.resources.training_delay)
        except RanksLost:
            raise  # no later step could be trained either
        except (DataError, ModelError, NonFiniteError, TimeoutError) as error:
            reason = f"{not_done(work)}: {str(error) or type(error).__name__}"
            if isinstance(error, ProviderFailed):
                self.failures.note_failure(work, reason, error)
            self.failures.training_fails = not isinstance(error, NothingForUs)
            return ev.TrainFailed(work.height, reason, passing=isinstance(error, NothingForUs))

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
        return ev.Trained(work.height, loss, done.tokens, done.seconds, payload_hash, len(done.payload), roots)

    async def _recompute(self, work: act.Recompute) -> ev.Recomputed | ev.RecomputeFailed:
        try:
            self._exchange.check_usable()
            samples = await read_samples(
                self.resources.data,
                work.share,
                sequence_length=self._sequence_length,
                vocab_size=self.resources.trainer.vocab_size,
                name=self.resources.data_name,
                timeout=DATA_TIMEOUT,
            )
        except (DataError, ModelError, TimeoutError) as error:
            return ev.RecomputeFailed(work.place, f"{not_done(work)}: {str(error) or type(error).__name__}")

        return await self.checks.recompute(work, samples)

    async def receive(self, payload_hash: bytes, payload: bytes, *, tag: int) -> ev.PayloadChecked | ev.PayloadCheckFailed:
        """Keep a fetched payload if it fits our parameter table; return whether it does. Raises RanksLost.

        If the check raises anything but PayloadRejected, it is unknown whether the payload is valid.
        """
        try:
            await anyio.to_thread.run_sync(self.resources.trainer.check, payload)
        except PayloadRejected as error:
            self._report(telemetry.Problem("warning", f"a peer's result was refused: {error}"))
            return ev.PayloadChecked(payload_hash, False, tag)
        except RanksLost:
            raise
        except Exception as error:
            logger.debug("a payload's check failed", exc_info=error)
            return ev.PayloadCheckFailed(payload_hash, f"a peer's result could not be checked: {self.explain(error)}")

        self._payloads.put(payload_hash, payload, tag=tag)
        return ev.PayloadChecked(payload_hash, True, tag)

    async def keep(self, action: act.KeepResults) -> None:
        """Write verified results to the journal, if there is one."""
        self._overlaps.note_results(action.results)
        await self.checkpoints.keep(action, self._payloads)

    async def aclose(self) -> None:
        """Publish what is not published yet, and remove files kept on disk for others. Idempotent."""
        await self._exchange.aclose()
        with anyio.CancelScope(shield=True):
            await self.checkpoints.sync()
            await self.checkpoints.finish_publishing()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._descriptions.close)

    async def expire(self, before: int) -> None:
        """Drop payloads and snapshots with older tags."""
        self._payloads.expire(before)
        self.checks.expire(before)
        try:
            await self._exchange.expire(before)
        except Exception as error:  # failing to remove files must not end the client
            logger.debug("removing old snapshots failed", exc_info=error)
            self._report(telemetry.Problem("warning", f"old files of the model could not be removed: {self.explain(error)}"))

    async def _apply(self, work: act.Apply) -> ev.WorkDone:
        self._exchange.check_usable()
        lost = self._payloads.lacking(work.payload_hashes)
        if lost:
            return ev.PayloadsLost(work.height, lost)

        payloads = self._payloads.all(work.payload_hashes)
        started = perf_counter()

        def apply() -> float:
            rate = self.resources.trainer.rate_of(work.step)
            with self.resources.observer.applying(work.step):
                self.resources.trainer.apply(work.step, payloads, own_accepted=work.own_accepted, learning_rate=rate)
            return rate

        self.checkpoints.masters_change()
        rate = await anyio.to_thread.run_sync(apply)
        self.checks.applied(work, payloads, learning_rate=rate)
        await self.checkpoints.applied(work, learning_rate=rate)
        self.resources.observer.applied(work.step, payloads, self._report)
        self._overlaps.applied(work, payloads)
        return ev.Applied(work.height, perf_counter() - started)

    async def compare_results(self) -> None:
        """Compare the results that were applied last with earlier ones, in a thread, and report it."""
        told = await self._overlaps.compare(self.resources.trainer)
        if told is not None:
            self._report(told)

    async def _close(self, work: act.CloseEpoch) -> ev.WorkDone:
        self._exchange.check_usable()
        digest = await anyio.to_thread.run_sync(self.resources.trainer.full_digest)
        try:
            await self._validate(work.step)
        except RanksLost:
            raise
        except Exception as error:  # validation only gives a number for people
            logger.debug("validation failed", exc_info=error)
            self._report(telemetry.Problem("error", f"the model after step {work.step} was not validated: {self.explain(error)}"))
        saved = await self.checkpoints.close_epoch(work, digest)
        return ev.EpochClosed(digest, saved)

    async def store(self, action: act.StoreModel) -> ev.ModelStored | ev.StoreFailed:
        """Put the checkpoint of an epoch's end into our store. A failure is returned as one sentence."""
        checkpoints = self.resources.checkpoints
        if self._model_store is None or checkpoints is None:
            return ev.StoreFailed(action.step, "there is no store for the model, or no folder of checkpoints")

        directory = checkpoint_path(checkpoints, self._run_id, action.step)
        try:
            location = await self._model_store.put(directory, run_id=self._run_id, step=action.step)
        except Exception as error:  # StoreError, or anything unexpected
            logger.debug("storing a model failed", exc_info=error)
            return ev.StoreFailed(action.step, f"the model of step {action.step} was not stored: {self.explain(error)}")

        return ev.ModelStored(action.step, location)

    async def _validate(self, step: int) -> None:
        validation = self.resources.validation
        if validation is not None:
            loss = await anyio.to_thread.run_sync(self.resources.trainer.evaluate, validation)
            self._report(telemetry.Validated(step, loss))
