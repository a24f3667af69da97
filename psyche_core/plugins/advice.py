"""What a plugin should have beside what is checked when it is loaded: described settings, dependencies with bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

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


def _fits(requirement: str, found: str) -> bool:
    """Whether a version is one that a requirement allows; unknown counts as yes."""
    if find_spec("packaging") is None:  # it comes with pytest, which the conformance tests need
        return True
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(requirement)
    except InvalidRequirement:
        return True
    applies = wanted.marker is None or wanted.marker.evaluate()
    return not applies or wanted.specifier.contains(found, prereleases=True)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a distribution requires.

    Attributes:
        count: number of requirements, without those of extras.
        missing: those that are not installed.
        others: those that are installed in a version that does not fit, which each says (`foo>=2, and 1.0 is installed`).
        core: the one of psyche-core, empty if there is none.
    """

    count: int
    missing: tuple[str, ...]
    others: tuple[str, ...]
    core: str

    @classmethod
    def of(cls, distribution: str) -> Dependencies:
        """Read the metadata of an installed distribution. Raises importlib.metadata.PackageNotFoundError."""
        named = [each for each in requires(distribution) or () if "extra ==" not in each]
        missing, others, core = [], [], ""
        for requirement in named:
            name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
            core = requirement if normalized(name) == CORE else core
            try:
                found = version(name)
                if not _fits(requirement, found):
                    others.append(f"{requirement.partition(';')[0].strip()}, and {found} is installed")
            except PackageNotFoundError:
                if ";" not in requirement:  # a marker may leave it out here
                    missing.append(requirement)
        return cls(len(named), tuple(missing), tuple(others), core)

    @property
    def advice(self) -> str:
        """What should be said of psyche-core; empty if it is."""
        if not self.core:
            return 'it does not name psyche-core; add "psyche-core>=0.1,<0.2" to its dependencies'
        if "<" not in self.core and "==" not in self.core and "~=" not in self.core:
            return f"{self.core} has no upper bound; a later minor version may break it before 1.0"
        return ""
