"""The state that a server starts with: the given one, or the saved one of the same run.

A saved state is resumed only with the configuration it was made with. The checkpoint reference may differ, because the run
changes it itself, and so may the first epoch's own settings (`opening`) until that epoch has begun. If this server also serves
the data, the data's location is published with the server's key, so that clients that know the coordinator can verify the data
server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from psyche_backend_tcp.server.data_key import with_data_key
from psyche_backend_tcp.server.state_store import Saved
from psyche_core.config.run_config import CoordinatorConfig, to_plain
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import ConfigError

SHOWN_DIFFERENCES = 5
_MOVES_BY_ITSELF = ("model.LLM.checkpoint",)


@dataclass(frozen=True, slots=True)
class InitialState:
    """A state to start with. opening: the configuration from the first round on. addresses: of members. resumed: it was saved."""

    state: CoordinatorState
    opening: CoordinatorConfig | None = None
    addresses: Mapping[bytes, bytes] = field(default_factory=dict)
    resumed: bool = False


def begin(
    given: CoordinatorState, opening: CoordinatorConfig | None, saved: Saved | None, *, path: Path | None, data_key: bytes | None
) -> InitialState:
    """Return the state to start with.

    given, opening: from the run's file; saved: the state on disk, in `path`; data_key: our key if we serve the run's data.
    Raises ConfigError when the saved state has another configuration.
    """
    given = _pinned(given, data_key)
    if saved is None:
        return InitialState(given, opening)

    state = _pinned(saved.update.state, data_key)
    theirs = replace(state, config=saved.opening or state.config)
    ours = replace(given, config=opening or given.config)
    differences = list(_differences(theirs, ours))
    if differences:
        shown = "; ".join(differences[:SHOWN_DIFFERENCES]) + ("; …" if len(differences) > SHOWN_DIFFERENCES else "")
        message = (
            f"the saved state {path} belongs to another configuration: {shown}. Restore the run's file to go on at step "
            f"{state.progress.step}, or move the saved state away to start the run anew"
        )
        raise ConfigError(message)

    if saved.opening is None:
        opening = None
    else:
        state, opening = replace(state, config=given.config), opening
    return InitialState(state, opening, saved.update.addresses, resumed=True)


def _pinned(state: CoordinatorState, key: bytes | None) -> CoordinatorState:
    return state if key is None else replace(state, model=with_data_key(state.model, key))


def _differences(saved: CoordinatorState, given: CoordinatorState) -> Iterator[str]:
    if saved.run_id != given.run_id:
        yield f"run_id is {saved.run_id!r} there and {given.run_id!r} in the run's file"
    for table in ("config", "model"):
        old, new = to_plain(getattr(saved, table)), to_plain(getattr(given, table))
        yield from _unequal(old, new, at=table)


def _unequal(old: Any, new: Any, *, at: str) -> Iterator[str]:
    if at in _MOVES_BY_ITSELF or old == new:
        return

    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _unequal(old.get(key), new.get(key), at=f"{at}.{key}")
    else:
        yield f"{at} is {_short(old)} there and {_short(new)} in the run's file"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
