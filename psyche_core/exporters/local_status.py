"""The status of a program as JSON, which `metrics_server` serves beside the metrics for Prometheus. Pure: no I/O, no clock.

There are two objects: the program's status, and its health (whether it works, and why it ended). The status has the same fields
as that of the Rust client. A field for which this program has no value is null. The Rust client counts failed downloads and
those it gave up apart; here a download fails only after several members were asked, so both fields (`downloads_failed`,
`downloads_perma_failed`) have the same count.
"""

from __future__ import annotations

from typing import Any

from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.events import Event

STALE_SECONDS = 60.0
"""A client tells the totals of its network every second; without any for this long it is not well."""

_NOT_HERE = (
    "apply_message_ignored",
    "downloads_retry",
    "finishes_received_current_round",
    "finishes_received_previous_round",
    "result_announcements_received_current_round",
    "result_announcements_received_previous_round",
)


class LocalStatus:
    """Collects what the object says."""

    def __init__(self) -> None:
        self._phase: telemetry.PhaseChanged | None = None
        self._paths: tuple[telemetry.PathOfPeer, ...] = ()
        self._totals: telemetry.NetworkTotals | None = None
        self._totals_at = 0.0
        self._bandwidth = 0.0
        self._witnesses = 0
        self._trained_epoch: int | None = None
        self._witnessed: tuple[int, int] | None = None
        self._before_round = self._before_previous = 0
        self._ended: telemetry.Ended | None = None

    def handle(self, event: Event, *, now: float) -> None:
        """Enter an event of this program. now: seconds of a steady clock."""
        match event:
            case telemetry.PhaseChanged():
                if self._phase is None or (event.epoch, event.height) != (self._phase.epoch, self._phase.height):
                    self._before_previous, self._before_round = self._before_round, self._downloads
                self._phase = event
            case telemetry.PeerPaths():
                self._paths = event.peers
            case telemetry.NetworkTotals():
                if self._totals is not None and now > self._totals_at:
                    received = event.bytes_received - self._totals.bytes_received
                    self._bandwidth = max(0.0, received / (now - self._totals_at))
                self._totals, self._totals_at = event, now
            case telemetry.WitnessSent():
                self._witnesses += 1
                self._witnessed = event.epoch, event.height
            case telemetry.StepTrained():
                self._trained_epoch = event.epoch
            case telemetry.Ended():
                self._ended = event

    def document(self) -> dict[str, Any]:
        """The object. bandwidth: bytes received in the last second; times as seconds and nanoseconds."""
        totals = self._totals or telemetry.NetworkTotals(0, 0, 0)
        reached = [peer for peer in self._paths if peer.path != "none"]
        return {
            "connected_peers": [{"endpoint_id": peer.peer, "selected_path": _path(peer)} for peer in reached],
            "bandwidth": round(self._bandwidth, 1),
            "round_step": 0 if self._phase is None else self._phase.step,
            "role": self._role(),
            "broadcasts_seen": totals.messages_received,
            "apply_message_success": totals.messages_received,
            "apply_message_failure": totals.messages_refused,
            "results_downloaded_current_round": totals.downloads_finished - self._before_round,
            "results_downloaded_previous_round": self._before_round - self._before_previous,
            "witnesses_sent": self._witnesses,
            "gossip_neighbors": [peer.peer for peer in reached],
            "downloads_started": totals.downloads_started,
            "downloads_finished": totals.downloads_finished,
            "downloads_failed": totals.downloads_failed,
            "downloads_perma_failed": totals.downloads_failed,
            "downloads_bytes": totals.download_bytes,
            **dict.fromkeys(_NOT_HERE),
        }

    def health(self, *, now: float) -> tuple[bool, dict[str, Any]]:
        """Whether the program is well, and why as JSON types. A client whose event loop stands still is not."""
        silent = None if self._totals is None else now - self._totals_at
        well = (silent is None or silent < STALE_SECONDS) if self._ended is None else self._ended.success
        return well, {
            "status": "ok" if well else ("stalled" if self._ended is None else "failed"),
            "phase": None if self._phase is None else self._phase.phase,
            "ended": None if self._ended is None else self._ended.reason,
            "seconds_since_totals": None if silent is None else round(silent, 1),
        }

    @property
    def _downloads(self) -> int:
        return 0 if self._totals is None else self._totals.downloads_finished

    def _role(self) -> str:
        """`Witness` if we witnessed this round or the one before, else `Trainer` if we train in this epoch."""
        phase = self._phase
        if phase is None or phase.height is None:
            return "NotInRound"
        if self._witnessed is not None and self._witnessed[0] == phase.epoch and self._witnessed[1] >= phase.height - 1:
            return "Witness"
        return "Trainer" if self._trained_epoch == phase.epoch else "NotInRound"


def _path(peer: telemetry.PathOfPeer) -> dict[str, Any]:
    nanoseconds = round(peer.rtt_ms * 1e6)
    return {"addr": peer.path, "rtt": {"secs": nanoseconds // 10**9, "nanos": nanoseconds % 10**9}}
