"""The tab Network: how each member reaches each other member, round-trip times, rates, and payloads."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from psyche_core.telemetry.events import PathOfPeer
from psyche_core.text_safety import printable
from psyche_core.tui.panes import facts
from psyche_core.tui.panes.pane import Pane, Row, Table
from psyche_core.tui.watched import Watched, in_order
from psyche_core.ui.formatting import bytes_text, duration_text

MAX_ROWS = 2000
_PATHS = {"direct": "direct", "relayed": "relayed", "none": "not reached"}
_STYLES = {"direct": "green", "relayed": "yellow", "none": "bold red"}


class NetworkPane(Pane):
    """Shows the peers of this member, or one row for each pair if there are several members."""

    def compose(self) -> ComposeResult:
        """Make the totals, the payloads, and the table of peers."""
        yield Static(id="totals")
        yield Table(id="peers")

    def show(self, watched: Watched, now: float) -> None:
        """Show the present content."""
        self.query_one("#totals", Static).update(totals(watched, now))
        several = len(watched.paths) > 1
        columns = (*(("member",) if several else ()), "peer", "path", ">round trip", ">sent", ">received")
        rows: list[Row] = []
        for source, (_, told) in sorted(watched.paths.items(), key=lambda item: in_order(item[0])):
            shown = told.peers[: MAX_ROWS - len(rows)]
            rows += [(f"{source}/{peer.peer}", [*([source] if several else []), *_cells(peer)]) for peer in shown]
        self.query_one("#peers", Table).fill(columns, list(dict(rows).items()))


def totals(watched: Watched, now: float) -> Text:
    """Return bytes and payloads in two lines, then how many peers are reached in which way."""
    members = list(watched.view.roster)
    sent, received = sum(member.sent for member in members), sum(member.received for member in members)
    text = Text(f"sent {bytes_text(sent)}, received {bytes_text(received)}")
    out, into = facts.traffic_rates(watched)
    if out is not None and into is not None:
        text.append(f"; now {facts.rate_text(out)} out, {facts.rate_text(into)} in")
    sizes = [member.payload_bytes for member in members if member.payload_bytes is not None]
    if sizes:
        text.append(f"\nthe newest result has {bytes_text(sum(sizes) / len(sizes))}")
        if watched.applied is not None:
            text.append(f"; of step {watched.applied.step} {watched.applied.accepted} of {watched.applied.trained} were applied")
    counts: dict[str, int] = {}
    for _, told in watched.paths.values():
        for peer in told.peers:
            counts[peer.path] = counts.get(peer.path, 0) + 1
    over_others = sum(told.over_others for _, told in watched.paths.values())
    if counts or over_others:
        newest = max(moment for moment, _ in watched.paths.values())
        words = ", ".join(
            [
                *(f"{counts[path]} {word}" for path, word in _PATHS.items() if path in counts),
                *([f"{over_others} over others"] if over_others else []),  # these are no neighbours, see PeerPaths
            ]
        )
        text.append(f"\npeers: {words} ({duration_text(max(0.0, now - newest))} ago)")
    else:
        text.append("\nnothing told of the paths to peers yet", style="dim")
    return text


def _cells(peer: PathOfPeer) -> list[str | Text]:
    path = Text(_PATHS.get(peer.path, printable(peer.path, at_most=12)), style=_STYLES.get(peer.path, ""))
    trip = f"{peer.rtt_ms:.0f} ms" if peer.rtt_ms > 0 and peer.path != "none" else ""
    name = printable(peer.peer, at_most=16)
    return [name, path, trip, facts.rate_text(peer.sent_per_second), facts.rate_text(peer.received_per_second)]
