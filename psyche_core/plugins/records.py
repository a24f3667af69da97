"""What is known about an entry point before, and after, its module was imported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Literal

from psyche_core.config.sentences import join_path
from psyche_core.hookspecs import KINDS
from psyche_core.plugin_switches import PluginName

Status = Literal["ok", "not loaded", "failed", "incompatible", "incomplete", "duplicate", "shadowed", "disabled", "not installed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRecord:
    """What is known about one entry point.

    name: as in a run configuration; if the entry point's name is not `<kind>.<Name>`, the whole name, with kind "". cause: one
    sentence that says why the status is not ok. summary and api ("1.0") are known only after the plugin was loaded.

    status: `incompatible` is of another plugin API, `incomplete` lacks a module that it needs, `duplicate` has a name that
    another distribution brings, too, `shadowed` is not used because the other one is, `not installed` is one of our own.
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

    @property
    def switch_name(self) -> PluginName:
        """As switches name it."""
        return PluginName(self.entry_point, self.distribution, self.version)


Records = list[PluginRecord]


def described(entry_point: EntryPoint) -> PluginRecord:
    """The record of an entry point whose module is not imported."""
    known = PluginName.of(entry_point)
    kind, dot, name = entry_point.name.partition(".")
    record = PluginRecord(
        kind=kind,
        name=name,
        distribution=known.distribution,
        version=known.version,
        module=entry_point.value,
        status="not loaded",
    )
    if not all(part.isidentifier() for part in entry_point.value.split(".")):
        cause = (
            f"its entry point must name a module of hooks and nothing behind it, got {entry_point.value}; "
            f'write "{entry_point.name}" = "{entry_point.module}" in pyproject.toml, and install it again'
        )
        record = replace(record, status="failed", cause=cause)
    if not dot or not name or kind not in KINDS:
        cause = f"the entry point must be named <kind>.<Name> with a kind among {', '.join(KINDS)}"
        return replace(record, kind="", name=entry_point.name, status="failed", cause=cause)

    return record
