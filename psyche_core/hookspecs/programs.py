"""What a plugin adds around a run: registrations of trackers, which keep its figures, and of commands of `psyche`.

The hooks are in the package's `__init__`, from which all of these names are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from psyche_core.interfaces import (
    TrackedRun,
    Tracker,
)

if TYPE_CHECKING:
    import click


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerContext:
    """The arguments for making a tracker. settings: validated by the registration's `settings`."""

    run: TrackedRun
    settings: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerRegistration:
    """A tracker.

    Attributes:
        create: begins to keep a run; called in the tracker's own thread once the run is known, may block.
        settings: the tracker's own options. When a client uses this tracker, they appear as `--name` and `PSYCHE_NAME` beside the
            client's own options, as those of a backend do. Names begin with the tracker's.
        check: raises UserError for settings that cannot work on this machine (a missing key, a folder that cannot be written);
            called before the run is joined, so that nobody trains for a week and finds nothing tracked. It must return quickly
            and send nothing.
    """

    name: str
    summary: str
    create: Callable[[TrackerContext], Tracker]
    settings: type[BaseModel] | None = None
    check: Callable[[Any], None] | None = None
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRegistration:
    """A command of the `psyche` program.

    Attributes:
        name: the word behind `psyche`.
        load: imports and returns the click command.
    """

    name: str
    summary: str
    load: Callable[[], click.Command]
    requires: Mapping[str, str] = field(default_factory=dict)
