"""A client's held-out data: an object, or token files on this machine, independent of the run's training data.

The client measures its loss on a `Local` data location at a path (`options={"validation_data": …}`). The registry returns the
held-out data for that path only. A `Local` location with any other path belongs to the run and follows its rules. An object gets
a path that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from psyche_core import plugin_errors
from psyche_core.errors import ConfigError, PluginError
from psyche_core.hookspecs import DataContext, DataRegistration
from psyche_core.interfaces import DataProvider
from psyche_core.plugin_objects import ORIGIN, ObjectPlugin, RegistryWithObjects
from psyche_core.plugins import PluginRegistry, validate_settings
from psyche_core.sdk.arguments.objects import as_plugin

_LOCAL = "Local"


def held_out_plugin(value: object, options: Mapping[str, Any]) -> ObjectPlugin | None:
    """Return a registration for `eval_data`. Raises TypeError, ConfigError."""
    if isinstance(value, str):
        message = f"eval_data= takes objects, got a string; for token files write options={{'validation_data': {value!r}}}"
        raise TypeError(message)
    found = as_plugin("data", value, argument="eval_data")
    if found is not None and "validation_data" in options:
        message = "eval_data= and options={'validation_data': …} both set the held-out data; leave out one of them"
        raise ConfigError(message)
    assert not isinstance(found, str)
    return found


class _Table(BaseModel):
    """A location's table without validation: its path decides whether it is the run's data or held-out data, and so its rules."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _keep(cls, given: Any) -> dict[str, Any]:
        return {"table": dict(given)}


class RegistryWithHeldOut(RegistryWithObjects):
    """A registry with objects that also provides held-out data. Not thread-safe, like every registry.

    Args:
        place: the path that stands for held-out data.
        held_out: the object for this path; None if it is a folder of token files.
    """

    def __init__(
        self,
        registry: PluginRegistry,
        *,
        objects: Mapping[str, ObjectPlugin],
        expected: Mapping[str, str],
        place: Path,
        held_out: ObjectPlugin | None,
    ) -> None:
        super().__init__(registry, objects=objects, expected=expected)
        self._plain = registry
        self._place = str(place.absolute())
        self._held_out: Any = None
        self._called = registry.label("data", _LOCAL)
        if held_out is not None:
            self._called = plugin_errors.label("data", held_out.registration.name, ORIGIN)
            self._held_out = plugin_errors.guarded(held_out.registration, called=self._called)

    def label_of_location(self, name: str, settings: Mapping[str, Any] | None) -> str:
        """The name of a plugin or object in messages; the path of a `Local` location decides whether it is held-out data."""
        return self._called if name == _LOCAL and self._is_held(settings) else super().label_of_location(name, settings)

    def _is_held(self, table: Mapping[str, Any] | None) -> bool:
        return table is not None and table.get("location") == self._place

    def load(self, kind: str, name: str) -> Any:
        """Like `RegistryWithObjects.load`; the path of a `Local` location decides whether it is held-out data.

        Raises PluginError.
        """
        if (kind, name) != ("data", _LOCAL):
            return super().load(kind, name)

        wrong: PluginError | None = None
        ours: DataRegistration | None = None
        try:
            ours = super().load(kind, name)
        except PluginError as error:  # the run has other data; held-out data is requested under this name, too
            wrong = error

        def create(context: DataContext) -> DataProvider:
            table: dict[str, Any] = context.settings.table
            held = self._is_held(table)
            if not held and wrong is not None:
                raise wrong
            found: Any = ours if not held else self._held_out or self._plain.load(kind, name)
            settings = {} if held and self._held_out is not None else table
            checked = validate_settings(found, settings, where=f"model.LLM.data_location.{name}")
            made: DataProvider = found.create(replace(context, settings=checked))
            return made

        return DataRegistration(name=name, summary="the run's data or held-out data", settings=_Table, create=create)


def registry_with(
    registry: PluginRegistry,
    objects: Mapping[str, ObjectPlugin],
    expected: Mapping[str, str],
    *,
    place: Path | None,
    held_out: ObjectPlugin | None,
) -> RegistryWithObjects:
    """Return the registry of a client that was given objects, and perhaps held-out data at a path."""
    if place is None:
        return RegistryWithObjects(registry, objects=objects, expected=expected)
    return RegistryWithHeldOut(registry, objects=objects, expected=expected, place=place, held_out=held_out)
