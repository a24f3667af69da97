"""The plugin directory: which plugins this project knows, what installs each, and how far it is trusted.

`directory.toml` beside this module is its only source. It is read when a plugin is missing or listed, and imports none.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal

from psyche_core.plugin_switches import CORE
from psyche_core.plugins.records import PluginRecord, Records

Level = Literal["first-party", "verified", "listed"]

LEVELS: tuple[Level, ...] = ("first-party", "verified", "listed")
"""What they promise is in docs/plugins/policy.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A distribution of the directory, with what one way of installing it brings.

    Attributes:
        plugins: (kind, name) of each.
        extends: the same, of commands of psyche itself to which it adds.
        extra: the extra of psyche-core that installs it; empty if none does.
        install: what pip is given: the extra, the distribution, or a folder of a clone.
        source: a folder of the repository, or a URL.
        check: settings with which a release is checked; empty for the defaults.
    """

    distribution: str
    plugins: tuple[tuple[str, str], ...]
    extends: tuple[tuple[str, str], ...]
    extra: str
    install: str
    summary: str
    level: Level
    source: str
    check: Mapping[str, object] = field(default_factory=dict)

    @property
    def install_line(self) -> str:
        """What to type to install it, with where and whether anybody has tried that."""
        where = "in a clone of the repository: " if self.install.startswith("./") else ""
        tested = "not tested by this project: " if self.level == "listed" else ""
        return f"{where}{tested}pip install {self.install}"

    @property
    def remedy(self) -> str:
        """What to do where it is missing, as the end of a sentence."""
        before, _, line = self.install_line.rpartition(": ")
        return f"install it{f', {before},' if before else ''} with: {line}"


@cache
def directory() -> tuple[Entry, ...]:
    """Every entry, in the order of the file."""
    text = (files(__package__) / "directory.toml").read_text(encoding="utf-8")
    return parsed(text)


def parsed(text: str) -> tuple[Entry, ...]:
    """The entries of a text like that of directory.toml."""
    return tuple(map(_entry, tomllib.loads(text)["plugin"]))


def entry_of(kind: str, name: str) -> Entry | None:
    """The entry that brings a plugin that does not come with the core; None if the directory does not know it."""
    return next((entry for entry in _beside_core() if (kind, name) in entry.plugins), None)


def names_of(kind: str, *, without: Iterable[str] = ()) -> list[str]:
    """Names of the kind that the directory knows beside the core's, but for some, such as those that are installed."""
    left_out = {*without}
    return sorted(name for entry in _beside_core() for of, name in entry.plugins if of == kind and name not in left_out)


def also_known(kind: str, *, without: Iterable[str] = ()) -> str:
    """`Http and WeightedHttp (pip install …), Server (pip install …)`: what could be installed; empty if there is nothing."""
    missing = {*names_of(kind, without=without)}
    told = []
    for entry in _beside_core():
        names = [name for of, name in entry.plugins if of == kind and name in missing]
        if names:
            told.append(f"{' and '.join(names)} ({entry.install_line})")
    return ", ".join(told)


def not_installed(records: Iterable[PluginRecord]) -> Records:
    """Records of the directory's plugins that are missing here; each cause says how to install it."""
    here = {(record.kind, record.name) for record in records}
    return [
        PluginRecord(
            kind=kind,
            name=name,
            distribution=entry.distribution,
            version="",
            module="",
            status="not installed",
            cause=entry.remedy,
            summary=entry.summary,
        )
        for entry in _beside_core()
        for kind, name in entry.plugins
        if (kind, name) not in here
    ]


def _beside_core() -> list[Entry]:
    return [entry for entry in directory() if entry.distribution != CORE]


def _entry(table: dict[str, object]) -> Entry:
    words = {key: str(value) for key, value in table.items() if isinstance(value, str)}
    extra = words.get("extra", "")
    usual = f"'{CORE}[{extra}]'" if extra else words["distribution"]
    check = table.get("check", {})
    assert isinstance(check, dict)
    (level,) = (level for level in LEVELS if level == words["level"])
    return Entry(
        distribution=words["distribution"],
        plugins=_pairs(table["plugins"]),
        extends=_pairs(table.get("extends", ())),
        extra=extra,
        install=words.get("install", usual),
        summary=words["summary"],
        level=level,
        source=words["source"],
        check=dict(check),
    )


def _pairs(entry_points: object) -> tuple[tuple[str, str], ...]:
    """(kind, name) of names of entry points."""
    assert isinstance(entry_points, list | tuple)
    split = [str(entry_point).partition(".") for entry_point in entry_points]
    return tuple((kind, name) for kind, _, name in split)
