"""The plugins of an environment: found without importing anything, loaded when they are asked for.

Names come from entry points of one group. A module is imported when one of its names is requested, checked against the plugin
API, and asked for its registrations through pluggy, once. A name that two distributions bring is an error, but only for a user
who chooses it without saying which one he means.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as installed_entry_points
from typing import Any, Literal, Self, overload

from psyche_core import hookspecs, plugin_errors
from psyche_core.config.sentences import nearest
from psyche_core.errors import PluginError, PluginMissing
from psyche_core.plugin_switches import TRACE, PluginSwitches, environment_notice, normalized
from psyche_core.plugins.directory import also_known, entry_of, names_of, not_installed
from psyche_core.plugins.loading import Refused, registration_of
from psyche_core.plugins.records import PluginRecord, Records, described
from psyche_core.text_safety import printable

logger: logging.Logger = logging.getLogger("psyche.plugins")

Places = list[int]


class PluginRegistry:
    """The plugins of this environment. Not thread-safe; make one per program with `discover`."""

    def __init__(self, records: Iterable[PluginRecord]) -> None:
        self._records = list(records)
        self._loaded: dict[int, hookspecs.Registration] = {}
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

        disabled: names not to use, as `psyche_core.plugin_switches` explains. only: if given, no others are used but
        psyche-core's own. What the environment switches off (PSYCHE_DISABLE_PLUGINS, PSYCHE_PLUGINS) is off, too, but for what
        `only` names. entry_points: used instead of those installed in this environment.
        """
        found = installed_entry_points(group=hookspecs.GROUP) if entry_points is None else entry_points
        unique = {described(entry_point): None for entry_point in found}
        switches = PluginSwitches.of(os.environ, disabled=disabled, only=only)
        records = [_switched(record, switches) for record in unique]
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

    def not_installed(self) -> Records:
        """Plugins of the directory that are not here; each cause says how to install it."""
        return not_installed(self._records)

    def notice(self) -> str:
        """What the environment switches off, in one line; empty if it switches nothing off."""
        return environment_notice(os.environ, [record.switch_name for record in self._records])

    def inspect_all(self) -> Records:
        """Load every plugin that can be loaded and list all; a broken plugin is marked in its record and raises nothing."""
        for record in self.list():
            if record.status == "not loaded":
                try:
                    self.load(record.kind, record.name)
                except PluginError:
                    continue  # the record says why

        return self.list()

    def rule_out(self, record: PluginRecord, cause: str) -> PluginRecord:
        """Refuse a plugin from now on, without importing it. Returns its record."""
        at = self._records.index(record)
        self._records[at] = replace(record, status="failed", cause=cause)
        return self._records[at]

    def label(self, kind: str, name: str) -> str:
        """The name of a plugin in messages: its kind, name and distribution."""
        origin = next((self._records[at].origin for at in self._candidates(kind, name)), "not installed")
        return plugin_errors.label(kind, name.rpartition(":")[2], origin)

    def label_of_location(self, name: str, settings: Mapping[str, Any] | None) -> str:  # noqa: ARG002  # subclasses heed them
        """The name of the plugin of a data location in messages. settings: the location's table."""
        return self.label("data", name)

    def explain(self, error: BaseException) -> str:
        """One sentence about an exception, with the plugin whose code raised it; see plugin_errors."""
        return plugin_errors.explain(error, self.places())

    def places(self) -> Iterator[plugin_errors.Place]:
        """Kind, name, origin and module of each plugin."""
        for record in self._records:
            yield record.kind, record.name, record.origin, record.module

    @overload
    def load(self, kind: Literal["backend"], name: str) -> hookspecs.BackendRegistration: ...
    @overload
    def load(self, kind: Literal["optimizer"], name: str) -> hookspecs.OptimizerRegistration: ...
    @overload
    def load(self, kind: Literal["data"], name: str) -> hookspecs.DataRegistration: ...
    @overload
    def load(self, kind: Literal["transport"], name: str) -> hookspecs.TransportRegistration: ...
    @overload
    def load(self, kind: Literal["model"], name: str) -> hookspecs.ModelRegistration: ...
    @overload
    def load(self, kind: Literal["sharding"], name: str) -> hookspecs.ShardingRegistration: ...
    @overload
    def load(self, kind: Literal["relay"], name: str) -> hookspecs.RelayRegistration: ...
    @overload
    def load(self, kind: Literal["tracker"], name: str) -> hookspecs.TrackerRegistration: ...
    @overload
    def load(self, kind: Literal["store"], name: str) -> hookspecs.ModelStoreRegistration: ...
    @overload
    def load(self, kind: Literal["command"], name: str) -> hookspecs.CommandRegistration: ...
    @overload
    def load(self, kind: str, name: str) -> hookspecs.Registration: ...

    def load(self, kind: str, name: str) -> hookspecs.Registration:
        """The registration of `<kind>.<name>`; the first call imports its module. Its factories raise PluginFailed.

        name: `Name`, or `distribution:Name` where several distributions provide it. Raises PluginError if it is missing,
        disabled, broken, incomplete, provided by two distributions or of another API version (PluginMissing if it, or a module
        that it needs, is not installed and the name is like no other); ValueError for a kind that does not
        exist. Warns with PluginApiWarning for a newer minor API.
        """
        if kind not in hookspecs.KINDS:
            message = f"kind must be one of {', '.join(hookspecs.KINDS)}, got {kind!r}"
            raise ValueError(message)

        candidates = self._candidates(kind, name)
        usable = [at for at in candidates if self._records[at].status != "disabled"]
        if not candidates:
            raise self._missing(kind, name)
        if not usable:
            record = self._records[candidates[0]]
            message = (
                f"the {kind} plugin {record.name} ({record.origin}) is disabled ({record.cause}); enable {record.entry_point} to "
                "use it"
            )
            raise PluginError(message)

        (at, *_) = usable
        if self._records[at].status in ("duplicate", "shadowed"):
            if ":" not in name:
                message = f"the {kind} plugin {name} is ambiguous: {self._records[at].cause}"
                raise PluginError(message)
            self._settle(at)

        return self._load_record(at)

    def _candidates(self, kind: str, name: str) -> Places:
        """Places of the records that a user means by a name."""
        distribution, colon, plain = name.rpartition(":")
        return [
            at
            for at, record in enumerate(self._records)
            if (record.kind, record.name) == (kind, plain)
            and (not colon or normalized(record.distribution) == normalized(distribution))
        ]

    def _settle(self, chosen: int) -> None:
        """Use one of several distributions that provide a name; the others' records say that they are not used."""
        ours = self._records[chosen]
        for at in self._candidates(ours.kind, ours.name):
            if self._records[at].status == "duplicate":
                cause = f"{ours.distribution}:{ours.name} was chosen instead"
                self._records[at] = replace(self._records[at], status="shadowed", cause=cause)
        self._records[chosen] = replace(ours, status="not loaded", cause="")

    def _load_record(self, at: int) -> hookspecs.Registration:
        known = self._loaded.get(at)
        if known is not None:
            return known

        record = self._records[at]
        if record.status == "not loaded":
            began = time.perf_counter()
            try:
                registration, api = registration_of(record)
            except Refused as refused:
                self._records[at] = record = replace(record, status=refused.status, cause=str(refused))
                self._errors[at] = refused.__cause__ or refused
                _trace(record, f"{record.status}: {record.cause}", began)
            else:
                self._records[at] = replace(record, status="ok", summary=registration.summary, api=api)
                called = plugin_errors.label(record.kind, record.name, record.origin)
                _trace(record, f"registered {type(registration).__name__} {registration.name}", began)
                registration = self._loaded[at] = plugin_errors.guarded(registration, called=called)
                return registration

        message = f"the plugin {record.entry_point} ({record.origin}, module {record.module}) cannot be used: {record.cause}"
        raise (PluginMissing if record.status == "incomplete" else PluginError)(message) from self._errors.get(at)

    def _missing(self, kind: str, name: str) -> PluginError:
        installed = sorted({record.name for record in self._records if record.kind == kind and record.status != "disabled"})
        there = f"installed {kind} plugins: {', '.join(installed) or 'none'}"
        entry = entry_of(kind, name)
        if entry is not None:
            return PluginMissing(f"the {kind} plugin {name} is not installed; {entry.remedy} ({there})")

        distribution, colon, plain = name.rpartition(":")
        if colon and plain in installed:
            holders = sorted({each.distribution for each in self._records if (each.kind, each.name) == (kind, plain)})
            return PluginError(f"{distribution} provides no {kind} plugin {plain}; it comes from {' and '.join(holders)}")

        others = names_of(kind, without=installed)
        near = nearest(name, [*installed, *others])
        if near is None:
            known = also_known(kind, without=installed)
            return PluginMissing(f"no {kind} plugin is named {name}; {there}{f'; also known: {known}' if known else ''}")

        entry = entry_of(kind, near) if near in others else None
        hint = f"did you mean {near}?{f' ({entry.install_line})' if entry is not None else ''}"
        unknown = f"no {kind} plugin is named {name}; {hint}; {there}"
        slip = not _is_variant(name, near) and (
            entry is None or bool(entry.extra)
        )  # what is rarely used is no evidence of a slip
        return PluginError(unknown) if slip else PluginMissing(unknown)


