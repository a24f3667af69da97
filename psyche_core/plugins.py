"""Find, load and explain plugins.

Names come from entry points of one group, read without importing anything. A module is imported when one of its names is
requested, checked against the plugin API, and asked for its registrations through pluggy, once. Each module has its own plugin
manager, so a broken plugin cannot disturb another. A name that two distributions bring is an error, but only for a user who
chooses it. There is no global state; a registry is an object.
"""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as installed_entry_points
from types import MappingProxyType, ModuleType
from typing import Any, Literal, Self, overload

import pluggy
from pydantic import BaseModel

from psyche_core import hookspecs, plugin_errors
from psyche_core.config.run_config import RunFile
from psyche_core.config.sentences import join_path, nearest, validated
from psyche_core.errors import ConfigError, PluginError
from psyche_core.hookspecs import (
    GROUP,
    KINDS,
    PLUGIN_API,
    PROJECT,
    BackendRegistration,
    CommandRegistration,
    DataRegistration,
    ModelRegistration,
    OptimizerRegistration,
    Registration,
    RelayRegistration,
    ShardingRegistration,
    TrackerRegistration,
    TransportRegistration,
)

Status = Literal["ok", "not loaded", "failed", "incompatible", "duplicate", "disabled"]

FIRST_PARTY_EXTRAS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("backend", "solana"): "solana",
        ("backend", "tcp"): "tcp",
        ("command", "relay"): "quic",
        ("command", "run-manager"): "solana",
        ("command", "solana"): "solana",
        ("data", "Server"): "tcp",
        ("data", "Http"): "http",
        ("data", "WeightedHttp"): "http",
        ("optimizer", "Distro"): "distro",
        ("relay", "iroh"): "quic",
        ("sharding", "deepspeed"): "deepspeed",
        ("tracker", "tensorboard"): "tensorboard",
        ("tracker", "wandb"): "wandb",
        ("transport", "quic"): "quic",
    }
)
"""(kind, name) -> the extra of psyche-core that installs it."""

_HOOKS: Mapping[str, tuple[str, type[Registration]]] = MappingProxyType(
    {
        "backend": ("psyche_register_backends", BackendRegistration),
        "optimizer": ("psyche_register_optimizers", OptimizerRegistration),
        "data": ("psyche_register_data", DataRegistration),
        "transport": ("psyche_register_transports", TransportRegistration),
        "model": ("psyche_register_models", ModelRegistration),
        "sharding": ("psyche_register_sharding", ShardingRegistration),
        "relay": ("psyche_register_relays", RelayRegistration),
        "tracker": ("psyche_register_trackers", TrackerRegistration),
        "command": ("psyche_register_commands", CommandRegistration),
    }
)


class PluginApiWarning(UserWarning):
    """A plugin needs a newer minor version of the plugin API than this core knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRecord:
    """What is known about one entry point.

    name: as in a run configuration; if the entry point's name is not `<kind>.<Name>`, the whole name, with kind "". cause: one
    sentence that says why the status is not ok. summary and api ("1.0") are known only after the plugin was loaded.
    """

    kind: str
    name: str
    distribution: str
    version: str
    module: str
    status: Status
    cause: str = ""
    summary: str = ""
    api: str = ""

    @property
    def entry_point(self) -> str:
        """The name of the entry point, `<kind>.<Name>`."""
        return join_path(self.kind, self.name)

    @property
    def origin(self) -> str:
        """Distribution and version, for display."""
        return f"{self.distribution} {self.version}".strip()


Records = list[PluginRecord]


class _Refused(Exception):
    """An entry point cannot be used; becomes the record's status and cause."""

    def __init__(self, status: Status, cause: str) -> None:
        super().__init__(cause)
        self.status: Status = status


