"""Adds what members report about themselves to the view of each member.

A server sends other events before the event that identifies it as a server.
"""

from __future__ import annotations

from psyche_core.observer.member_view import MemberView
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.events import Event

MEMBER_REPORTS = (
    telemetry.Joined,
    telemetry.ModelLoading,
    telemetry.ModelLoaded,
    telemetry.WaitsForEpoch,
    telemetry.Dropped,
    telemetry.CameBack,
    telemetry.ModelSync,
    telemetry.Leaving,
    telemetry.Problem,
    telemetry.Ended,
)
"""Events about the state of a member."""


def enter_report(member: MemberView, time: float, event: Event) -> None:
    """Add one of MEMBER_REPORTS. time: unix seconds."""
    match event:
        case telemetry.Joined():
            member.enter("joined", time)
        case telemetry.ModelLoading():
            member.enter("loading", time)
        case telemetry.ModelLoaded():
            member.parameters = event.parameters
            member.enter("joined", time)
        case telemetry.WaitsForEpoch():
            member.enter("waiting", time, "for the next epoch")
        case telemetry.Dropped():
            member.enter("dropped", time, event.why)
            member.out_epoch = event.epoch
        case telemetry.CameBack():
            member.out_epoch = None
            member.enter("healthy", time)
        case telemetry.ModelSync():
            member.enter("catching up", time)
        case telemetry.Leaving():
            member.enter("leaving", time)
        case telemetry.Problem():
            member.problems += 1
        case telemetry.Ended() if member.state != "ejected":
            member.enter("finished" if event.success else "failed", time, event.reason)
