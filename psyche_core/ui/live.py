"""The live panel of a run: phase, progress, loss curve, one row per client. Plain lines if there is no terminal.

Both displays read a `RunMetrics`, and `show` is called after each event. They draw at most a few times per second (panel) or once
every few seconds (lines). They use no threads, so a display never runs longer than its program.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from psyche_core.telemetry import events
from psyche_core.text_safety import printable
from psyche_core.ui.client_metrics import ClientMetrics
from psyche_core.ui.event_text import clients_text, describe
from psyche_core.ui.formatting import bytes_text, count_text, duration_text, sparkline
from psyche_core.ui.run_metrics import RunMetrics
from psyche_core.ui.told_checks import ToldChecks

PANEL_SECONDS = 0.25
LINE_SECONDS = 5.0
_FINISHED = "Finished"
_COMPLAINTS = (
    events.Problem,
    events.MemberExited,
    events.ReplicasDiffer,
    events.WentBack,
    events.ModelLost,
    events.ModelContested,
    events.StateIsOlder,
    events.StatementVoided,
    events.Dropped,
)
_NEWS = (events.RelayStarted, events.WaitsForEpoch, events.CameBack, events.MemberWithdrew, events.Mended, events.Leaving)
_AT_ONCE = (events.Leaving, events.Ended)
SHOWN_VIOLATIONS = 5
"""Newest broken guarantees in the panel: it must fit the terminal."""

_WORTH_A_LINE = (
    events.TokenFiles,
    events.Started,
    events.Stopping,
    events.Resumed,
    events.EpochDigest,
    events.EpochSigned,
    events.Validated,
    events.CheckpointSaved,
    events.CheckpointStored,
    events.JournalPublished,
    events.PointsCounted,
    events.RewardPaid,
    *_COMPLAINTS,
    *_NEWS,
    events.Ended,
)


class Display(ABC):
    """Shows a run's metrics while it is entered.

    clock: unix seconds, for how often it draws. now: the run's own time in unix seconds, if that differs (in a replay).
    """

    def __init__(
        self,
        metrics: RunMetrics,
        console: Console,
        *,
        clock: Callable[[], float] = time.time,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.metrics = metrics
        self.console = console
        self._clock = clock
        self._now = now or clock
        self._shown = float("-inf")
        self._checks = ToldChecks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @abstractmethod
    def show(self, source: str, event: events.Event | None = None) -> None:
        """Draw if it is due. event: the event of `source` that was just added to the metrics; None if only time has passed."""

    def _failed_check(self, event: events.Event | None) -> bool:
        """Return whether the event is a check of a share that failed and is not known yet. Most checks pass, in nearly every
        round.
        """
        new = event is not None and self._checks.is_new(event)
        return new and isinstance(event, events.ShareChecked) and event.outcome != "passed"

    def _due(self, seconds: float) -> bool:
        now = self._clock()
        if now - self._shown < seconds:
            return False

        self._shown = now
        return True


class SilentDisplay(Display):
    """Shows nothing."""

    def show(self, source: str, event: events.Event | None = None) -> None:
        """Do nothing."""


class LiveDisplay(Display):
    """A panel that is redrawn in place."""

    def __enter__(self) -> Self:
        self._live = Live(self._draw(), console=self.console, auto_refresh=False)
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.update(self._draw(), refresh=True)
        self._live.stop()

    def show(self, source: str, event: events.Event | None = None) -> None:
        """Redraw, at most a few times per second. Problems and reasons for waiting are printed above the panel and stay there."""
        failed_check = self._failed_check(event)
        if event is not None and (isinstance(event, (*_COMPLAINTS, *_NEWS, events.TokenFiles)) or failed_check):
            style = "yellow" if isinstance(event, _COMPLAINTS) or failed_check else ""
            self._live.console.print(Text(f"{source}: {describe(event)}", style=style))
        if self._due(PANEL_SECONDS) or isinstance(event, _AT_ONCE):
            self._live.update(self._draw(), refresh=True)

    def _draw(self) -> RenderableType:
        return dashboard(self.metrics, now=self._now(), width=self.console.width)


class LineDisplay(Display):
    """Prints a line of figures every few seconds, and one for each important event."""

    def show(self, source: str, event: events.Event | None = None) -> None:
        """Write the event if it is important, and the figures if they are due."""
        failed_check = self._failed_check(event)
        if event is not None and (
            isinstance(event, _WORTH_A_LINE)
            or (isinstance(event, events.ModelSync) and event.pieces_done in (0, event.pieces_total))
            or failed_check
        ):
            self._write(f"{source}: {describe(event)}")
        if isinstance(event, events.StepApplied) and self.metrics.requeued and self.metrics.lost_shares.is_due():
            self._write(_lost_shares(self.metrics))
        if self.metrics.phase is not None and self._due(LINE_SECONDS):
            self._write(figures_line(self.metrics, now=self._now()))

    def _write(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)


def dashboard(metrics: RunMetrics, *, now: float, width: int = 100) -> RenderableType:
    """Return the panel as a rich renderable. now: unix seconds."""
    parts: list[RenderableType] = [_headline(metrics), _progress(metrics, now)]
    losses = [loss for _, loss in metrics.settled_losses]
    if losses:
        curve = sparkline(losses, max(10, width - 40))
        validation = f"  validation {metrics.validation[-1][1]:.3f}" if metrics.validation else ""
        parts.append(Text.assemble(("loss ", "bold"), f"{losses[-1]:.3f} ", (curve, "cyan"), validation))
    parts.append(_clients_table(metrics))
    if metrics.requeued:
        parts.append(Text(_lost_shares(metrics), style="yellow"))
    parts.extend(_violations(metrics))
    return Panel(Group(*parts), title=Text(f"psyche · {printable(metrics.run_id, at_most=64)}"), title_align="left")


def figures_line(metrics: RunMetrics, *, now: float) -> str:
    """Return the panel's figures in one line."""
    assert metrics.phase is not None, "called before the first phase"
    clients = list(metrics.clients.values())
    mean = metrics.settled_losses
    figures = [f"epoch {metrics.phase.epoch} {printable(metrics.phase.phase)}", f"step {_step_text(metrics)}"]
    if mean:
        figures.append(f"loss {mean[-1][1]:.3f}")
    figures += [
        f"{count_text(sum(client.tokens_per_second for client in clients))} tokens/s",
        f"sent {bytes_text(sum(client.network.bytes_sent for client in clients))}",
        f"received {bytes_text(sum(client.network.bytes_received for client in clients))}",
        _clients(metrics.phase),
    ]
    if metrics.kills:
        figures.append(_faults(metrics))
    remaining = metrics.remaining_seconds(now)
    if remaining is not None:
        figures.append(f"{duration_text(remaining)} left")
    return " · ".join(figures)


