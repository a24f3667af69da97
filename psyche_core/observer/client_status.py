"""The status of one client, from its own events: collects them, and gives the result as JSON types.

The run's part of it is a `RunView` of this one client; paths to the other members and checkpoints are added here. Text from
others is shortened and made printable. Numbers that are not finite become None.
"""

from __future__ import annotations

import math
from typing import Any

from psyche_core.observer.member_view import MemberView
from psyche_core.observer.run_view import RunView
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.events import Event
from psyche_core.text_safety import printable
from psyche_core.ui.event_text import suspicious_overlaps

FORMAT = 1
"""Version of the document."""

NAME_CHARACTERS = 64
TEXT_CHARACTERS = 300
MAX_PEERS = 4096
"""Most peers shown; an epoch has far fewer members."""

_SOURCE = "client"

Document = dict[str, Any]


class ClientStatus:
    """The status of a client after the events that were added, oldest first.

    run_id, id: if known from elsewhere, for a client whose first events are lost.
    """

    def __init__(self, *, run_id: str = "", id: str = "") -> None:  # noqa: A002  # the events' word
        self._known = (run_id, id)
        self._view = RunView()
        self._paths: telemetry.PeerPaths | None = None
        self._paths_at: float | None = None
        self._saved: tuple[float, telemetry.CheckpointSaved] | None = None
        self._stored: tuple[float, telemetry.CheckpointStored] | None = None
        self._problem: tuple[float, telemetry.Problem] | None = None
        self._overlaps: telemetry.ResultOverlaps | None = None
        self._role = ""

    @property
    def role(self) -> str:
        """The role that the program that wrote the events has reported; empty if it has not."""
        return self._role

    def handle(self, time: float, event: Event) -> None:
        """Add an event. time: unix seconds, from the client's clock."""
        self._view.handle(_SOURCE, time, event)
        match event:
            case telemetry.Started():
                self._role = event.role
                self._view.total_steps = event.total_steps or self._view.total_steps
                self._paths = self._paths_at = None  # they were those of an earlier process
            case telemetry.PeerPaths():
                self._paths, self._paths_at = event, time
            case telemetry.ResultOverlaps():
                self._overlaps = event
            case telemetry.CheckpointSaved():
                self._saved = (time, event)
            case telemetry.CheckpointStored():
                self._stored = (time, event)
            case telemetry.Problem():
                self._problem = (time, event)

    def document(self) -> Document:
        """Return the status as JSON types. Times are unix seconds; rates are per second; unknown values are None."""
        view, phase = self._view, self._view.phase
        member = view.roster.members.get(_SOURCE, MemberView(_SOURCE))
        place = member.spans[-1] if member.spans else None
        return {
            "format": FORMAT,
            "run_id": _name(view.run_id or self._known[0]),
            "id": _name(member.id or self._known[1]),
            "phase": None if phase is None else _name(phase.phase),
            "epoch": None if phase is None else phase.epoch,
            "round": None if phase is None else phase.height,
            "clients": None if phase is None else phase.clients,
            "needed": None if phase is None else phase.needed,
            "step": view.last_step,
            "total_steps": view.total_steps,
            "trained_step": member.step,
            "loss": _number(member.loss),
            "tokens_per_second": round(member.tokens_per_second, 1),
            "place": None if place is None else place.state,
            "place_since": None if place is None else place.since,
            "place_why": "" if place is None else _text(place.why),
            "bytes_sent": member.sent,
            "bytes_received": member.received,
            "peers": [_peer(each) for each in (() if self._paths is None else self._paths.peers[:MAX_PEERS])],
            "over_others": 0 if self._paths is None else self._paths.over_others,
            "peers_at": self._paths_at,
            "alike": None
            if self._overlaps is None
            else [_alike(each, self._overlaps.step) for each in suspicious_overlaps(self._overlaps)[:MAX_PEERS]],
            "checkpoint": None
            if self._saved is None
            else {"time": self._saved[0], "step": self._saved[1].step, "path": _text(self._saved[1].path)},
            "stored": None
            if self._stored is None
            else {"time": self._stored[0], "step": self._stored[1].step, "location": _text(self._stored[1].location)},
            "problem": None
            if self._problem is None
            else {"time": self._problem[0], "level": self._problem[1].level, "text": _text(self._problem[1].message)},
            "newest": view.newest if view.version else None,
        }


def _peer(each: telemetry.PathOfPeer) -> Document:
    return {
        "peer": _name(each.peer),
        "path": _name(each.path),
        "neighbour": each.neighbour,
        "rtt_ms": (_number(each.rtt_ms) or None) if each.path != "none" else None,
        "sent_per_second": each.sent_per_second,
        "received_per_second": each.received_per_second,
    }


def _alike(each: telemetry.OverlapOfResult, step: int) -> Document:
    """Return an overlap of a result so similar to another that people should look at its trainer."""
    return {
        "member": _name(each.member),
        "step": step,
        "score": _number(each.score),
        "like": _name(each.like),
        "like_step": each.like_step,
    }


def _name(text: str) -> str:
    return printable(text, at_most=NAME_CHARACTERS)


def _text(text: str) -> str:
    return printable(text, at_most=TEXT_CHARACTERS)


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 5)
