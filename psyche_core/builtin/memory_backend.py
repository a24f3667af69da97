"""A coordinator in this process and backends connected to it: whole runs in one program, without sockets.

The caller provides the clock and the seeds, so the same run can be repeated. Time advances when `tick` is called, by the owner
or by `run`. Backends get states as with the TCP backend: only the newest, only when something changed. Every command that the
rules allow is accepted; the caller, who creates the backends, is responsible for authentication.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import Command, Event, Join, Tick
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.coordinator_clock import CoordinatorClock
from psyche_core.errors import BackendClosed, CommandRefused, CoordinatorError
from psyche_core.interfaces.backend import Backend, StateUpdate, check_client_command
from psyche_core.types import NodeIdentity, RunState
from psyche_core.wire.messages import sign_join
from psyche_core.wire.signing import SecretKey

MAX_ADDRESS_BYTES = 1024


def _random_seed() -> int:
    return secrets.randbits(64)


@dataclass(frozen=True, slots=True)
class _Version:
    """An update, the number of earlier updates, and an event that is set when the next one exists."""

    number: int
    update: StateUpdate
    superseded: anyio.Event


class MemoryCoordinator:
    """Holds the state of a run, applies commands to it and tells the backends.

    state: the first state. clock: returns unix seconds; default: a `CoordinatorClock`. seeds: called for each command, returns an
    unsigned 64-bit number.
    on_event: called with the new state and the events of each change. Create it inside the event loop that uses it.
    """

    def __init__(
        self,
        state: CoordinatorState,
        *,
        clock: Callable[[], float] | None = None,
        seeds: Callable[[], int] = _random_seed,
        on_event: Callable[[CoordinatorState, tuple[Event, ...]], None] | None = None,
    ) -> None:
        self._state = state
        self._clock = clock or CoordinatorClock(state)
        self._seeds = seeds
        self._on_event = on_event
        self._addresses: dict[bytes, bytes] = {}
        self._version = _Version(0, StateUpdate(state), anyio.Event())

    @property
    def state(self) -> CoordinatorState:
        """The current state."""
        return self._state

    @property
    def version(self) -> _Version:
        """The update that the backends see now."""
        return self._version

    def backend(self, key: SecretKey) -> MemoryBackend:
        """A new connection for the client with this key, which is used for both parts of its identity."""
        return MemoryBackend(self, key)

    def submit(self, command: Command) -> None:
        """Apply a client's or the owner's command, then tick. Raises CoordinatorError."""
        self._apply(command)
        self.tick()

    def join(self, identity: NodeIdentity, address: bytes, *, proof: bytes) -> None:
        """Add a client with its transport address and the proof that it owns its transport key. Raises CoordinatorError."""
        self._apply(Join(identity, proof))
        if self._addresses.get(identity.signer) != address:
            self._addresses[identity.signer] = address
            self._publish()
        self.tick()

    def tick(self) -> None:
        """Apply a tick: the coordinator compares its deadlines with the clock."""
        if not self._state.run_state.halted:
            self._apply(Tick())

    async def run(self, *, tick_seconds: float = 0.25) -> None:
        """Tick in real time until the run is finished or the task is cancelled."""
        while self._state.run_state is not RunState.Finished:
            self.tick()
            await anyio.sleep(tick_seconds)

    def _apply(self, command: Command) -> None:
        state, events = apply(self._state, command, int(self._clock()), self._seeds())
        if state == self._state and not events:
            return

        self._state = state
        self._publish()
        if self._on_event is not None:
            self._on_event(state, events)

    def _publish(self) -> None:
        members = {*self._state.pending, *(client.id for client in self._state.epoch.clients)}
        signers = {member.signer for member in members}
        self._addresses = {signer: address for signer, address in self._addresses.items() if signer in signers}
        addresses: Mapping[bytes, bytes] = dict(self._addresses)
        old = self._version
        self._version = _Version(old.number + 1, StateUpdate(self._state, addresses), anyio.Event())
        old.superseded.set()


class MemoryBackend(Backend):
    """A client's connection to a `MemoryCoordinator`."""

    def __init__(self, coordinator: MemoryCoordinator, key: SecretKey) -> None:
        self._coordinator = coordinator
        self._key = key
        self._identity = NodeIdentity(key.public, key.public)
        self._seen = -1
        self._closed = anyio.Event()

    @property
    def identity(self) -> NodeIdentity:
        """Our identity."""
        return self._identity

    async def join(self, address: bytes, *, timeout: float) -> None:
        """Ask to be a member. Raises CommandRefused, BackendClosed; ValueError for an address over 1024 bytes."""
        if len(address) > MAX_ADDRESS_BYTES:
            message = f"a transport address has at most {MAX_ADDRESS_BYTES} bytes, got {len(address)}"
            raise ValueError(message)

        proof = sign_join(self._key, self._coordinator.state.instance, self._identity.signer)
        await self._call(lambda: self._coordinator.join(self._identity, address, proof=proof), timeout)

    async def next_state(self) -> StateUpdate:
        """The newest state not yet returned. Raises BackendClosed."""
        while not self._closed.is_set():
            version = self._coordinator.version
            if version.number > self._seen:
                self._seen = version.number
                return version.update

            async with anyio.create_task_group() as group:

                async def wait(event: anyio.Event, scope: anyio.CancelScope = group.cancel_scope) -> None:
                    await event.wait()
                    scope.cancel()

                group.start_soon(wait, version.superseded)
                group.start_soon(wait, self._closed)

        message = "this backend was closed"
        raise BackendClosed(message)

    async def send(self, command: Command, *, timeout: float) -> None:
        """Send a command. Raises CommandRefused, BackendClosed; ValueError for Join or another client's command."""
        check_client_command(command, self._identity)
        await self._call(lambda: self._coordinator.submit(command), timeout)

    async def aclose(self) -> None:
        """Close the connection; idempotent."""
        self._closed.set()

    async def _call(self, action: Callable[[], None], timeout: float) -> None:
        with anyio.fail_after(timeout):
            await anyio.lowlevel.checkpoint()
        if self._closed.is_set():
            message = "this backend was closed"
            raise BackendClosed(message)

        try:
            action()
        except CoordinatorError as error:
            raise CommandRefused(error.name, error.message) from error