def _lost_shares(metrics: RunMetrics) -> str:
    return printable(metrics.lost_shares.sentence(members=len(metrics.clients)) or "")


def _violations(metrics: RunMetrics) -> list[Text]:
    """Return the newest broken guarantees, and how many there were before."""
    earlier = len(metrics.violations) - SHOWN_VIOLATIONS
    lines = [Text(printable(violation), style="bold red") for violation in metrics.violations[-SHOWN_VIOLATIONS:]]
    return [Text(f"{earlier} earlier complaints are not shown", style="red"), *lines] if earlier > 0 else lines


def _headline(metrics: RunMetrics) -> Text:
    if metrics.phase is None:
        return _headline_without_phases(metrics)

    phase = metrics.phase
    return Text.assemble(
        _ending(metrics),
        (printable(phase.phase), "bold green"),
        f"  epoch {phase.epoch}  step {_step_text(metrics)}  {_clients(phase)}",
        f"  {_faults(metrics)}" if metrics.kills else "",
    )


def _headline_without_phases(metrics: RunMetrics) -> Text:
    """Return the first line before a coordinator has said anything, or where there is none, as in `psyche train-local`."""
    if metrics.train_started is None:
        return Text.assemble(_ending(metrics), ("starting …", "dim"))

    word = "ended" if metrics.all_ended else "training"
    return Text.assemble((word, "bold green"), f"  step {_step_text(metrics)}")


def _ending(metrics: RunMetrics) -> tuple[str, str]:
    """Return that the client leaves or has ended, if so, and the style. The phase beside it is then the last that was seen."""
    if metrics.all_ended and metrics.server_ended is None and (metrics.phase is None or metrics.phase.phase != _FINISHED):
        return "ended in ", "bold"
    if not metrics.leaving:
        return "", ""

    who = "leaving" if len(metrics.clients) == 1 else f"{printable(', '.join(metrics.leaving))} leaving"
    return f"{who} · ", "bold yellow"


def _clients(phase: events.PhaseChanged) -> str:
    """Return how many clients there are, and how many the run needs if there are too few."""
    return clients_text(phase.clients, needed=phase.needed)


def _faults(metrics: RunMetrics) -> str:
    return f"{metrics.kills} kills, {metrics.resyncs} resyncs"


def _step_text(metrics: RunMetrics) -> str:
    return f"{metrics.run_step}/{metrics.total_steps}" if metrics.total_steps else str(metrics.run_step)


def _progress(metrics: RunMetrics, now: float) -> RenderableType:
    line = Table.grid(padding=(0, 1), expand=True)
    line.add_column(ratio=1)
    line.add_column(justify="right", no_wrap=True)
    remaining = metrics.remaining_seconds(now)
    line.add_row(
        ProgressBar(total=metrics.total_steps, completed=metrics.run_step, animation_time=now, pulse=not metrics.total_steps),
        "" if remaining is None else f"{duration_text(remaining)} left",
    )
    return line


def _clients_table(metrics: RunMetrics) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    for column in ("client", "id", "step", "loss", "tokens/s", "sent", "received", "peers", "digest"):
        table.add_column(column, justify="left" if column in ("client", "id", "digest") else "right", no_wrap=True)
    for client in metrics.clients.values():
        step, loss = client.losses[-1] if client.losses else (None, None)
        table.add_row(
            Text(printable(client.name)),
            Text(printable(client.id[:8])),
            "" if step is None else str(step),
            "" if loss is None else f"{loss:.3f}",
            count_text(client.tokens_per_second),
            bytes_text(client.network.bytes_sent),
            bytes_text(client.network.bytes_received),
            _peers(client),
            _digest(metrics, client),
        )
    return table


def _peers(client: ClientMetrics) -> str:
    """Return the number of connected peers, and what has to be known about them."""
    more = [
        *([f"{client.relayed} relayed"] if client.relayed else []),
        *([f"{client.over_others} over others"] if client.over_others else []),
    ]
    return f"{client.network.peers} ({', '.join(more)})" if more else str(client.network.peers)


def _digest(metrics: RunMetrics, client: ClientMetrics) -> Text:
    """Return the newest epoch's digest, green if all clients that reported one have the same."""
    if not client.digests:
        return Text("")

    epoch = max(client.digests)
    given = {other.digests[epoch] for other in metrics.clients.values() if epoch in other.digests}
    sign, style = ("=", "green") if len(given) == 1 else ("≠", "red")
    return Text(f"{epoch}: {printable(client.digests[epoch][:8])} {sign}", style=style)