class PluginRegistry:
    """The plugins of this environment. Not thread-safe; make one per program with `discover`."""

    def __init__(self, records: Iterable[PluginRecord]) -> None:
        self._records = list(records)
        self._loaded: dict[tuple[str, str], Registration] = {}
        self._errors: dict[int, BaseException] = {}

    @classmethod
    def discover(
        cls,
        *,
        disabled: Collection[str] = (),
        only: Collection[str] | None = None,
        entry_points: Iterable[EntryPoint] | None = None,
    ) -> Self:
        """Read the entry points; imports nothing.

        disabled: names not to use, either `<kind>.<Name>` or a distribution's name. only: if given, all other names are
        disabled. entry_points: used instead of those installed in this environment.
        """
        found = installed_entry_points(group=GROUP) if entry_points is None else entry_points
        unique = {_described(entry_point): None for entry_point in found}
        records = [_switched(record, disabled, only) for record in unique]
        holders = Counter(record.entry_point for record in records if record.status == "not loaded")
        return cls(
            replace(record, status="duplicate", cause=_rivals(record, records))
            if record.status == "not loaded" and holders[record.entry_point] > 1
            else record
            for record in sorted(records, key=lambda record: (record.kind, record.name, record.distribution))
        )

    def list(self) -> Records:
        """Every entry point found, in order of kind, name and distribution."""
        return list(self._records)

    def inspect_all(self) -> Records:
        """Load every plugin that can be loaded and list all; a broken plugin is marked in its record and raises nothing."""
        for record in self.list():
            if record.status == "not loaded":
                try:
                    self.load(record.kind, record.name)
                except PluginError:
                    continue  # the record says why

        return self.list()

    def label(self, kind: str, name: str) -> str:
        """The name of a plugin in messages: its kind, name and distribution."""
        origin = next((each.origin for each in self._records if (each.kind, each.name) == (kind, name)), "not installed")
        return plugin_errors.label(kind, name, origin)

    def explain(self, error: BaseException) -> str:
        """One sentence about an exception, with the plugin whose code raised it; see plugin_errors."""
        return plugin_errors.explain(error, self.places())

    def places(self) -> Iterator[plugin_errors.Place]:
        """Kind, name, origin and module of each plugin."""
        for record in self._records:
            yield record.kind, record.name, record.origin, record.module

    @overload
    def load(self, kind: Literal["backend"], name: str) -> BackendRegistration: ...
    @overload
    def load(self, kind: Literal["optimizer"], name: str) -> OptimizerRegistration: ...
    @overload
    def load(self, kind: Literal["data"], name: str) -> DataRegistration: ...
    @overload
    def load(self, kind: Literal["transport"], name: str) -> TransportRegistration: ...
    @overload
    def load(self, kind: Literal["model"], name: str) -> ModelRegistration: ...
    @overload
    def load(self, kind: Literal["sharding"], name: str) -> ShardingRegistration: ...
    @overload
    def load(self, kind: Literal["relay"], name: str) -> RelayRegistration: ...
    @overload
    def load(self, kind: Literal["tracker"], name: str) -> TrackerRegistration: ...
    @overload
    def load(self, kind: Literal["command"], name: str) -> CommandRegistration: ...
    @overload
    def load(self, kind: str, name: str) -> Registration: ...

    def load(self, kind: str, name: str) -> Registration:
        """The registration of `<kind>.<name>`; the first call imports its module. Its factories raise PluginFailed.

        Raises PluginError if it is missing, disabled, broken, provided by two distributions or of another API version;
        ValueError for a kind that does not exist. Warns with PluginApiWarning for a newer minor API.
        """
        if kind not in KINDS:
            message = f"kind must be one of {', '.join(KINDS)}, got {kind!r}"
            raise ValueError(message)

        known = self._loaded.get((kind, name))
        if known is not None:
            return known

        candidates = [at for at, record in enumerate(self._records) if (record.kind, record.name) == (kind, name)]
        usable = [at for at in candidates if self._records[at].status != "disabled"]
        if not candidates:
            raise PluginError(self._missing(kind, name))
        if not usable:
            record = self._records[candidates[0]]
            message = f"the {kind} plugin {name} ({record.origin}) is disabled; enable {record.entry_point} to use it"
            raise PluginError(message)

        (at, *_) = usable
        if self._records[at].status == "duplicate":
            message = f"the {kind} plugin {name} is ambiguous: {self._records[at].cause}"
            raise PluginError(message)

        return self._load_record(at)

    def _load_record(self, at: int) -> Registration:
        record = self._records[at]
        if record.status == "not loaded":
            try:
                registration, api = _registration_of(record)
            except _Refused as refused:
                self._records[at] = record = replace(record, status=refused.status, cause=str(refused))
                self._errors[at] = refused.__cause__ or refused
            else:
                self._records[at] = replace(record, status="ok", summary=registration.summary, api=api)
                called = plugin_errors.label(record.kind, record.name, record.origin)
                registration = self._loaded[record.kind, record.name] = plugin_errors.guarded(registration, called=called)
                return registration

        message = f"the plugin {record.entry_point} ({record.origin}, module {record.module}) cannot be used: {record.cause}"
        raise PluginError(message) from self._errors.get(at)

    def _missing(self, kind: str, name: str) -> str:
        installed = sorted({record.name for record in self._records if record.kind == kind and record.status != "disabled"})
        there = f"installed {kind} plugins: {', '.join(installed) or 'none'}"
        extra = FIRST_PARTY_EXTRAS.get((kind, name))
        if extra is not None:
            return f"the {kind} plugin {name} is not installed; install it with: pip install 'psyche-core[{extra}]' ({there})"

        ours = [known for of_kind, known in FIRST_PARTY_EXTRAS if of_kind == kind and known not in installed]
        near = nearest(name, [*installed, *ours])
        hint = f"; did you mean {near}?" if near is not None else ""
        if near in ours:
            hint += f" (pip install 'psyche-core[{FIRST_PARTY_EXTRAS[kind, near]}]')"

        return f"no {kind} plugin is named {name}{hint}; {there}"


def _described(entry_point: EntryPoint) -> PluginRecord:
    distribution, version = _distribution_of(entry_point)
    kind, dot, name = entry_point.name.partition(".")
    record = PluginRecord(
        kind=kind,
        name=name,
        distribution=distribution,
        version=version,
        module=entry_point.value,
        status="not loaded",
    )
    if not dot or not name or kind not in KINDS:
        cause = f"the entry point must be named <kind>.<Name> with a kind among {', '.join(KINDS)}"
        return replace(record, kind="", name=entry_point.name, status="failed", cause=cause)

    return record


