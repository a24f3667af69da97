"""Every hook on one page. A hook is called once, at set-up, and returns registrations; the hot path never comes here.

A plugin is a module with `PSYCHE_PLUGIN_API = "1.0"` and functions decorated with `psyche_core.hookspecs.hookimpl`, named by an
entry point per thing it registers, in ONE group:

    [project.entry-points."psyche.plugins"]
    "optimizer.Distro" = "psyche_optim_distro.hooks"

The entry point's name is `<kind>.<Name>`; kinds are backend, optimizer, data, transport, model, sharding, relay, tracker and
command. `Name` is what a run configuration says (`[model.LLM.optimizer.Distro]`, `data_location.Http`), an option (`--tracker
wandb`), or the word behind `psyche` for a command. Reading names imports nothing, so a broken or slow plugin costs nothing if it
is not used. Factories import heavy modules when they are called.

Each registration's `settings` is a pydantic model (or None) that validates the plugin's own table; unknown keys are refused. Its
`requires` maps modules that the factory imports and that may be missing, such as those of an extra, to what installs them:
`{"torch": "pip install 'psyche-core[train]'"}`. Where one is missing the plugin is listed as incomplete, with that line, and not
used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy
from pydantic import BaseModel

from psyche_core.config.run_config import CoordinatorConfig, ModelConfig
from psyche_core.coordinator.commands import Event
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.interfaces import (
    Backend,
    BackendServer,
    DataProvider,
    Model,
    Optimizer,
    RankGroup,
    Relay,
    ShardingEngine,
    TrackedRun,
    Tracker,
    Transport,
)
from psyche_core.types import WitnessMetadata
from psyche_core.wire.signing import SecretKey

if TYPE_CHECKING:
    import click

PROJECT = "psyche"
GROUP = "psyche.plugins"
KINDS = ("backend", "optimizer", "data", "transport", "model", "sharding", "relay", "tracker", "command")
PLUGIN_API = (1, 0)

hookspec: pluggy.HookspecMarker = pluggy.HookspecMarker(PROJECT)
hookimpl: pluggy.HookimplMarker = pluggy.HookimplMarker(PROJECT)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerContext:
    """The arguments for building an optimizer.

    Attributes:
        settings: validated by the registration's `settings`.
        model: the model to train; its parameters are float32 and equal on all members.
    """

    settings: Any
    model: Model


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRegistration:
    """A decentralised optimizer. settings validates `model.LLM.optimizer.<Name>`."""

    name: str
    summary: str
    settings: type[BaseModel]
    create: Callable[[OptimizerContext], Optimizer]
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataContext:
    """The arguments for building a data provider.

    Attributes:
        settings: the location's validated settings.
        sequence_length: the run's max_seq_len in tokens.
        key: our identity, for servers that require authentication.
        base: folder that relative paths start from: the run file's folder, or the one a member gives.
        cache: folder for files to keep between runs.
        provider: makes the provider of another data location from its name and its settings as in the run file, for locations
            that combine others; raises PluginError and ConfigError. None if no other locations are available, as inside such a
            combination.
    """

    settings: Any
    sequence_length: int
    key: SecretKey | None = None
    base: Path = field(default_factory=Path)
    cache: Path | None = None
    provider: Callable[[str, Any], DataProvider] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRegistration:
    """A data location. settings validates `data_location.<Name>`; a bare string `X = "…"` arrives as {"location": "…"}."""

    name: str
    summary: str
    settings: type[BaseModel] | None
    create: Callable[[DataContext], DataProvider]
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportContext:
    """The arguments for building an endpoint.

    Attributes:
        interface: IP address or name of a network interface to bind; a name means the interface's addresses of both IP families.
        port: 0 picks a free one.
        whole_interface: the address was found rather than chosen, so the interface's address of the other family may be bound as
            well.
        settings: the transport's own options, validated; None for the defaults.
    """

    run_id: str
    key: SecretKey
    interface: str = "127.0.0.1"
    port: int = 0
    whole_interface: bool = False
    settings: BaseModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportRegistration:
    """A transport.

    settings: the transport's own options. When a client uses this transport, they appear as `--name` and `PSYCHE_NAME` beside
    the client's own options, as those of a backend do.
    """

    name: str
    summary: str
    create: Callable[[TransportContext], Transport]
    settings: type[BaseModel] | None = None
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How many processes (ranks) of one client share a model, and how they connect.

    Attributes:
        data: number of data-parallel groups, each with its own rows.
        tensor: number of ranks in a group, which share its weights. There are data * tensor ranks, ours included.
        sharding: plugin name of the engine.
        bind: HOST:PORT where ranks on other machines connect; None allows none.
        local_ranks: how many of the ranks run on this machine, ours included; None for all of them.
        secret: shared secret that a connecting rank must know; None makes one, for this machine alone.
        torch_threads: threads of each rank; None means one on a CPU and torch's default elsewhere.
    """

    data: int = 1
    tensor: int = 1
    sharding: str = "dtensor"
    bind: str | None = None
    local_ranks: int | None = None
    secret: bytes | None = field(default=None, repr=False)
    torch_threads: int | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.data * self.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext:
    """The arguments for building a model. A model that cannot follow one of these settings must raise ModelError.

    Attributes:
        source: local directory with config.json and, unless the run starts from random weights, safetensors.
        seed: 32 bytes for random weights.
        device: `auto`, `cpu`, `mps`, `cuda`, `cuda:N`, or `cuda:X,Y` for several devices that share each batch.
        dtype: compute dtype; parameters are float32 in any case, so that members with different compute dtypes start from equal
            masters.
        attention: `auto`, `sdpa` or `eager`; ignored by a model without attention.
        gradient_checkpointing: recompute activations in the backward pass instead of keeping them.
        parallelism: the processes among which the model is divided; None for this process alone, and always None for a model
            whose registration does not set `parallel`.
        create_engine: makes this process's sharding engine.
    """

    source: Path
    max_seq_len: int
    seed: bytes
    device: str = "auto"
    dtype: str = "float32"
    attention: str = "auto"
    gradient_checkpointing: bool = False
    parallelism: Parallelism | None = None
    create_engine: Callable[[ShardingContext], ShardingEngine] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRegistration:
    """A model architecture.

    Attributes:
        parallel: whether `create` can divide it among processes (ModelContext.parallelism).
        source: folder from which a member builds its model instead of the run's checkpoint, for a model that brings its own first
            weights; it may be empty. A checkpoint saved by the member still takes precedence (ModelContext.source is then its
            folder).
    """

    name: str
    summary: str
    create: Callable[[ModelContext], Model]
    parallel: bool = False
    source: Path | None = None
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingContext:
    """The arguments for building a rank's sharding engine.

    Attributes:
        module: a torch module on the CPU, float32, built in the same way on every rank. Its buffers have their values; its
            parameters are not initialised (their memory is not touched yet). The engine may change the module.
        model_type: its architecture, as transformers names it.
        group: all ranks.
        device: this rank's torch device.
    """

    module: Any
    model_type: str
    group: RankGroup
    device: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRegistration:
    """A way to divide a model among processes. All ranks call `create` at the same time."""

    name: str
    summary: str
    create: Callable[[ShardingContext], ShardingEngine]
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayContext:
    """The arguments for building a relay that runs beside a coordinator.

    host, port: to listen on; port 0 picks a free one. url: that members are given; None for one of host and port. tls_cert,
    tls_key: files of the certificate and its key; without them everything around the encrypted traffic is readable on the way.
    """

    host: str = "127.0.0.1"
    port: int = 0
    url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRegistration:
    """A relay that `psyche server run --with-relay` can run beside its coordinator."""

    name: str
    summary: str
    create: Callable[[RelayContext], Relay]
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerContext:
    """The arguments for making a tracker. settings: validated by the registration's `settings`."""

    run: TrackedRun
    settings: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerRegistration:
    """A tracker.

    Attributes:
        create: begins to keep a run; called in the tracker's own thread once the run is known, may block.
        settings: the tracker's own options. When a client uses this tracker, they appear as `--name` and `PSYCHE_NAME` beside the
            client's own options, as those of a backend do. Names begin with the tracker's.
        check: raises UserError for settings that cannot work on this machine (a missing key, a folder that cannot be written);
            called before the run is joined, so that nobody trains for a week and finds nothing tracked. It must return quickly
            and send nothing.
    """

    name: str
    summary: str
    create: Callable[[TrackerContext], Tracker]
    settings: type[BaseModel] | None = None
    check: Callable[[Any], None] | None = None
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRegistration:
    """A command of the `psyche` program.

    Attributes:
        name: the word behind `psyche`.
        load: imports and returns the click command.
    """

    name: str
    summary: str
    load: Callable[[], click.Command]
    requires: Mapping[str, str] = field(default_factory=dict)