def discover_and_tell() -> PluginRegistry:
    """`PluginRegistry.discover()` for a program; what the environment switches off is logged as a warning."""
    registry = PluginRegistry.discover()
    notice = registry.notice()
    if notice:
        logger.warning("plugins: %s", notice)
    return registry


def _switched(record: PluginRecord, switches: PluginSwitches) -> PluginRecord:
    why = switches.why_off(record.switch_name)
    return replace(record, status="disabled", cause=why) if why else record


def _rivals(record: PluginRecord, records: Iterable[PluginRecord]) -> str:
    """How to settle a name that several distributions provide."""
    others = [other for other in records if other.entry_point == record.entry_point and other.status != "disabled"]
    origins = " and ".join(sorted(other.origin for other in others))
    names = " or ".join(sorted(f"{other.distribution}:{record.name}" for other in others))
    return f"{origins} both provide {record.entry_point}; uninstall or disable one of them, or name the one you mean: {names}"


def _trace(record: PluginRecord, outcome: str, began: float) -> None:
    """With PSYCHE_TRACE_PLUGINS, one line on standard error about a plugin that was loaded. began: by time.perf_counter."""
    if os.environ.get(TRACE, "") not in ("", "0"):
        took = f"{(time.perf_counter() - began) * 1000:.1f} ms"
        line = f"plugin {record.entry_point} of {record.origin} (module {record.module}) {outcome} in {took}"
        print(printable(line), file=sys.stderr, flush=True)


def _is_variant(name: str, known: str) -> bool:
    """Whether a name is that of a variant, such as AdamW8bit or Distro2, and no slip of the known one."""
    added = name.removeprefix(known)
    return added != name and any(character.isdigit() or character.isupper() or character in "-_" for character in added)
