"""Every hook on one page; what each of them returns is in the modules beside it, and importable from here.

A hook is called once, at set-up, and returns registrations; the hot path never comes here.

A plugin is a module with `PSYCHE_PLUGIN_API = "1.0"` and functions decorated with `psyche_core.hookspecs.hookimpl`, named by an
entry point per thing it registers, in ONE group:

    [project.entry-points."psyche.plugins"]
    "optimizer.Distro" = "psyche_optim_distro.hooks"

The entry point's name is `<kind>.<Name>`; kinds are backend, optimizer, data, transport, model, sharding, relay, tracker, store
and command. `Name` is what a run configuration says (`[model.LLM.optimizer.Distro]`, `data_location.Http`), an option (`--tracker
wandb`), the scheme of a URL for a store of models, or the word behind `psyche` for a command. Reading names imports nothing, so a
broken or slow plugin costs nothing if it is not used. Factories import heavy modules when they are called.

Each registration's `settings` is a pydantic model (or None) that validates the plugin's own table; unknown keys are refused. Its
`requires` maps modules that the factory imports and that may be missing, such as those of an extra, to what installs them:
`{"torch": "pip install 'psyche-core[train]'"}`. Where one is missing the plugin is listed as incomplete, with that line, and not
used.
"""

from __future__ import annotations

import pluggy

from psyche_core.hookspecs.backends import (
    BackendContext,
    BackendRegistration,
    BackendTestnet,
    LaterKnown,
    MemberContext,
    ServerContext,
)
from psyche_core.hookspecs.programs import CommandRegistration, TrackerContext, TrackerRegistration
from psyche_core.hookspecs.stores import ModelStoreContext, ModelStoreRegistration
from psyche_core.hookspecs.training import (
    DataContext,
    DataRegistration,
    DivisionContext,
    ModelContext,
    ModelRegistration,
    OptimizerContext,
    OptimizerRegistration,
    Parallelism,
    PartContext,
    ShardingContext,
    ShardingRegistration,
)
from psyche_core.hookspecs.transports import RelayContext, RelayRegistration, TransportContext, TransportRegistration

__all__ = [
    "GROUP",
    "KINDS",
    "PLUGIN_API",
    "PROJECT",
    "BackendContext",
    "BackendRegistration",
    "BackendTestnet",
    "CommandRegistration",
    "DataContext",
    "DataRegistration",
    "DivisionContext",
    "LaterKnown",
    "MemberContext",
    "ModelContext",
    "ModelRegistration",
    "ModelStoreContext",
    "ModelStoreRegistration",
    "OptimizerContext",
    "OptimizerRegistration",
    "Parallelism",
    "PartContext",
    "Registration",
    "RelayContext",
    "RelayRegistration",
    "ServerContext",
    "ShardingContext",
    "ShardingRegistration",
    "TrackerContext",
    "TrackerRegistration",
    "TransportContext",
    "TransportRegistration",
    "hookimpl",
    "hookspec",
    "psyche_register_backends",
    "psyche_register_commands",
    "psyche_register_data",
    "psyche_register_model_stores",
    "psyche_register_models",
    "psyche_register_optimizers",
    "psyche_register_relays",
    "psyche_register_sharding",
    "psyche_register_trackers",
    "psyche_register_transports",
]

PROJECT = "psyche"
GROUP = "psyche.plugins"
KINDS = ("backend", "optimizer", "data", "transport", "model", "sharding", "relay", "tracker", "store", "command")
PLUGIN_API = (1, 0)

hookspec: pluggy.HookspecMarker = pluggy.HookspecMarker(PROJECT)
hookimpl: pluggy.HookimplMarker = pluggy.HookimplMarker(PROJECT)


Registration = (
    BackendRegistration
    | OptimizerRegistration
    | DataRegistration
    | TransportRegistration
    | ModelRegistration
    | ShardingRegistration
    | RelayRegistration
    | TrackerRegistration
    | ModelStoreRegistration
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
def psyche_register_model_stores() -> list[ModelStoreRegistration]:  # type: ignore[empty-body]  # pluggy specs have no body
    """Stores for a run's models that this plugin provides; the name is the scheme of their URLs, as in `--model-store davs://…`.

    Example:
        @hookimpl
        def psyche_register_model_stores():
            return [ModelStoreRegistration(name=scheme, summary="…", create=create) for scheme in ("dav", "davs")]
    """


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
