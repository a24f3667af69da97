"""Loads many plugins in a process of its own, so that one that ends its process is a sentence and the others are told, too.

A module that exits or crashes in native code cannot be caught (os._exit can, see `psyche_core.plugin_exits`). Commands that use
one plugin import it themselves; those that look at all, such as `psyche plugins list`, ask `surveyed`. The other process says
which plugin it begins with, and what came of it; where it ends in between, that plugin is ruled out, and another process goes on
with the rest. A process costs the time in which Python starts and imports this package.

    python -P -m psyche_core.plugins.survey    standard input: {"path": sys.path, "wanted": [record, …]}
                                               standard output, a line each: {"begins": key}, {"is": record}
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from psyche_core.errors import PluginError, PluginFailed
from psyche_core.plugins.child_process import run_alone
from psyche_core.plugins.records import PluginRecord, Records
from psyche_core.plugins.registry import PluginRegistry

SURVEY_SECONDS = 120
"""Time limit of one process."""

_UNKNOWN = ("not loaded", "duplicate")
"""Statuses of plugins that can be loaded and were not."""

Key = tuple[str, str, str, str]
"""Kind, name, distribution and module of a plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is known of plugins.

    Attributes:
        records: of all plugins of a registry.
        ended: of those that ended the process that loaded them.
    """

    records: Records
    ended: Records


@dataclass(frozen=True, slots=True)
class _Told:
    """What a process told before it ended.

    Attributes:
        records: of the plugins that it loaded, or could not load.
        begun: the plugin with which it did not come to an end; None if there is none.
        end: how it ended, for a sentence.
    """

    records: Mapping[Key, PluginRecord]
    begun: Key | None
    end: str


def _not_loaded(record: PluginRecord) -> bool:
    return record.status == "not loaded"


def surveyed(registry: PluginRegistry, wanted: Callable[[PluginRecord], bool] = _not_loaded) -> Survey:
    """Load plugins in another process; nothing is imported here. The registry refuses from now on what ended that process.

    wanted: which, of those that can be loaded. A duplicate stays one, and its record has its summary if it can be loaded. Raises
    PluginFailed if there is no such process.
    """
    asked = [record for record in registry.list() if record.status in _UNKNOWN and wanted(record)]
    found: dict[Key, PluginRecord] = {}
    ended = []
    while asked:
        told = _ask(asked)
        found |= told.records
        if told.begun is not None:
            (known,) = [record for record in asked if _key(record) == told.begun]
            cause = f"loading it {told.end}; psyche --disable-plugin {_switch(known)} leaves it out"
            found[told.begun] = registry.rule_out(known, cause)
            ended.append(found[told.begun])
        rest = [record for record in asked if _key(record) not in found]
        if len(rest) == len(asked):
            command = f"{sys.executable} -m {__name__} < /dev/null"
            message = f"the process that loads plugins {told.end} before it began; {command} may say more"
            raise PluginFailed(message)
        asked = rest

    return Survey(records=[_merged(record, found.get(_key(record))) for record in registry.list()], ended=ended)


def _merged(record: PluginRecord, found: PluginRecord | None) -> PluginRecord:
    if found is None:
        return record
    if record.status == "duplicate" and found.status in ("ok", "shadowed"):
        return replace(record, summary=found.summary, api=found.api)
    return found


def _ask(wanted: Sequence[PluginRecord]) -> _Told:
    order = json.dumps({"path": sys.path, "wanted": [asdict(record) for record in wanted]})
    done = run_alone([sys.executable, "-P", "-m", __name__], sent=order.encode(), seconds=SURVEY_SECONDS)
    sys.stderr.write(done.errors.decode(errors="replace"))  # what plugins print, and warnings
    return _read(done.output, f"did not end within {SURVEY_SECONDS} s" if done.status is None else _end(done.status))


def _read(output: bytes, end: str) -> _Told:
    begun: Key | None = None
    records: dict[Key, PluginRecord] = {}
    for line in output[: output.rfind(b"\n") + 1].splitlines():  # the last one may be a part
        said = json.loads(line)
        if "begins" in said:
            begun = _key_of(said["begins"])
        else:
            record = PluginRecord(**said["is"])
            records[_key(record)] = record
            begun = None
    return _Told(records, begun, end)


def _end(status: int) -> str:
    name = {each.value: each.name for each in signal.Signals}.get(-status)
    return f"ended the process, with {f'signal {name}' if name else f'exit status {status}'}"


def _switch(record: PluginRecord) -> str:
    """What switches this plugin off, and no other one."""
    return f"{record.distribution}:{record.entry_point}" if record.status == "duplicate" else record.entry_point


def _key(record: PluginRecord) -> Key:
    return record.kind, record.name, record.distribution, record.module


def _key_of(said: Sequence[str]) -> Key:
    kind, name, distribution, module = said
    return kind, name, distribution, module


def _load_and_tell() -> None:
    """The other process."""
    order = json.loads(sys.stdin.buffer.read())
    sys.path[:] = order["path"]
    registry = PluginRegistry([PluginRecord(**each) for each in order["wanted"]])
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what plugins print, also from native code, is no line of ours

        def tell(**said: object) -> None:
            print(json.dumps(said), file=out, flush=True)

        for known in registry.list():
            key = _key(known)
            tell(begins=key)
            with contextlib.suppress(PluginError):  # the record says why
                registry.load(known.kind, f"{known.distribution}:{known.name}")
            tell(**{"is": asdict(next(record for record in registry.list() if _key(record) == key))})

    sys.stderr.flush()
    os._exit(0)  # a plugin's threads and exit handlers are not awaited


if __name__ == "__main__":
    _load_and_tell()
