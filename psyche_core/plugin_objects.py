"""Plugins given as objects: registrations that a program makes itself, instead of those that a run's configuration names.

An object takes part as a plugin does, through a registration and its factory, so that users of the registry need no second way.
It replaces every name of its kind: a run's configuration may call it anything. If a program expects a name, it is compared with
the run's, and a different one is refused in one sentence. Objects override installed plugins only in the registry they were given
to; nothing is global.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from psyche_core import plugin_errors
from psyche_core.errors import PluginError
from psyche_core.hookspecs import KINDS, Registration
from psyche_core.plugins import PluginRegistry

ORIGIN = "given in code"
"""Stands for the distribution of an object in messages."""

IN_CODE = "InCode"
"""Name of a model or data location that no plugin brings: every client gives an object for it."""

_NOBODY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ObjectPlugin:
    """An object's registration. module: name of the module with its code, to attribute exceptions to it."""

    registration: Registration
    module: str


class RegistryWithObjects(PluginRegistry):
    """The plugins of a registry, with objects in place of some kinds. Not thread-safe, like every registry.

    objects: by kind; `load` returns this object for every name of that kind. expected: by kind, the only name that may be
    requested. Raises ValueError for a kind that does not exist.
    """

    def __init__(
        self, registry: PluginRegistry, *, objects: Mapping[str, ObjectPlugin], expected: Mapping[str, str] = _NOBODY
    ) -> None:
        super().__init__(registry.list())
        unknown = sorted({*objects, *expected} - {*KINDS})
        if unknown:
            message = f"kind must be one of {', '.join(KINDS)}, got {unknown[0]!r}"
            raise ValueError(message)

        self._expected = dict(expected)
        self._given = dict(objects)
        self._objects = {
            kind: plugin_errors.guarded(given.registration, called=plugin_errors.label(kind, given.registration.name, ORIGIN))
            for kind, given in objects.items()
        }

    def load(self, kind: str, name: str) -> Any:
        """The object of this kind, under the requested name; otherwise like `PluginRegistry.load`.

        Raises PluginError, also for a name other than the expected one.
        """
        given = self._objects.get(kind)
        if given is not None:
            return replace(given, name=name)

        expected = self._expected.get(kind)
        if expected is not None and name != expected:
            message = (
                f"the run has {name} as its {kind}, but this program expects {expected}; leave out {kind}= to accept the run's "
                "choice, or join another run"
            )
            raise PluginError(message)
        if name == IN_CODE:
            message = f"this run names no {kind}, so every member must provide its own; give {kind}=…"
            raise PluginError(message)
        return super().load(kind, name)

    def label(self, kind: str, name: str) -> str:
        """The name of a plugin or object in messages."""
        given = self._objects.get(kind)
        return super().label(kind, name) if given is None else plugin_errors.label(kind, given.name, ORIGIN)

    def places(self) -> Iterator[plugin_errors.Place]:
        """Kind, name, origin and module of each object, then of each plugin."""
        for kind, given in self._given.items():
            yield kind, given.registration.name, ORIGIN, given.module
        yield from super().places()
