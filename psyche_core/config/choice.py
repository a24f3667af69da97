"""A choice in a run's file with its settings, such as an optimizer: an externally tagged enumeration of the reference.

Which choices there are, and what their settings mean, is in `schema` or belongs to plugins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psyche_core.config.sentences import nested_error, shown

PLUGIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
MAX_SETTINGS_DEPTH = 8
"""Maximum nesting of a plugin's settings table. It is below the limit of the wire format, which counts the levels around it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One variant of an externally tagged enumeration: `"Dummy"`, `{Distro = {…}}` or `{Server = "host:port"}`.

    Attributes:
        settings: the variant's table (do not modify it), None if there is none. A string is stored as {"location": "…"}.
    """

    name: str
    settings: dict[str, Any] | None = None

    def __hash__(self) -> int:
        return hash(self.name)  # settings are an unhashable dict; equal choices have equal names, which is enough for a hash

    @classmethod
    def parse(cls, value: Any) -> Choice:
        """Return the choice for its TOML form. Raises ValueError with one sentence."""
        if isinstance(value, Choice):
            return value
        if isinstance(value, str):
            name: Any = value
            settings: Any = None
        elif isinstance(value, Mapping) and len(value) == 1:
            ((name, settings),) = value.items()
        else:
            got = f"{len(value)} ({', '.join(map(str, value))})" if isinstance(value, Mapping) else shown(value)
            message = f"must be a name or a table with exactly one name, got {got}"
            raise ValueError(message)

        if not isinstance(name, str) or not PLUGIN_NAME.fullmatch(name):
            message = f"{shown(name)} must be a name of letters, digits, _ and -, at most 64, starting with a letter"
            raise ValueError(message)

        if isinstance(settings, str):
            settings = {"location": settings}
        if settings is None:
            return cls(name)
        if not isinstance(settings, Mapping):
            raise nested_error([(name, f" = {shown(settings)}: must be a table or a string")])

        _check_plain(settings, at=name, depth=0)
        return cls(name, dict(settings))

    def describe(self) -> str:
        """Return it as text for people: `Hub owner/name 0a1b…`."""
        return " ".join([self.name, *map(str, (self.settings or {}).values())])

    def to_toml(self) -> Any:
        """Return the TOML form. `parse` turns it back into an equal choice."""
        if self.settings is None:
            return self.name
        if self.settings.keys() == {"location"} and isinstance(self.settings["location"], str):
            return {self.name: self.settings["location"]}

        return {self.name: dict(self.settings)}


def _check_plain(value: Any, *, at: str, depth: int) -> None:
    """Raise for values that cannot be sent: dates, floats that are not finite, huge integers, deep nesting."""
    rule = None
    if depth > MAX_SETTINGS_DEPTH:
        rule = f"must not be nested deeper than {MAX_SETTINGS_DEPTH}"
    elif isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            rule = "must have strings as keys"
        else:
            for key, item in value.items():
                _check_plain(item, at=f"{at}.{key}", depth=depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_plain(item, at=f"{at}.{index}", depth=depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        rule = "must be a finite number"
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        rule = "must fit in 64 bits"
    elif not isinstance(value, str | bool | int | float | None):
        rule = "must be a string, number, boolean, list or table"

    if rule is not None:
        raise nested_error([(at, f" = {shown(value)}: {rule}")])
