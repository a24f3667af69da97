"""Held-out data of a client beside the run's data: an object, or token files of this machine, whatever the training data is.

The client measures its loss on a `Local` data location at a path (`options={"validation_data": …}`). For that path,
and no other, what is asked for is the held-out data; any other location of that name is the run's, with all its rules. An object
is given under a path that nothing else has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from psyche_core import plugin_faults
from psyche_core.errors import PluginError
from psyche_core.hookspecs import DataContext, DataRegistration
from psyche_core.interfaces import DataProvider
from psyche_core.plugin_objects import ORIGIN, Given, RegistryWithObjects
from psyche_core.plugins import PluginRegistry, validate_settings

_LOCAL = "Local"


class _Table(BaseModel):
    """A location's table as it stands; whose it is, and so its rules, is not known before it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _keep(cls, given: Any) -> dict[str, Any]:
        return {"table": dict(given)}


class RegistryWithHeldOut(RegistryWithObjects):
    """A registry with objects, in which held-out data has a place. Not thread-safe, as any registry.

    place: the path that means held-out data. held_out: the object that lies there, None for the token files that do.
    """

    def __init__(
        self,
        registry: PluginRegistry,
        *,
        objects: Mapping[str, Given],
        expected: Mapping[str, str],
        place: Path,
        held_out: Given | None,
    ) -> None:
        super().__init__(registry, objects=objects, expected=expected)
        self._plain = registry
        self._place = str(place.absolute())
        self._held_out: Any = None
        if held_out is not None:
            called = plugin_faults.label("data", held_out.registration.name, ORIGIN)
            self._held_out = plugin_faults.guarded(held_out.registration, called=called)

    def load(self, kind: str, name: str) -> Any:
        """As `RegistryWithObjects.load`; a `Local` location is told apart by its table. Raises PluginError."""
        if (kind, name) != ("data", _LOCAL):
            return super().load(kind, name)

        wrong: PluginError | None = None
        ours: DataRegistration | None = None
        try:
            ours = super().load(kind, name)
        except PluginError as error:  # the run has other data; that of the held-out place is asked for under this name, too
            wrong = error

        def create(context: DataContext) -> DataProvider:
            table: dict[str, Any] = context.settings.table
            held = table.get("location") == self._place
            if not held and wrong is not None:
                raise wrong
            found: Any = ours if not held else self._held_out or self._plain.load(kind, name)
            settings = {} if held and self._held_out is not None else table
            checked = validate_settings(found, settings, where=f"model.LLM.data_location.{name}")
            made: DataProvider = found.create(replace(context, settings=checked))
            return made

        return DataRegistration(name=name, summary="the run's data or held-out data", settings=_Table, create=create)