def _distribution_of(entry_point: EntryPoint) -> tuple[str, str]:
    """Name and version. A distribution with broken metadata must not prevent the use of the others."""
    try:
        name, version = entry_point.dist.name, entry_point.dist.version  # type: ignore[union-attr]  # None is caught too
    except Exception:  # importlib.metadata raises different exceptions in different Python versions
        name = version = ""
    return name or "unknown distribution", version or ""


def _switched(record: PluginRecord, disabled: Collection[str], only: Collection[str] | None) -> PluginRecord:
    names = {record.entry_point, record.distribution}
    if names & set(disabled):
        return replace(record, status="disabled", cause="disabled by its user")
    if only is not None and not names & set(only):
        return replace(record, status="disabled", cause="not among the only plugins to use")

    return record


def _rivals(record: PluginRecord, records: Iterable[PluginRecord]) -> str:
    names = [other.origin for other in records if other.entry_point == record.entry_point and other.status != "disabled"]
    return f"{' and '.join(sorted(names))} both provide {record.entry_point}; uninstall or disable one of them"


def _registration_of(record: PluginRecord) -> tuple[Registration, str]:
    """Import the module, check its API version, call its hook. Raises _Refused."""
    module = _imported(record.module)
    api = _checked_api(module, record)
    hook_name, of_type = _HOOKS[record.kind]
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module, name=record.module)
        manager.check_pending()
        answers: list[Any] = getattr(manager.hook, hook_name)()
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        cause = f"{hook_name} failed with {type(error).__name__}: {error}"
        raise _Refused("failed", cause) from error

    if not answers:
        cause = f"its module has no @hookimpl function {hook_name}"
        raise _Refused("failed", cause)

    registered = answers[0]
    if not isinstance(registered, list | tuple) or not all(isinstance(item, of_type) for item in registered):
        cause = f"{hook_name} must return a list of {of_type.__name__}, got {type(registered).__name__}"
        raise _Refused("failed", cause)

    named = [item for item in registered if item.name == record.name]
    if len(named) != 1:
        names = ", ".join(item.name for item in registered) or "nothing"
        cause = f"{hook_name} must register {record.name} exactly once, got {names}"
        raise _Refused("failed", cause)

    return named[0], api


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # importing runs foreign code
        cause = f"importing it failed with {type(error).__name__}: {error}"
        raise _Refused("failed", cause) from error


def _checked_api(module: ModuleType, record: PluginRecord) -> str:
    ours = f"{PLUGIN_API[0]}.{PLUGIN_API[1]}"
    text = getattr(module, "PSYCHE_PLUGIN_API", None)
    try:
        major, minor = (int(part) for part in str(text).split("."))
    except ValueError:
        cause = f'its module must define PSYCHE_PLUGIN_API = "{ours}", got {text!r}'
        raise _Refused("incompatible", cause) from None

    if major != PLUGIN_API[0]:
        older = "psyche-core" if major > PLUGIN_API[0] else record.distribution
        cause = f"it was written for plugin API {text}, this core has {ours}; upgrade {older}"
        raise _Refused("incompatible", cause)
    if minor > PLUGIN_API[1]:
        message = f"{record.entry_point} ({record.origin}) was written for plugin API {text}, this core has {ours}"
        warnings.warn(message, PluginApiWarning, stacklevel=2)

    return str(text)


def validate_settings(registration: Registration, settings: Mapping[str, Any] | None, *, where: str) -> BaseModel | None:
    """A plugin's own table, validated by its own model; None if the plugin takes no settings.

    where: dotted key of the table, for messages. Raises ConfigError with one sentence per problem.
    """
    model: type[BaseModel] | None = getattr(registration, "settings", None)
    given = dict(settings or {})
    if model is None:
        if given:
            message = f"{where}: {registration.name} takes no settings, got {', '.join(given)}"
            raise ConfigError(message)

        return None

    return validated(model, given, where=where)


def check_run_file_plugins(run_file: RunFile, registry: PluginRegistry) -> None:
    """Load the plugins that a run names and validate their settings. Raises ConfigError with every problem, one per line."""
    llm = run_file.model.LLM
    problems: list[str] = []
    for kind, key, choice_name, settings in (
        ("model", "architecture", llm.architecture, None),
        ("data", "data_location", llm.data_location.name, llm.data_location.settings),
        ("optimizer", "optimizer", llm.optimizer.name, llm.optimizer.settings),
    ):
        where = f"model.LLM.{key}"
        try:
            registration = registry.load(kind, choice_name)
            if kind != "model":
                validate_settings(registration, settings, where=f"{where}.{choice_name}")
        except PluginError as error:
            problems.append(f"{where} = {choice_name}: {error}")
        except ConfigError as error:
            problems.append(str(error))

    if problems:
        raise ConfigError("\n".join(problems))
