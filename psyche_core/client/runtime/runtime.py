"""The anyio part of the client around its machine: it turns I/O into events and actions into I/O, and decides nothing itself.

One queue (`event_queue`) feeds the machine, so one task handles one event at a time. Everything that waits runs in tasks of one
task group.

Cancelling `run` ends the client at once. `leave` asks the machine to leave in order: the machine withdraws, serves its last
results for a limited time (`Timeouts.leaving`) and stops. The runtime waits, also for a limited time, for the coordinator's
answer.

When a coordinator does not answer, the user is informed once, and the runtime waits until the backend reports that the
coordinator is permanently gone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from psyche_core.client.actions import Actions
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.machine import ClientMachine, Timeouts
from psyche_core.client.runtime.coordinator_requests import CoordinatorRequests
from psyche_core.client.runtime.downloads import DOWNLOADS_AT_ONCE, PayloadDownloads
from psyche_core.client.runtime.event_queue import EventQueue, ticks
from psyche_core.client.runtime.message_reader import MessageReader
from psyche_core.client.runtime.reports.fetch_times import FetchTimes
from psyche_core.client.runtime.reports.lost_shares import with_lost_shares
from psyche_core.client.runtime.reports.network_reporter import NetworkReporter
from psyche_core.client.runtime.reports.run_changes import RunChanges
from psyche_core.client.runtime.reports.step_figures import StepFigureMaker
from psyche_core.client.runtime.resources import Resources
from psyche_core.client.runtime.state_watch import StateWatch
from psyche_core.client.runtime.worker import Worker
from psyche_core.coordinator.commands import Command, Withdraw, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendError, ModelError, PluginFailed, PsycheError
from psyche_core.interfaces import Backend, Transport
from psyche_core.storage.model_stores.run_end import end_sentence
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.types import EvaluationScore, NodeIdentity, RunState
from psyche_core.wire.messages import seal, sign_commitment
from psyche_core.wire.signing import SecretKey

logger: logging.Logger = logging.getLogger("psyche.client")

WITHDRAW_TIMEOUT = 5.0
PartAction = TypeVar("PartAction")


class ClientRuntime(Actions[Awaitable[None]]):
    """Runs one client over an entered backend and an entered transport.

    worker: does the machine's work, with the same transport. report: takes events for people. downloads_at_once: payloads fetched
    at the same time. follow: called with each state of the coordinator, for displays; must not block. at_end: awaited once the
    run is over, while the model is still in memory.
    """

    def __init__(
        self,
        *,
        run_id: str,
        key: SecretKey,
        backend: Backend,
        transport: Transport,
        worker: Worker,
        report: EventBus,
        timeouts: Timeouts | None = None,
        downloads_at_once: int = DOWNLOADS_AT_ONCE,
        follow: Callable[[CoordinatorState], None] | None = None,
        at_end: Callable[[], Awaitable[None]] | None = None,
        scores: Callable[[], tuple[EvaluationScore, ...]] | None = None,
    ) -> None:
        self._at_end = at_end
        self._scores = scores
        self._key = key
        self._backend = backend
        self._transport = transport
        self._report = report
        self._tasks: TaskGroup
        self._worker = worker
        self._explain = worker.explain
        self._timeouts = timeouts or Timeouts()
        self._network = NetworkReporter(transport, report, own=backend.identity)
        self._coordinator = CoordinatorRequests(backend, transport, report, run_id=run_id)
        self._fetching = FetchTimes()
        self._downloads = PayloadDownloads(
            transport, worker, network=self._network, times=self._fetching, at_once=downloads_at_once, explain=self._explain
        )
        self._machine = ClientMachine(
            backend.identity,
            run_id,
            sign=lambda commitment: sign_commitment(key, self.state.instance, commitment),
            timeouts=self._timeouts,
            can_store=worker.can_store,
        )
        self._queue = EventQueue()
        self._changes = RunChanges()
        self._states = StateWatch(
            backend,
            transport,
            self._coordinator,
            queue=self._queue,
            changes=self._changes,
            times=self._fetching,
            connect=self._connect,
            apply_failure=lambda: worker.failures.apply_failure,
            report=report,
            follow=follow,
            explain=self._explain,
        )
        self._messages = MessageReader(transport, lambda: self.state.instance, queue=self._queue, network=self._network)
        self._addresses: Mapping[bytes, bytes] = {}
        self._figures = StepFigureMaker()
        self._waits: telemetry.WaitsForEpoch | None = None
        self._members: tuple[NodeIdentity, ...] = ()
        self._members_seed = 0
        self._stopped: act.Stop | None = None
        self._failure: PsycheError | None = None
        self._leave_asked = False
        self._left = False
        self._withdrawn: anyio.Event | None = None

    @property
    def must_restart(self) -> bool:
        """Whether the client ended in order to start again from its disk, because the coordinator lost progress."""
        return self._machine.stopped is not None and self._machine.stopped.again

    @property
    def state(self) -> CoordinatorState:
        """The newest coordinator state. Raises RuntimeError before the first."""
        if self._machine.state is None:
            message = "no coordinator state has arrived yet"
            raise RuntimeError(message)

        return self._machine.state

    @property
    def known_state(self) -> CoordinatorState | None:
        """The newest coordinator state, None before the first."""
        return self._machine.state

    @property
    def resources(self) -> Resources | None:
        """Trainer and data in use; None before the model is loaded."""
        return self._worker.opened

    def leave(self) -> None:
        """Ask the client to leave in order; safe to call from a signal handler of the loop."""
        self._leave_asked = True
        self._network.end_wait()
        self._wake()

    async def run(self) -> telemetry.Ended:
        """Take part until the run ends or we leave. Raises BackendError, ModelError, DataError when it cannot continue."""
        try:
            stop = await self._take_part()
        except Exception as error:  # from a plugin called here, or a bug: report it as an event too
            self._report(telemetry.Ended(self._explain(error), success=False))
            raise

        if stop is None and self._failure is not None:
            self._report(telemetry.Ended(self._failure.sentence, success=False))
            raise self._failure

        reason, success = ("stopped", False) if stop is None else (stop.reason, stop.success)
        state = self._machine.state
        if success and not self._left and state is not None and state.run_state is RunState.Finished:
            reason = end_sentence(state, reason=reason, checkpoint=self._worker.checkpoints.saved_of(state.progress.step - 1))
        ended = telemetry.Ended(reason, success=success)
        self._report(self._network.totals)
        self._report(ended)
        return ended

    async def _take_part(self) -> act.Stop | None:
        """Run until the machine stops us, and return its reason; None if something failed."""
        async with contextlib.aclosing(self._worker):
            stop = await self._follow()
            if stop is not None and self._left and self._machine.masters_are_valid:
                await self._worker.checkpoints.leave()
            if stop is not None and stop.success and not stop.again:
                await self._worker.checkpoints.finish_publishing(present=True)
            if stop is not None and stop.success and not self._left and self._at_end is not None:
                await self._at_end()
        return stop

    async def _follow(self) -> act.Stop | None:
        """Turn events into actions until the machine stops or something fails; see `_take_part`."""
        async with self._queue, anyio.create_task_group() as tasks:
            self._tasks = tasks
            for watch in (self._follow_states, self._messages.run, self._watch_time, self._worker.checkpoints.publish_journals):
                tasks.start_soon(watch)
            async for event in self._queue.events():
                actions = self._machine.handle(event, anyio.current_time())
                if self._leave_asked:
                    self._leave_asked, self._left = False, True
                    actions = [*actions, *self._machine.handle(ev.LeaveRequested(), anyio.current_time())]
                await self._carry_out_all(actions)
                if self._stopped is not None or self._failure is not None:
                    break

            self._queue.close()
            if self._stopped is not None and self._stopped.success and not self._left:
                await self._serve_on()
            if self._withdrawn is not None:
                with anyio.move_on_after(WITHDRAW_TIMEOUT):
                    await self._withdrawn.wait()
            tasks.cancel_scope.cancel()
        return self._stopped

    async def _serve_on(self) -> None:
        """Wait, for a limited time, while peers fetch much from us, if a member may need the run's last model."""
        if self._machine.model_awaited and not self._leave_asked:
            with anyio.move_on_after(self._timeouts.payload):
                await self._network.wait_until_idle()

    def _wake(self) -> None:
        """Make `run` check its flags again. A full queue makes it check anyway."""
        self._queue.put_or_drop(ev.TimePassed())

    def _fail(self, error: PsycheError) -> None:
        self._failure = self._failure or error
        self._wake()

    # -------------------------------------------------------------------------------------------- I/O into events

    async def _follow_states(self) -> None:
        try:
            await self._states.run(self._tasks)
        except (BackendError, PluginFailed) as error:
            self._fail(error)

    async def _watch_time(self) -> None:
        self._network.start(anyio.current_time())
        async for now in ticks(self._queue, self._transport):
            bytes_per_second = self._network.tick(now, self._members)
            if bytes_per_second is not None:
                self._queue.put_or_drop(ev.BandwidthSeen(bytes_per_second))
                if not self._left and self._coordinator.address_is_due(now):
                    self._tasks.start_soon(self._coordinator.publish_address)

    # -------------------------------------------------------------------------------------------- actions into I/O

    async def _carry_out_all(self, actions: list[act.Action]) -> None:
        for action in actions:
            await self.carry_out(action)
            if self._stopped is not None:
                return

    async def _stop(self, action: act.Stop) -> None:
        self._stopped = action

    async def _notify(self, action: act.Notify) -> None:
        event = action.event
        if isinstance(event, telemetry.Dropped):  # the machine knows that no result came, but not always why
            event = self._changes.explained(event, training_fails=self._worker.failures.training_fails)
        elif isinstance(event, telemetry.StepApplied):
            event = with_lost_shares(event, self._machine.notes)
        if isinstance(event, telemetry.WaitsForEpoch) and not self._coordinator.joined:
            self._waits = event  # report it after joining; an earlier process of this client may already be a member
        else:
            self._report(event)

    async def _join(self, action: act.Join) -> None:  # noqa: ARG002 - carries nothing
        self._tasks.start_soon(self._become_member)

    async def _send(self, action: act.Send) -> None:
        if isinstance(action.command, Withdraw):
            self._withdrawn = anyio.Event()
            self._tasks.start_soon(self._withdraw, action.command, self._withdrawn)
        else:
            self._tasks.start_soon(self._ask, self._with_scores(action.command))

    def _with_scores(self, command: Command) -> Command:
        """Return a statement with the scores that were measured since the last one."""
        if self._scores is None or not isinstance(command, Witness) or command.metadata is None:
            return command

        return replace(command, metadata=replace(command.metadata, scores=self._scores()))

    async def _set_peers(self, action: act.SetPeers) -> None:
        self._members, self._members_seed = action.members, action.seed
        await self._connect(self._addresses)

    async def _broadcast(self, action: act.Broadcast) -> None:
        self._network.count(broadcasts_sent=1)
        await self._transport.broadcast(seal(self._key, self.state.instance, action.message), tag=action.tag)

    async def _fetch_payload(self, action: act.FetchPayload) -> None:
        self._tasks.start_soon(self._fetch, action)

    async def _expire(self, action: act.Expire) -> None:
        self._tasks.start_soon(self._worker.expire, action.before)
        self._tasks.start_soon(self._transport.expire, action.before)

    async def _keep_results(self, action: act.KeepResults) -> None:
        await self._worker.keep(action)

    async def _prefetch(self, action: act.Prefetch) -> None:
        self._tasks.start_soon(self._worker.prefetch, action.share)

    async def _set_timer(self, action: act.SetTimer) -> None:
        self._tasks.start_soon(self._wait_and_remind, action)

    async def _store_model(self, action: act.StoreModel) -> None:
        self._tasks.start_soon(self._store, action)

    async def _show_part(self, action: act.ShowPart) -> None:
        self._tasks.start_soon(self._answer, self._worker.checks.show, action)

    async def _fetch_part(self, action: act.FetchPart) -> None:
        self._tasks.start_soon(self._answer, self._worker.checks.fetch, action)

    async def _check_parts(self, action: act.CheckParts) -> None:
        self._tasks.start_soon(self._answer, self._worker.checks.check, action)

    async def _work(self, action: act.Work) -> None:
        self._tasks.start_soon(self._do, action)

    # -------------------------------------------------------------------------------------------- I/O that waits, in tasks

    async def _connect(self, addresses: Mapping[bytes, bytes]) -> None:
        """Give the transport the list of members, with us as soon as we are a member. addresses: the members', by signer."""
        self._addresses = addresses
        peers = {member.p2p: self._addresses.get(member.signer, b"") for member in self._members}
        await self._transport.set_peers(peers, seed=self._members_seed)

    async def _answer(self, carry_out: Callable[[PartAction], Awaitable[ev.Event]], action: PartAction) -> None:
        self._worker.checks.follow(self.state)
        await self._queue.put(await carry_out(action))

    async def _do(self, work: act.Work) -> None:
        self._worker.checks.follow(self.state)
        try:
            done = await self._worker.do(work)
        except PsycheError as error:
            self._fail(error)
            return

        self._report_figures(done)
        await self._queue.put(done)
        if isinstance(done, ev.Applied):
            await self._worker.compare_results()  # while the machine continues

    def _report_figures(self, done: ev.WorkDone) -> None:
        """Report the figures that people watch in addition to the loss."""
        newest = self._worker.newest_step
        if isinstance(done, ev.Applied):
            self._figures.applied(done.seconds)
        elif isinstance(done, ev.Trained) and newest is not None:
            self._changes.note_trained(done.height)
            self._report(self._figures.trained(newest, self.state, now=anyio.current_time()))

    async def _wait_and_remind(self, action: act.SetTimer) -> None:
        await anyio.sleep(action.seconds)
        await self._queue.put(ev.TimerExpired(action.tag))

    async def _store(self, action: act.StoreModel) -> None:
        await self._queue.put(await self._worker.store(action))

    async def _become_member(self) -> None:
        """Join once our model and data are open."""
        try:
            await self._coordinator.join(self._prepare)
        except PsycheError as error:
            self._fail(error)
        if self._waits is not None and self._coordinator.joined:
            waits, self._waits = self._waits, None
            if waits.epoch == self.state.progress.epoch:
                self._report(waits)

    async def _prepare(self) -> None:
        """Open model and data; raises PsycheError."""
        try:
            await self._worker.prepare(self.state)
        except PsycheError:
            raise
        except Exception as error:
            logger.debug("opening model and data failed", exc_info=error)
            message = f"the model and its data could not be opened: {self._explain(error)}"
            raise ModelError(message) from error

        await self._states.relays_used.wait()

    async def _withdraw(self, command: Command, answered: anyio.Event) -> None:
        try:
            await self._ask(command)
        finally:
            answered.set()

    async def _ask(self, command: Command) -> None:
        if isinstance(command, Witness):
            await self._worker.checkpoints.sync()  # save what we attest to first
        answer = await self._coordinator.send(command)
        if answer is not None:
            await self._queue.put(answer)

    async def _fetch(self, action: act.FetchPayload) -> None:
        try:
            await self._queue.put(await self._downloads.fetch(action))
        except PsycheError as error:  # ranks are lost
            self._fail(error)
