"""What `psyche plugins check` and `show` take for a plugin's name, and the sentence about a name that is none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from psyche_core.config.sentences import join_path, nearest
from psyche_core.errors import PluginError
from psyche_core.hookspecs import KINDS
from psyche_core.plugins import PluginRecord, Records


def named(name: str, records: Iterable[PluginRecord]) -> Records:
    """The plugins that a user means: by `Name`, `kind.Name`, or one of these behind `distribution:`."""
    return [record for record in records if record.switch_name.matches(name) and name != record.distribution]


def unknown(name: str, records: Records, missing: Records) -> PluginError:
    """The error about a name that no installed plugin has.

    records: what is installed. missing: what the plugin directory knows beside it.
    """
    for record in named(name, missing):
        return PluginError(f"the {record.kind} plugin {record.name} is not installed; {record.cause}")

    plain = name.rpartition(":")[2]
    kind, dot, rest = plain.partition(".")
    if not dot or kind not in KINDS:
        kind, rest = "", plain
    names = {record.name for record in records if kind in ("", record.kind)}
    same = sorted(each for each in names if _letters(each) == _letters(rest))
    if same:
        return PluginError(f"no plugin is named {name}; did you mean {' or '.join(join_path(kind, each) for each in same)}?")
    near = nearest(rest, names)
    absent = {record.name: record for record in missing if kind in ("", record.kind)}
    closest = nearest(rest, absent) if near is None else None
    if closest is not None:
        record = absent[closest]
        message = f"no plugin is named {name}; did you mean {record.kind}.{record.name}? It is not installed; {record.cause}"
        return PluginError(message)

    told = f"; did you mean {join_path(kind, near)}?" if near is not None else f"; known: {', '.join(sorted(names))}"
    return PluginError(f"no plugin is named {name}{_install_hint(rest) or told}")


def folder_words(name: str) -> str:
    """A name as the folders of `psyche plugins new` write it: MajorityVote is majority-vote."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()).strip("-")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _install_hint(name: str) -> str:
    """The end of a sentence about an unknown plugin whose project is in the current folder; empty if none is."""
    wanted = folder_words(name.rpartition(".")[2])
    projects = sorted(path.parent for pattern in ("pyproject.toml", "*/pyproject.toml") for path in Path().glob(pattern))
    fitting = [each for each in projects if f"-{folder_words(each.absolute().name)}".endswith(f"-{wanted}")]
    if not wanted or len(fitting) != 1:
        return ""
    return f"; the project {fitting[0]} is not installed, or has no such plugin; install it with: pip install -e {fitting[0]}"
