"""Contract of a coordinator backend: where the shared state is and how commands reach it.

A backend only transports: it authenticates senders, carries commands and reports states. The rules are in
psyche_core.coordinator, whether they run in a server, in this process or on a chain.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from anyio.abc import AsyncResource

from psyche_core.coordinator.commands import (
    Checkpoint,
    Command,
    EpochDigest,
    Equivocation,
    HealthCheck,
    Join,
    Pause,
    Resume,
    SetFutureEpochRates,
    Settle,
    Tick,
    UpdateConfig,
    VerifierCommit,
    WarmupWitness,
    Withdraw,
    Witness,
)
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CommandRefused
from psyche_core.types import NodeIdentity


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """A state of the coordinator as one client sees it.

    Attributes:
        addresses: signer (32 bytes) -> the transport address that member published when it joined (opaque, at most 1024 bytes).
        relays: URLs of relays that the coordinator itself offers, beside those of the run's configuration.
    """

    state: CoordinatorState
    addresses: Mapping[bytes, bytes] = field(default_factory=dict)
    relays: tuple[str, ...] = ()

    @property
    def all_relays(self) -> tuple[str, ...]:
        """The relays of the run's configuration, then those of the coordinator, each once."""
        return tuple(dict.fromkeys((*self.state.model.relays, *self.relays)))


ClientCommand = Withdraw | WarmupWitness | Witness | HealthCheck | Equivocation | VerifierCommit | EpochDigest | Checkpoint
"""The commands that clients may send, besides joining."""


def check_client_command(command: Command, identity: NodeIdentity) -> ClientCommand:
    """Check that a client may send this command; return it. Every backend calls this in `send`, before it sends anything.

    identity: ours. Raises CommandRefused (`NotForClients`) for the owner's commands and ticks; ValueError for Join and for a
    command whose sender is another client.
    """
    if isinstance(command, Join):
        message = "use join(), which also publishes the transport address"
        raise ValueError(message)  # noqa: TRY004  # the type is right, the way is not

    if isinstance(command, Tick | Pause | Resume | UpdateConfig | SetFutureEpochRates | Settle):
        raise CommandRefused("NotForClients", f"{type(command).__name__} is not a command that clients may send")

    if command.sender != identity:
        message = f"the sender of a command must be {identity}, our own identity"
        raise ValueError(message)

    return command


@dataclass(frozen=True, slots=True)
class KnownPosition:
    """How far the run was at least, as a member's disk shows.

    Attributes:
        generation: how often the run had gone back.
        epoch: the epoch of the last known step, counted from 0.
        step: the next step to train.
    """

    generation: int
    epoch: int
    step: int


@runtime_checkable
class TellsLater(Protocol):
    """A client's backend that can tell the coordinator's owner of a position later than the coordinator's."""

    def tell_later(self, known: KnownPosition) -> None:
        """Tell the coordinator, now and with each later join: it was probably restored from an older state. Does not wait."""


class Backend(AsyncResource):
    """A client's connection to the coordinator. It is an async context manager: entering it connects and authenticates.

    Guaranteed: states arrive in the coordinator's order; the newest state is always delivered eventually; `send` raises if the
    coordinator refused the command. Not guaranteed: every intermediate state (a slow reader sees only newer ones), nor that a
    command is applied before a state sent earlier arrives. The backend itself retries a lost connection until the deadline given
    at construction, and repeats an earlier join. After the deadline every call raises BackendClosed.
    """

    @property
    @abstractmethod
    def identity(self) -> NodeIdentity:
        """Our identity, as the backend knows it."""

    @abstractmethod
    async def join(self, address: bytes, *, timeout: float) -> None:
        """Ask to be a member of the next epochs; idempotent.

        address: our transport address (opaque, at most 1024 bytes), which the other members receive. The backend was built with
        the transport's key and uses it to prove that we own it (`psyche_core.coordinator.commands.Join`). timeout: seconds.
        Raises CommandRefused (for instance `WrongRun`), BackendClosed, TimeoutError.
        """

    @abstractmethod
    async def next_state(self) -> StateUpdate:
        """Wait for a state newer than the last one returned. The first call returns the current state.

        Cancel-safe: a cancelled call loses nothing. Raises BackendClosed.
        """

    @abstractmethod
    async def send(self, command: Command, *, timeout: float) -> None:
        """Send a command and wait for its answer. `command.sender` must be `identity`. timeout: seconds.

        Raises CommandRefused with the coordinator's error name, BackendClosed, TimeoutError.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connection; idempotent. This does not withdraw the client from the run: send Withdraw first for that."""


class BackendServer(AsyncResource):
    """A hosted coordinator: applies commands, ticks, and tells members what changed.

    Guaranteed: the state changes only through psyche_core.coordinator.apply; nothing a client sends stops the server.
    """

    @property
    @abstractmethod
    def address(self) -> str:
        """The address that clients connect to, for instance `127.0.0.1:20000`."""

    @property
    @abstractmethod
    def state(self) -> CoordinatorState:
        """The current state."""

    @abstractmethod
    async def serve(self) -> None:
        """Serve until the run is finished and all members know it, or until cancelled."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop listening and close all connections; idempotent."""


@runtime_checkable
class OwnerControl(Protocol):
    """A server that accepts the owner's commands from this process."""

    @property
    def state(self) -> CoordinatorState:
        """The current state."""

    def submit(self, command: Command) -> None:
        """Apply a command of the run's owner. Raises CoordinatorError."""


@runtime_checkable
class KeptRun(Protocol):
    """A server that keeps its run's state in a file."""

    @property
    def continued_from(self) -> Path | None:
        """File with the state from which the run continues; None for a run that begins. Valid after entering."""


@runtime_checkable
class MemberControl(Protocol):
    """A server that can refuse single members."""

    def expel(self, signer: bytes) -> None:
        """Remove a member, and refuse its key for as long as the server runs.

        Raises ValueError if the key is of nobody who waits or takes part.
        """
