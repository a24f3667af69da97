"""The anyio shell around the client machine: turns I/O into events and actions into I/O, and decides nothing itself.

One queue feeds the machine, so events are handled one at a time in one task; everything that waits runs in tasks of one task
group. Cancelling `run` leaves without ceremony; `leave` asks the machine to withdraw first.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

import anyio
from anyio.abc import TaskGroup

from psyche_core.client import events as ev
from psyche_core.client import report
from psyche_core.client.machine import ClientMachine, Patience
from psyche_core.client.workshop import Bench, Workshop
from psyche_core.coordinator.commands import Command, WarmupWitness, Withdraw, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendError, BlobRejected, CommandRefused, PsycheError, TransportError, WireError
from psyche_core.interfaces import Backend, Transport
from psyche_core.types import NodeIdentity, RunState
from psyche_core.wire.messages import seal, sign_commitment, unseal
from psyche_core.wire.signing import SecretKey

logger = logging.getLogger("psyche.client")

COMMAND_TIMEOUT = 10.0
FETCH_TIMEOUT = 30.0
TICK_SECONDS = 0.25
TOTALS_SECONDS = 1.0
QUEUE_LENGTH = 4096


class ClientRuntime:
    """Runs one client over an entered backend and an entered transport.

    build: opens model, optimizer and data for the run (see Workshop). report: where events for people go.
    """

    def __init__(
        self,
        *,
        run_id: str,
        key: SecretKey,
        backend: Backend,
        transport: Transport,
        build: Callable[[CoordinatorState], Awaitable[Bench]],
        report: report.Report,
        patience: Patience | None = None,
    ) -> None:
        self._run_id = run_id
        self._key = key
        self._backend = backend
        self._transport = transport
        self._report = report
        self._workshop = Workshop(build, transport=transport, tell=report)
        self._machine = ClientMachine(
            backend.identity, run_id, sign=lambda commitment: sign_commitment(key, run_id, commitment), patience=patience
        )
        self._events, self._inbox = anyio.create_memory_object_stream[ev.Event](QUEUE_LENGTH)
        self._addresses: Mapping[bytes, bytes] = {}
        self._members: tuple[NodeIdentity, ...] = ()
        self._failure: PsycheError | None = None

    @property
    def state(self) -> CoordinatorState:
        """The newest coordinator state. Raises RuntimeError before the first."""
        if self._machine.state is None:
            message = "no coordinator state has arrived yet"
            raise RuntimeError(message)

        return self._machine.state

    def leave(self) -> None:
        """Ask the client to withdraw and end; safe to call from a signal handler of the loop."""
        self._put(ev.LeaveAsked())

    async def run(self) -> report.Ended:
        """Take part until the run ends or we leave. Raises BackendError, ModelError, DataError when it cannot go on."""
        stop: ev.Stop | None = None
        async with anyio.create_task_group() as tasks:
            for watch in (self._watch_states, self._watch_messages, self._watch_time):
                tasks.start_soon(watch)
            async for event in self._inbox:
                actions = self._machine.handle(event, anyio.current_time())
                stop = await self._carry_out(actions, tasks)
                if stop is not None or self._failure is not None:
                    break

            tasks.cancel_scope.cancel()
        self._events.close()
        self._inbox.close()
        if stop is None and self._failure is not None:
            self._report(report.Ended(str(self._failure), success=False))
            raise self._failure

        ended = report.Ended(stop.reason if stop is not None else "stopped", success=stop is not None and stop.success)
        self._report(self._totals())
        self._report(ended)
        return ended

    def _put(self, event: ev.Event) -> None:
        try:
            self._events.send_nowait(event)
        except anyio.WouldBlock:
            logger.warning("the event queue is full; dropped %s", type(event).__name__)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the client has ended

    def _fail(self, error: PsycheError) -> None:
        self._failure = self._failure or error
        self._put(ev.TimePassed())

    # -------------------------------------------------------------------------------------------- I/O into events

    async def _watch_states(self) -> None:
        finished = False
        try:
            while True:
                update = await self._backend.next_state()
                finished = update.state.run_state is RunState.Finished
                if dict(update.addresses) != self._addresses:
                    self._addresses = dict(update.addresses)
                    await self._set_peers()
                await self._events.send(ev.StateSeen(update.state))
        except BackendError as error:
            if not finished:  # a server may close once it has told the end
                self._fail(error)

    async def _watch_messages(self) -> None:
        while True:
            incoming = await self._transport.receive()
            try:
                origin, message = unseal(incoming.message, run_id=self._run_id)
            except WireError as error:
                logger.warning("a message handed over by %s was refused: %s", incoming.via[:4].hex(), error)
                continue

            await self._events.send(ev.MessageSeen(origin, message))

    async def _watch_time(self) -> None:
        peers: tuple[bytes, ...] = ()
        told, received = anyio.current_time(), 0
        while True:
            await anyio.sleep(TICK_SECONDS)
            now = anyio.current_time()
            stats = self._transport.stats
            if stats.peers != peers:
                peers = stats.peers
                self._put(ev.PeersSeen(frozenset(peers)))
            if now - told >= TOTALS_SECONDS:
                self._put(ev.BandwidthSeen((stats.bytes_received - received) / (now - told)))
                told, received = now, stats.bytes_received
                self._report(self._totals())
            self._put(ev.TimePassed())

    def _totals(self) -> report.NetworkTotals:
        stats = self._transport.stats
        return report.NetworkTotals(stats.bytes_sent, stats.bytes_received, len(stats.peers))

    # -------------------------------------------------------------------------------------------- actions into I/O

    async def _carry_out(self, actions: list[ev.Action], tasks: TaskGroup) -> ev.Stop | None:
        for action in actions:
            match action:
                case ev.Stop():
                    return action
                case ev.Send(command=Withdraw() as command):
                    with anyio.move_on_after(COMMAND_TIMEOUT / 2):
                        await self._send(command)
                case ev.Send():
                    tasks.start_soon(self._send, action.command)
                case ev.Join():
                    tasks.start_soon(self._join)
                case ev.SetPeers():
                    self._members = action.members
                    await self._set_peers()
                case ev.Broadcast():
                    await self._transport.broadcast(seal(self._key, self._run_id, action.message), tag=action.tag)
                case ev.FetchPayload():
                    tasks.start_soon(self._fetch, action)
                case ev.Expire():
                    self._workshop.expire(action.before)
                    tasks.start_soon(self._transport.expire, action.before)
                case ev.Prefetch():
                    tasks.start_soon(self._workshop.prefetch, action.share)
                case ev.Tell():
                    self._report(action.event)
                case _:
                    tasks.start_soon(self._work, action)
        return None

    async def _set_peers(self) -> None:
        ours = self._backend.identity.p2p
        peers = {member.p2p: self._addresses.get(member.signer, b"") for member in self._members if member.p2p != ours}
        await self._transport.set_peers(peers)

    async def _work(self, work: ev.Work) -> None:
        try:
            self._put(await self._workshop.do(work))
        except PsycheError as error:
            self._fail(error)

    async def _join(self) -> None:
        try:
            await self._backend.join(self._transport.address, timeout=COMMAND_TIMEOUT)
        except (BackendError, TimeoutError) as error:
            self._fail(error if isinstance(error, BackendError) else BackendError("the coordinator did not answer the join"))

    async def _send(self, command: Command) -> None:
        """Send a command; a time-out is tried again twice, since a lost statement costs the whole round its speed."""
        for _ in range(3):
            try:
                await self._backend.send(command, timeout=COMMAND_TIMEOUT)
            except CommandRefused as refusal:
                level = logging.DEBUG if isinstance(command, Witness | WarmupWitness) else logging.INFO
                logger.log(level, "%s was refused: %s", type(command).__name__, refusal)
                self._put(ev.CommandAnswered(command, refusal.code))
                return
            except TimeoutError:
                continue
            except BackendError:
                return  # the state watcher says what is wrong

            self._put(ev.CommandAnswered(command, None))
            return

    async def _fetch(self, action: ev.FetchPayload) -> None:
        limit = self._workshop.bench.trainer.max_payload_bytes
        try:
            payload = await self._transport.fetch(
                action.payload_hash, sources=action.sources, max_bytes=limit, timeout=FETCH_TIMEOUT, tag=action.tag
            )
        except BlobRejected as error:
            logger.warning("payload %s: %s", action.payload_hash[:4].hex(), error)
            self._put(ev.PayloadMissing(action.payload_hash))
        except (TransportError, TimeoutError) as error:
            logger.info("payload %s: %s", action.payload_hash[:4].hex(), error)
            self._put(ev.PayloadMissing(action.payload_hash))
        else:
            valid = await self._workshop.receive(action.payload_hash, payload, tag=action.tag)
            self._put(ev.PayloadChecked(action.payload_hash, valid))
