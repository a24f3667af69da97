"""What a plugin should have beside what is checked when it is loaded: described settings, dependencies with bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from pydantic import BaseModel

from psyche_core.plugin_switches import CORE, normalized
from psyche_core.plugins.settings import described_settings


def settings_advice(model: type[BaseModel]) -> Iterator[str]:
    """What a settings model should do and does not, each with a remedy. Raises what pydantic does of one without schema."""
    if model.model_config.get("extra") != "forbid":
        yield 'unknown keys are not refused; add model_config = ConfigDict(extra="forbid")'
    silent = [name for name, field in described_settings(model).items() if not field["description"]]
    if silent:
        yield f"without a description: {', '.join(silent)}; give Field(description=…)"


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a distribution requires.

    Attributes:
        count: number of requirements, without those of extras.
        missing: those that are not installed.
        core: the one of psyche-core, empty if there is none.
    """

    count: int
    missing: tuple[str, ...]
    core: str

    @classmethod
    def of(cls, distribution: str) -> Dependencies:
        """Read the metadata of an installed distribution. Raises importlib.metadata.PackageNotFoundError."""
        named = [each for each in requires(distribution) or () if "extra ==" not in each]
        missing, core = [], ""
        for requirement in named:
            name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
            core = requirement if normalized(name) == CORE else core
            try:
                version(name)
            except PackageNotFoundError:
                if ";" not in requirement:  # a marker may leave it out here
                    missing.append(requirement)
        return cls(len(named), tuple(missing), core)

    @property
    def advice(self) -> str:
        """What should be said of psyche-core; empty if it is."""
        if not self.core:
            return 'it does not name psyche-core; add "psyche-core>=0.1,<0.2" to its dependencies'
        if "<" not in self.core and "==" not in self.core and "~=" not in self.core:
            return f"{self.core} has no upper bound; a later minor version may break it before 1.0"
        return ""
