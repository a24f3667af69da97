"""The anyio shell around the client machine: turns I/O into events and actions into I/O, and decides nothing itself.

One queue feeds the machine, so one task handles one event at a time; everything that waits runs in tasks of one task group.
Cancelling `run` ends at once. `leave` asks the machine to leave in order: it withdraws, serves its last results for a bounded
time (`Timeouts.leaving`) and stops; the runtime waits, bounded too, until the coordinator has acknowledged.

The queue is bounded, and nothing that matters is dropped from it. A state, a message, a peer change or the outcome of work waits
for space; only ticks and bandwidth figures are dropped. So a flood of messages slows down the flood: unread messages pile up in
the transport, which limits them per peer and disconnects a peer that exceeds its share. When a coordinator does not answer,
people are told once, and the runtime waits until the backend says that the coordinator is gone for good.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import assert_never

import anyio
from anyio.abc import TaskGroup

from psyche_core.client.machine import events as ev
from psyche_core.client.machine.machine import ClientMachine, Timeouts
from psyche_core.client.model_sync.description import DescriptionExchange
from psyche_core.client.model_sync.exchange import ModelExchange
from psyche_core.client.runtime.limiter import Limiter
from psyche_core.client.runtime.resources import ModelStore, Resources, Start
from psyche_core.client.runtime.worker import Worker, plainly
from psyche_core.coordinator.commands import Command, WarmupWitness, Withdraw, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendError, BlobRejected, CommandRefused, ModelError, PsycheError, TransportError, WireError
from psyche_core.interfaces import Backend, Transport
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.types import NodeIdentity, RunState
from psyche_core.wire.messages import seal, sign_commitment, unseal
from psyche_core.wire.signing import SecretKey

logger = logging.getLogger("psyche.client")

COMMAND_TIMEOUT = 10.0
FETCH_TIMEOUT = 30.0
DOWNLOADS_AT_ONCE = 8
DOWNLOAD_TURN = 2.0
"""Seconds after which an unfinished payload download no longer delays the next one."""

WITHDRAW_TIMEOUT = COMMAND_TIMEOUT / 2
TICK_SECONDS = 0.25
TOTALS_SECONDS = 1.0
QUEUE_LENGTH = 4096
PASSING_REFUSALS = ("ClientsFull", "Halted")
"""Refusals of a join after which the machine asks again, or learns from the next state that the run is finished."""


class ClientRuntime:
    """Runs one client over an entered backend and an entered transport.

    build: opens model, optimizer and data for the run (see Worker). report: where events for people go. store: where we put the
    model when it is our turn; None without a store. exchange: transfers whole models; a default one if not given.
    downloads_at_once: payloads fetched at the same time. explain: one sentence about an unexpected exception, with the plugin
    it came from. check: see Worker.
    """

    def __init__(
        self,
        *,
        run_id: str,
        key: SecretKey,
        backend: Backend,
        transport: Transport,
        build: Callable[[Start], Awaitable[Resources]],
        report: EventBus,
        timeouts: Timeouts | None = None,
        store: ModelStore | None = None,
        exchange: ModelExchange | None = None,
        descriptions: DescriptionExchange | None = None,
        downloads_at_once: int = DOWNLOADS_AT_ONCE,
        explain: Callable[[BaseException], str] = plainly,
        check: Callable[[CoordinatorState], Awaitable[None]] | None = None,
    ) -> None:
        self._run_id = run_id
        self._key = key
        self._backend = backend
        self._transport = transport
        self._report = report
        self._worker = Worker(
            build,
            transport=transport,
            tell=report,
            store=store,
            exchange=exchange,
            descriptions=descriptions,
            explain=explain,
            check=check,
        )
        self._explain = explain
        self._downloads = Limiter(downloads_at_once, seconds=DOWNLOAD_TURN)
        self._machine = ClientMachine(
            backend.identity,
            run_id,
            sign=lambda commitment: sign_commitment(key, self.state.instance, commitment),
            timeouts=timeouts,
            can_store=store is not None,
        )
        self._events, self._inbox = anyio.create_memory_object_stream[ev.Event](QUEUE_LENGTH)
        self._addresses: Mapping[bytes, bytes] = {}
        self._members: tuple[NodeIdentity, ...] = ()
        self._failure: PsycheError | None = None
        self._leave_asked = False
        self._left = False
        self._joining = False
        self._joined = False
        self._silent_since: float | None = None
        self._withdrawn: anyio.Event | None = None

    @property
    def begins_anew(self) -> bool:
        """Whether the client ended to start over from its disk with new connections, because the coordinator lost progress."""
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
        """The same, None before the first."""
        return self._machine.state

    @property
    def resources(self) -> Resources | None:
        """Trainer and data in use; None before the model is loaded."""
        return self._worker.opened

    def leave(self) -> None:
        """Ask the client to leave in order; safe to call from a signal handler of the loop."""
        self._leave_asked = True
        self._wake()

    async def run(self) -> telemetry.Ended:
        """Take part until the run ends or we leave. Raises BackendError, ModelError, DataError when it cannot continue."""
        try:
            stop = await self._take_part()
        except Exception as error:  # from a plugin called here, or a bug: readers of events are told
            self._report(telemetry.Ended(self._explain(error), success=False))
            raise

        if stop is None and self._failure is not None:
            self._report(telemetry.Ended(str(self._failure), success=False))
            raise self._failure

        ended = telemetry.Ended(stop.reason if stop is not None else "stopped", success=stop is not None and stop.success)
        self._report(self._totals())
        self._report(ended)
        return ended

    async def _take_part(self) -> ev.Stop | None:
        """Run until the machine stops us; None when something failed."""
        async with contextlib.aclosing(self._worker):
            stop = await self._follow()
            if stop is not None and self._left and self._machine.masters_are_sound:
                await self._worker.save_on_leaving()
        return stop

    async def _follow(self) -> ev.Stop | None:
        """Turn events into actions, see `_take_part`."""
        stop: ev.Stop | None = None
        async with self._events, self._inbox, anyio.create_task_group() as tasks:
            for watch in (self._watch_states, self._watch_messages, self._watch_time):
                tasks.start_soon(watch)
            async for event in self._inbox:
                actions = self._machine.handle(event, anyio.current_time())
                if self._leave_asked:
                    self._leave_asked, self._left = False, True
                    actions = [*actions, *self._machine.handle(ev.LeaveAsked(), anyio.current_time())]
                stop = await self._carry_out(actions, tasks)
                if stop is not None or self._failure is not None:
                    break

            self._inbox.close()  # tasks that wait for queue space continue
            if self._withdrawn is not None:
                with anyio.move_on_after(WITHDRAW_TIMEOUT):
                    await self._withdrawn.wait()
            tasks.cancel_scope.cancel()
        return stop

    async def _put(self, event: ev.Event) -> None:
        """Queue an event for the machine; waits for space."""
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client has ended
            await self._events.send(event)

    def _put_or_drop(self, event: ev.Event) -> None:
        """Queue an event unless the queue is full; another of its kind follows soon."""
        with contextlib.suppress(anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._events.send_nowait(event)

    def _wake(self) -> None:
        """Make `run` check again; a full queue keeps it awake anyway."""
        self._put_or_drop(ev.TimePassed())

    def _fail(self, error: PsycheError) -> None:
        self._failure = self._failure or error
        self._wake()

    def _note_silence(self) -> None:
        """The coordinator did not answer in time: tell people once, until it answers again."""
        if self._silent_since is None:
            self._silent_since = anyio.current_time() - COMMAND_TIMEOUT
            self._report(
                telemetry.Problem("warning", f"the coordinator has not answered for {COMMAND_TIMEOUT:g} s; still trying")
            )

    def _note_answer(self) -> None:
        """The coordinator answers again: tell people if they were told that it did not."""
        if self._silent_since is not None:
            seconds = anyio.current_time() - self._silent_since
            self._silent_since = None
            self._report(telemetry.Mended(f"the coordinator answers again, after {seconds:.0f} s"))

    # -------------------------------------------------------------------------------------------- I/O into events

    async def _watch_states(self) -> None:
        finished = False
        try:
            while True:
                update = await self._backend.next_state()
                self._note_answer()
                finished = update.state.run_state is RunState.Finished
                if dict(update.addresses) != self._addresses:
                    self._addresses = dict(update.addresses)
                    await self._set_peers()
                await self._put(ev.StateSeen(update.state))
        except BackendError as error:
            if not finished:  # a server may close after the last state
                self._fail(error)

    async def _watch_messages(self) -> None:
        while True:
            incoming = await self._transport.receive()
            try:
                origin, message = unseal(incoming.message, run=self.state.instance)  # no peers, and no messages, before a state
            except WireError as error:
                logger.warning("a message handed over by %s was refused: %s", incoming.via[:4].hex(), error)
                continue

            await self._put(ev.MessageSeen(origin, message))

    async def _watch_time(self) -> None:
        peers: tuple[bytes, ...] = ()
        told, received = anyio.current_time(), 0
        while True:
            await anyio.sleep(TICK_SECONDS)
            now = anyio.current_time()
            stats = self._transport.stats
            if stats.peers != peers:
                peers = stats.peers
                await self._put(ev.PeersSeen(frozenset(peers)))
            if now - told >= TOTALS_SECONDS:
                self._put_or_drop(ev.BandwidthSeen((stats.bytes_received - received) / (now - told)))
                told, received = now, stats.bytes_received
                self._report(self._totals())
            self._put_or_drop(ev.TimePassed())

    def _totals(self) -> telemetry.NetworkTotals:
        stats = self._transport.stats
        return telemetry.NetworkTotals(stats.bytes_sent, stats.bytes_received, len(stats.peers))

    # -------------------------------------------------------------------------------------------- actions into I/O

    async def _carry_out(self, actions: list[ev.Action], tasks: TaskGroup) -> ev.Stop | None:
        for action in actions:
            match action:
                case ev.Stop():
                    return action
                case ev.Send(command=Withdraw()):
                    self._withdrawn = anyio.Event()
                    tasks.start_soon(self._withdraw, action.command, self._withdrawn)
                case ev.Send():
                    tasks.start_soon(self._send, action.command)
                case ev.Join():
                    tasks.start_soon(self._join)
                case ev.SetPeers():
                    self._members = action.members
                    await self._set_peers()
                case ev.Broadcast():
                    await self._transport.broadcast(seal(self._key, self.state.instance, action.message), tag=action.tag)
                case ev.FetchPayload():
                    tasks.start_soon(self._fetch, action)
                case ev.Expire():
                    tasks.start_soon(self._worker.expire, action.before)
                    tasks.start_soon(self._transport.expire, action.before)
                case ev.KeepResults():
                    await self._worker.keep(action)
                case ev.Prefetch():
                    tasks.start_soon(self._worker.prefetch, action.share)
                case ev.Remind():
                    tasks.start_soon(self._remind, action)
                case ev.StoreModel():
                    tasks.start_soon(self._store, action)
                case ev.Tell():
                    self._report(action.event)
                case ev.Load() | ev.Train() | ev.Apply() | ev.Digest() | ev.CloseEpoch() | ev.TakeSnapshot() | ev.FetchModel():
                    tasks.start_soon(self._work, action)
                case _:
                    assert_never(action)
        return None

    async def _set_peers(self) -> None:
        ours = self._backend.identity.p2p
        peers = {member.p2p: self._addresses.get(member.signer, b"") for member in self._members if member.p2p != ours}
        await self._transport.set_peers(peers)

    async def _work(self, work: ev.Work) -> None:
        try:
            await self._put(await self._worker.do(work))
        except PsycheError as error:
            self._fail(error)

    async def _remind(self, action: ev.Remind) -> None:
        await anyio.sleep(action.seconds)
        await self._put(ev.Reminded(action.tag))

    async def _store(self, action: ev.StoreModel) -> None:
        await self._put(await self._worker.store(action))

    async def _join(self) -> None:
        """Join once our model and data are open, however long the coordinator takes to answer; one request at a time."""
        if self._joining:
            return

        self._joining = True
        try:
            try:
                await self._worker.prepare(self.state)
            except PsycheError:
                raise
            except Exception as error:
                logger.debug("opening model and data failed", exc_info=error)
                message = f"the model and its data could not be opened: {self._explain(error)}"
                raise ModelError(message) from error
            while True:
                try:
                    await self._backend.join(self._transport.address, timeout=COMMAND_TIMEOUT)
                except TimeoutError:
                    self._note_silence()
                else:
                    self._note_answer()
                    if not self._joined:
                        self._joined = True
                        self._report(telemetry.Joined(self._run_id))
                    return
        except CommandRefused as refusal:
            if refusal.code not in PASSING_REFUSALS:
                self._fail(refusal)
            logger.info("joining was refused: %s", refusal)
        except PsycheError as error:
            self._fail(error)
        finally:
            self._joining = False

    async def _withdraw(self, command: Command, answered: anyio.Event) -> None:
        try:
            await self._send(command)
        finally:
            answered.set()

    async def _send(self, command: Command) -> None:
        """Send a command; retries twice after a timeout, because a lost statement slows the whole round down."""
        if isinstance(command, Witness):
            await self._worker.sync()  # save what we attest to first
        for _ in range(3):
            try:
                await self._backend.send(command, timeout=COMMAND_TIMEOUT)
            except CommandRefused as refusal:
                level = logging.DEBUG if isinstance(command, Witness | WarmupWitness) else logging.INFO
                logger.log(level, "%s was refused: %s", type(command).__name__, refusal)
                await self._put(ev.CommandAnswered(command, refusal.code))
                return
            except TimeoutError:
                self._note_silence()
                continue
            except BackendError:
                return  # the state watcher reports the reason

            self._note_answer()
            await self._put(ev.CommandAnswered(command, None))
            return

    async def _fetch(self, action: ev.FetchPayload) -> None:
        limit = self._worker.bench.trainer.max_payload_bytes
        try:
            async with self._downloads.turn():
                payload = await self._transport.fetch(
                    action.payload_hash, sources=action.sources, max_bytes=limit, timeout=FETCH_TIMEOUT, tag=action.tag
                )
        except BlobRejected as error:
            logger.warning("payload %s: %s", action.payload_hash[:4].hex(), error)
            await self._put(ev.PayloadMissing(action.payload_hash))
        except (TransportError, TimeoutError) as error:
            logger.info("payload %s: %s", action.payload_hash[:4].hex(), error)
            await self._put(ev.PayloadMissing(action.payload_hash))
        except Exception as error:
            logger.debug("fetching a payload failed", exc_info=error)
            logger.warning("payload %s: %s", action.payload_hash[:4].hex(), self._explain(error))
            await self._put(ev.PayloadMissing(action.payload_hash))
        else:
            try:
                await self._put(await self._worker.receive(action.payload_hash, payload, tag=action.tag))
            except PsycheError as error:  # ranks are lost
                self._fail(error)
