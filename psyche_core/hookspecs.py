"""Every hook on one page. A hook is called once, at set-up, and returns registrations; the hot path never comes here.

A plugin is a module with `PSYCHE_PLUGIN_API = "1.0"` and functions decorated with `psyche_core.hookspecs.hookimpl`, named by an
entry point per thing it registers, in ONE group:

    [project.entry-points."psyche.plugins"]
    "optimizer.Distro" = "psyche_optim_distro.hooks"

The entry point's name is `<kind>.<Name>`; kinds are backend, optimizer, data, transport, model, sharding, command. `Name` is what
a run configuration says (`[model.LLM.optimizer.Distro]`, `data_location.Http`, `architecture = "HfLlama"`), or the word behind
`psyche` for a command. Reading names imports nothing, so a broken or slow plugin costs nothing if it is not used. Factories
import heavy modules when they are called.

Each registration's `settings` is a pydantic model (or None) that validates the plugin's own table; unknown keys are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy
from pydantic import BaseModel

from psyche_core.config.run_config import CoordinatorConfig
from psyche_core.coordinator.commands import Event
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.interfaces import Backend, BackendServer, DataProvider, Model, Optimizer, RankGroup, ShardingEngine, Transport
from psyche_core.wire.signing import SecretKey

if TYPE_CHECKING:
    import click

PROJECT = "psyche"
GROUP = "psyche.plugins"
KINDS = ("backend", "optimizer", "data", "transport", "model", "sharding", "command")
PLUGIN_API = (1, 0)

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendContext:
    """What a client's backend is built from.

    address: as the user gave it (`host:port#KEY`); empty for a backend that needs none. key: of our transport, and our identity
    where the backend has no other. settings: validated options of the backend's own. retry_seconds: how long a coordinator that
    cannot be reached is tried for, at the start and when it was lost, before the backend gives up.
    """

    run_id: str
    address: str
    key: SecretKey
    settings: BaseModel | None = None
    retry_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """What a hosted coordinator is built from.

    port 0 picks a free one. data: entered provider when the server also serves data, on data_port. on_event: called with the new
    state and the events of each change, from the event loop; must not block. tick_seconds: at most this long between ticks.
    key: proves to clients that this is the server they were told of; a new one for this start when None. state_dir: folder that
    keeps the state, which goes on from there at the next start; None keeps nothing. allow_list: file with the public keys that
    may log in; None lets everybody in. withdraw_on_disconnect: a member away for longer than reconnect_seconds is withdrawn.
    opening: the run's own configuration, where that of `state` is only for the time before the first round. on_paid: called as
    on_event is, with a member's signer and how much it was paid, by servers that pay. on_withdrawn: called before the on_event of
    it, with a healthy member's signer and why (`lost`, `not allowed`), where the server withdraws one that did not ask for it.
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
    tick_seconds: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberContext:
    """A member that a testnet is about to start.

    address: as the hosted coordinator said it. key_path: file with its identity key, in a folder where more may be put for it.
    """

    run_id: str
    address: str
    key_path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTestnet:
    """How `psyche testnet` leads members to a coordinator that it hosts.

    member_options: makes ready what a member needs beside its key, and returns the options of `psyche client train` that lead it
    to the coordinator; may block. lose_route: where a hosted coordinator is reached by several routes, makes the first fail for
    good and says so in a sentence; takes the coordinator's address, may block, raises BackendError. None where there is but one.
    """

    member_options: Callable[[MemberContext], list[str]]
    lose_route: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRegistration:
    """A coordinator backend. create_server is None where nobody hosts it.

    settings: options of its own; a client is told them as `--name` and `PSYCHE_NAME` beside its own when it chooses this backend
    (a field's `json_schema_extra` may give `{"short": "-w"}`, or `{"option": False}` for what belongs on no command line). A
    pydantic-settings class reads its environment itself. needs_address: whether `--server-addr` says where the coordinator is.
    transport_key: makes our transport's key from run id and settings, for who was given no key file. route: `host:port` of what
    the backend talks to, which tells the local address that others reach; the address itself where None. testnet: what
    `psyche testnet` needs beside that; None where the address is all that a member needs.
    """

    name: str
    summary: str
    create: Callable[[BackendContext], Backend]
    create_server: Callable[[ServerContext], BackendServer] | None = None
    settings: type[BaseModel] | None = None
    needs_address: bool = True
    transport_key: Callable[[str, Any], SecretKey] | None = None
    route: Callable[[Any], str] | None = None
    testnet: BackendTestnet | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerContext:
    """What an optimizer is built from.

    settings: validated by the registration's `settings`. model: the one to train; its parameters are float32 and alike on all
    members.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DataContext:
    """What a provider is built from.

    settings: the location's validated settings. sequence_length: the run's max_seq_len in tokens. key: our identity, for
    servers that ask who we are. base: folder that relative paths start from: the run file's, or what a member says. cache: folder
    for files worth keeping. provider: makes the provider of another data location, by its name and its settings as the run file
    would say them, for locations that combine others; it raises PluginError and ConfigError. None where there are no others to be
    had, as within such a combination.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportContext:
    """What an endpoint is built from. interface: IP to bind; port 0 picks one."""

    run_id: str
    key: SecretKey
    interface: str = "127.0.0.1"
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportRegistration:
    """A transport."""

    name: str
    summary: str
    create: Callable[[TransportContext], Transport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Among how many processes (ranks) of one client a model is divided, and how they meet.

    data: ranks with rows of their own; tensor: ranks that share the weights of each; there are data * tensor, ours included.
    sharding: the engine, by plugin name. bind: HOST:PORT where ranks of other machines join us; None lets nobody join from
    elsewhere. local_ranks: how many of all run on this machine, ours included; None for all of them. secret: what who joins must
    know; None makes one, for this machine alone. torch_threads: of each rank; None for one on a CPU, as torch likes elsewhere.
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
        """All of them."""
        return self.data * self.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext:
    """What a model is built from.

    source: local directory with config.json and, unless the run starts from random weights, safetensors.
    seed: 32 bytes for random weights. device: `auto`, `cpu`, `mps`, `cuda`, `cuda:N`, or `cuda:X,Y` for several that share each
    batch. dtype: compute dtype; parameters stay float32 whatever it is, so that members with different compute dtypes start from
    equal masters. attention: `auto`, `sdpa` or `eager`; means nothing to a model without attention. gradient_checkpointing:
    compute activations again in the backward pass in place of keeping them. parallelism: among which processes the model is
    divided; None for this one alone, always for a model whose registration does not say `parallel`. create_engine: makes this
    process's sharding engine. A model that cannot do what it is told here refuses with a ModelError.
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
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRegistration:
    """A model architecture. parallel: whether `create` can divide it among processes (ModelContext.parallelism).

    source: folder that a member's model begins from in place of the run's checkpoint, for a model that brings its first weights
    itself; it may be empty. A checkpoint of the member's own still comes first (ModelContext.source is then its folder).
    """

    name: str
    summary: str
    create: Callable[[ModelContext], Model]
    parallel: bool = False
    source: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingContext:
    """What a rank's sharding engine is built from.

    module: a torch module on the CPU, float32, built alike on every rank; its buffers have their values, its parameters do not
    (their memory is not touched yet). The engine may change it. model_type: its architecture, as transformers has it. group: all
    ranks. device: this rank's torch device.
    """

    module: Any
    model_type: str
    group: RankGroup
    device: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRegistration:
    """A way to divide a model among processes. create is called on every rank, by all at the same time."""

    name: str
    summary: str
    create: Callable[[ShardingContext], ShardingEngine]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRegistration:
    """A command of the `psyche` program. name: the word behind `psyche`. load: imports and returns the click command."""

    name: str
    summary: str
    load: Callable[[], click.Command]


Registration = (
    BackendRegistration
    | OptimizerRegistration
    | DataRegistration
    | TransportRegistration
    | ModelRegistration
    | ShardingRegistration
    | CommandRegistration
)


@hookspec
def psyche_register_backends() -> list[BackendRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Coordinator backends this plugin brings.

    Example:
        @hookimpl
        def psyche_register_backends():
            from my_plugin.client import MyBackend
            return [BackendRegistration(name="mine", summary="…", create=MyBackend.from_context)]
    """


@hookspec
def psyche_register_optimizers() -> list[OptimizerRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Optimizers this plugin brings; the name is the key under `[model.LLM.optimizer]`."""


@hookspec
def psyche_register_data() -> list[DataRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Data locations this plugin brings; the name is the key under `data_location`."""


@hookspec
def psyche_register_transports() -> list[TransportRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Transports this plugin brings; the name is what `--transport` takes."""


@hookspec
def psyche_register_models() -> list[ModelRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Model architectures this plugin brings; the name is `model.LLM.architecture`."""


@hookspec
def psyche_register_sharding() -> list[ShardingRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Ways to divide a model among processes; the name is what `--sharding` takes."""


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
