"""What a coordinator's backend registers: how clients reach a coordinator, and how one is hosted.

The hooks are in the package's `__init__`, from which all of these names are imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from psyche_core.config.run_config import CoordinatorConfig, ModelConfig
from psyche_core.coordinator.commands import Event
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.interfaces import (
    Backend,
    BackendServer,
    DataProvider,
)
from psyche_core.types import WitnessMetadata
from psyche_core.wire.signing import SecretKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendContext:
    """The arguments for building a client's backend.

    Attributes:
        address: as the user gave it (`host:port#KEY`); empty for a backend that needs none.
        key: key of our transport, and our identity if the backend has no other.
        settings: the backend's own options, validated.
        retry_seconds: how many seconds the backend retries a coordinator that it cannot reach, at the start and after a lost
            connection, before it gives up.
    """

    run_id: str
    address: str
    key: SecretKey
    settings: BaseModel | None = None
    retry_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterKnown:
    """A state of the run that is later than the one from which a restarted server continues it.

    Attributes:
        epoch: number of ended epochs in it.
        step: the next one to train in it.
        member: signer of the member that says so, which nobody can check; None if the server found the state in its own folder.
        path: file from which the server continues, to be replaced by the later one.
        later_path: file where the server keeps the later state, None without one.
    """

    epoch: int
    step: int
    path: Path
    member: bytes | None = None
    later_path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """The arguments for building a hosted coordinator.

    Attributes:
        port: 0 picks a free one.
        data: an entered provider if the server also serves data, on data_port.
        on_event: called from the event loop with the new state and the events of each change; must not block.
        tick_seconds: longest time between two ticks.
        key: proves to clients that this is the server they were given; None makes a new one at each start.
        state_dir: folder where the state is saved, and from which the next start continues; None saves nothing.
        allow_list: file with the public keys that may log in; None admits everyone.
        withdraw_on_disconnect: the server withdraws a member that is disconnected for longer than reconnect_seconds.
        opening: the run's own configuration, if the configuration in `state` applies only until the first round.
        on_paid: called like on_event, with a member's signer and the amount paid, by servers that pay.
        on_withdrawn: called before the matching on_event when the server withdraws a healthy member without its request; gets the
            signer and the reason (`lost`, `not back` since the server continued the run, `not allowed`).
        relays: URLs of relays that the server offers its clients, beside those of the run's configuration.
        on_figures: called like on_event, with a witness's signer and the unverified figures of its statement.
        on_later_state: called like on_event, after a restart, when a member or the server's folder knows a later state of the run
            than the one from which it continues: somebody restored an older one.
    """

    state: CoordinatorState
    host: str = "127.0.0.1"
    port: int = 0
    data: DataProvider | None = None
    data_port: int | None = None
    withdraw_on_disconnect: bool = True
    reconnect_seconds: float = 10.0
    key: SecretKey | None = None
    state_dir: Path | None = None
    allow_list: Path | None = None
    opening: CoordinatorConfig | None = None
    on_event: Callable[[CoordinatorState, tuple[Event, ...]], None] | None = None
    on_paid: Callable[[bytes, int], None] | None = None
    on_withdrawn: Callable[[bytes, str], None] | None = None
    on_figures: Callable[[bytes, WitnessMetadata], None] | None = None
    on_later_state: Callable[[LaterKnown], None] | None = None
    tick_seconds: float = 0.25
    relays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberContext:
    """A member that a testnet is about to start.

    Attributes:
        address: as the hosted coordinator reports it.
        key_path: file with the member's identity key; more files for the member may be put into its folder.
    """

    run_id: str
    address: str
    key_path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTestnet:
    """How `psyche testnet` connects members to a coordinator that it hosts.

    Attributes:
        member_options: prepares what a member needs besides its key, and returns the options of `psyche client train` that
            connect it to the coordinator; may block.
        lose_route: if members reach a hosted coordinator by several routes, makes the first one fail permanently and returns a
            sentence about it; takes the coordinator's address, may block, raises BackendError. None if there is only one route.
    """

    member_options: Callable[[MemberContext], list[str]]
    lose_route: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRegistration:
    """A coordinator backend. create_server is None if this package cannot host a coordinator of it.

    Attributes:
        settings: the backend's own options. When a client chooses this backend, they appear as `--name` and `PSYCHE_NAME` beside
            the client's own options (a field's `json_schema_extra` may give `{"short": "-w"}`, or `{"option": False}` for a field
            without a command line option). A pydantic-settings class reads its environment itself.
        needs_address: whether `--server-addr` says where the coordinator is.
        transport_key: makes our transport's key from run id and settings if no key file was given.
        route: `host:port` of the server that the backend connects to, used to find the local address that others can reach; None
            means the address itself.
        offers_relays: whether the server tells its clients of `ServerContext.relays`.
        observe: like create, for a program that only follows the run: it never joins and sends nothing; None if `create` gives
            that.
        testnet: what `psyche testnet` needs besides that; None if a member needs only the address.
        read_model: reads the `[model]` of a run from its name and the settings, without taking part; raises UserError and
            BackendError. None if that is not possible.
    """

    name: str
    summary: str
    create: Callable[[BackendContext], Backend]
    create_server: Callable[[ServerContext], BackendServer] | None = None
    offers_relays: bool = False
    observe: Callable[[BackendContext], Backend] | None = None
    settings: type[BaseModel] | None = None
    needs_address: bool = True
    transport_key: Callable[[str, Any], SecretKey] | None = None
    route: Callable[[Any], str] | None = None
    testnet: BackendTestnet | None = None
    read_model: Callable[[str, Any], Awaitable[ModelConfig]] | None = None
    requires: Mapping[str, str] = field(default_factory=dict)
