"""What `psyche --help` says of the commands that plugins provide: from where, or why one cannot be used.

Nothing is imported, neither a plugin nor what is slow of ours. The plugin API for which a command was written is read from the
source of its module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path

from psyche_core.plugin_switches import GROUP, PluginName, PluginSwitches

KIND = "command."
"""As in psyche_core.hookspecs, which is too slow to import here; a test compares them."""

PLUGIN_API = (1, 0)
"""As in psyche_core.hookspecs; a test compares them."""

_STATED = re.compile(r"^PSYCHE_PLUGIN_API\b[^=\n]*=\s*[\"'](\d+)\.(\d+)[\"']", flags=re.MULTILINE)
_DISABLED = "(disabled)"
_AMBIGUOUS = "(ambiguous)"


def marked_commands(disabled: Collection[str] = ()) -> dict[str, str]:
    """By name of a command that plugins provide: what to say of it. disabled: what --disable-plugin named."""
    switches = PluginSwitches.of(os.environ, disabled=disabled)
    said: dict[str, list[str]] = {}
    for name, plugin, module in _found():
        said.setdefault(name, []).append(_said(name, plugin, module, off=bool(switches.why_off(plugin))))
    return {name: _one(each) for name, each in sorted(said.items())}


def _found() -> list[tuple[str, PluginName, str]]:
    """Name, plugin and module of each command, each once."""
    found = {
        (each.name.removeprefix(KIND), PluginName.of(each), each.value.partition(":")[0])
        for each in entry_points(group=GROUP)
        if each.name.startswith(KIND)
    }
    return sorted(found, key=str)


def _said(name: str, plugin: PluginName, module: str, *, off: bool) -> str:
    origin = f"from {plugin.distribution}"
    if off:
        return f"{_DISABLED} {origin}; see psyche plugins list --all"
    source = _source(module)
    if source is None:
        return f"{origin}; see psyche {name} --help"
    if not source.exists():
        return f"(broken) {origin}; its module {module} is missing"
    stated = _STATED.search(source.read_text(encoding="utf-8", errors="replace"))
    if stated is not None and int(stated[1]) != PLUGIN_API[0]:
        ours = ".".join(map(str, PLUGIN_API))
        return f"(incompatible) {origin}, which was written for plugin API {stated[1]}.{stated[2]}; this psyche has {ours}"
    return f"{origin}; see psyche {name} --help"


def _one(said: list[str]) -> str:
    """What to say of a name that several plugins may provide."""
    used = [each for each in said if not each.startswith(_DISABLED)]
    if len(used) > 1:
        origins = " and ".join(re.sub(r"^(\(\w+\) )?from ([^;, ]+).*", r"\2", each) for each in used)
        return f"{_AMBIGUOUS} from {origins}; say psyche DISTRIBUTION:NAME"
    return (used or said)[0]


def _source(module: str) -> Path | None:
    """The file of a module, which may be missing; None if the module is not a plain file, or its package not found."""
    top, *inner = module.split(".")
    try:
        spec = PathFinder.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or (spec.submodule_search_locations is None and inner):
        return None
    if not inner:
        return None if spec.origin is None else Path(spec.origin)
    for folder in spec.submodule_search_locations or ():
        for path in (Path(folder, *inner).with_suffix(".py"), Path(folder, *inner, "__init__.py")):
            if path.exists():
                return path
    folders = list(spec.submodule_search_locations or ())
    return Path(folders[0], *inner).with_suffix(".py") if folders else None
