"""Which installed plugins are used: what `psyche --disable-plugin` and three environment variables switch.

    PSYCHE_DISABLE_PLUGINS=a,b   these are treated as if they were not installed
    PSYCHE_PLUGINS=a,b           only these are used, and psyche-core's own
    PSYCHE_TRACE_PLUGINS=1       each plugin that is loaded is told on standard error

A plugin is named by its entry point (`optimizer.Distro`), by its name alone (`Distro`), by its distribution
(`psyche-optim-distro`), or by a distribution and one of the first two (`psyche-optim-distro:Distro`). Programs that we start get
the three variables, too. Only the standard library is imported here: `psyche --help` needs it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

GROUP = "psyche.plugins"
CORE = "psyche-core"
DISABLE, ONLY, TRACE = "PSYCHE_DISABLE_PLUGINS", "PSYCHE_PLUGINS", "PSYCHE_TRACE_PLUGINS"
VARIABLES = (DISABLE, ONLY, TRACE)

_SHOWN = 5
"""Maximum number of plugins that one sentence names."""


@dataclass(frozen=True, slots=True)
class PluginName:
    """An entry point as users may name it. distribution, version: as installed."""

    entry_point: str
    distribution: str
    version: str = ""

    @classmethod
    def of(cls, entry_point: EntryPoint) -> PluginName:
        """The name of an entry point. A distribution with broken metadata must not prevent the use of the others."""
        try:
            name, version = entry_point.dist.name, entry_point.dist.version  # type: ignore[union-attr]  # None is caught too
        except Exception:  # importlib.metadata raises different exceptions in different Python versions
            name = version = ""
        return cls(entry_point.name, name or "unknown distribution", version or "")

    def __str__(self) -> str:
        return f"{self.entry_point} ({self.distribution} {self.version})".replace(" )", ")")

    def matches(self, said: str) -> bool:
        """Whether a user who said this means this plugin."""
        distribution, colon, name = said.strip().rpartition(":")
        if colon and normalized(distribution) != normalized(self.distribution):
            return False
        if name in (self.entry_point, self.entry_point.partition(".")[2]):
            return True

        return not colon and normalized(name) == normalized(self.distribution)

    def is_among(self, said: Iterable[str]) -> bool:
        """Whether one of these means this plugin."""
        return any(self.matches(each) for each in said)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSwitches:
    """What is switched off, and by whom.

    disabled, only: said by the program that looks for plugins. The others: said by the environment. What a program says wins:
    `only` replaces PSYCHE_PLUGINS, and what it names is used although PSYCHE_DISABLE_PLUGINS names it.
    """

    disabled: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    disabled_outside: tuple[str, ...] = ()
    only_outside: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        environment: Mapping[str, str],
        *,
        disabled: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> PluginSwitches:
        """The switches of a program in an environment."""
        return cls(
            disabled=tuple(disabled),
            only=None if only is None else tuple(only),
            disabled_outside=listed(environment.get(DISABLE, "")),
            only_outside=listed(environment.get(ONLY, "")) or None,
        )

    def why_off(self, plugin: PluginName) -> str:
        """A sentence without its subject; empty for a plugin that may be used."""
        if plugin.is_among(self.disabled):
            return "disabled by its user"
        if self.only is not None:
            return "" if plugin.is_among(self.only) or _is_core(plugin) else "not among the only plugins to use"
        if plugin.is_among(self.disabled_outside):
            return f"switched off by --disable-plugin or {DISABLE}"
        if self.only_outside is not None and not plugin.is_among(self.only_outside) and not _is_core(plugin):
            return f"not among those that {ONLY} names, {', '.join(self.only_outside)}"

        return ""


def listed(text: str) -> tuple[str, ...]:
    """Names in the value of a variable, separated by commas or spaces."""
    return tuple(name for name in re.split(r"[,\s]+", text) if name)


def normalized(distribution: str) -> str:
    """The name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def installed_plugins() -> list[PluginName]:
    """All entry points of the environment; imports nothing."""
    return sorted({PluginName.of(each) for each in entry_points(group=GROUP)}, key=str)


def environment_notice(environment: Mapping[str, str], plugins: Collection[PluginName]) -> str:
    """What the environment switches off, in one line; empty if it switches nothing off.

    Nobody should wonder why a plugin is not found: a variable may be set far away, in a profile or a container.
    """
    switches = PluginSwitches.of(environment)
    told = []
    if switches.disabled_outside:
        off = [str(each) for each in plugins if each.is_among(switches.disabled_outside)]
        told.append(f"{DISABLE} switches off {_enumerated(off) or 'nothing'}{_unknown(switches.disabled_outside, plugins)}")
    if switches.only_outside is not None:
        used = [str(each) for each in plugins if each.is_among(switches.only_outside)]
        off = [str(each) for each in plugins if not each.is_among(switches.only_outside) and not _is_core(each)]
        others = f"{len(off)} other{'' if len(off) == 1 else 's'}"
        leaves = f"{ONLY} leaves {_enumerated(used) or 'nothing'} beside psyche-core's own and switches off {others}"
        told.append(f"{leaves}{_unknown(switches.only_outside, plugins)}")

    return "; ".join(told)


def unknown_names(said: Iterable[str], plugins: Collection[PluginName]) -> list[str]:
    """Those that mean no installed plugin, each with the nearest name if there is one."""
    known = sorted(
        {word for each in plugins for word in (each.entry_point, each.entry_point.partition(".")[2], each.distribution)}
    )
    folded = {word.casefold(): word for word in known}
    found = []
    for name in said:
        if not any(each.matches(name) for each in plugins):
            near = difflib.get_close_matches(name.rpartition(":")[2].casefold(), folded, n=1)
            found.append(f"{name}; did you mean {folded[near[0]]}?" if near else name)
    return found


def passed_on(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of this module that are set, for programs that we start."""
    given = os.environ if environment is None else environment
    return {name: given[name] for name in VARIABLES if name in given}


def _is_core(plugin: PluginName) -> bool:
    return plugin.distribution == CORE


def _unknown(said: Iterable[str], plugins: Collection[PluginName]) -> str:
    unknown = unknown_names(said, plugins)
    return f" (not installed: {', '.join(unknown)})" if unknown else ""


def _enumerated(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