Registration = (
    BackendRegistration
    | OptimizerRegistration
    | DataRegistration
    | TransportRegistration
    | ModelRegistration
    | ShardingRegistration
    | RelayRegistration
    | TrackerRegistration
    | CommandRegistration
)


@hookspec
def psyche_register_backends() -> list[BackendRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Coordinator backends this plugin provides.

    Example:
        @hookimpl
        def psyche_register_backends():
            from my_plugin.client import MyBackend
            return [BackendRegistration(name="mine", summary="…", create=MyBackend.from_context)]
    """


@hookspec
def psyche_register_optimizers() -> list[OptimizerRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Optimizers this plugin provides; the name is the key under `[model.LLM.optimizer]`."""


@hookspec
def psyche_register_data() -> list[DataRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Data locations this plugin provides; the name is the key under `data_location`."""


@hookspec
def psyche_register_transports() -> list[TransportRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Transports this plugin provides; the name is what `--transport` takes."""


@hookspec
def psyche_register_models() -> list[ModelRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Model architectures this plugin provides; the name is `model.LLM.architecture`."""


@hookspec
def psyche_register_sharding() -> list[ShardingRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Ways to divide a model among processes; the name is what `--sharding` takes."""


@hookspec
def psyche_register_relays() -> list[RelayRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Relays this plugin provides for `psyche server run --with-relay`."""


@hookspec
def psyche_register_trackers() -> list[TrackerRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Trackers this plugin provides; the name is what `--tracker` takes."""


@hookspec
def psyche_register_commands() -> list[CommandRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Commands this plugin adds to the `psyche` program; the name is the word behind it.

    Example:
        def load():
            from my_plugin.cli import my_command
            return my_command

        @hookimpl
        def psyche_register_commands():
            return [CommandRegistration(name="my-command", summary="…", load=load)]
    """
