"""The tab Run: the loss curve, and the run's figures."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from psyche_core.text_safety import printable
from psyche_core.tui.panes import facts
from psyche_core.tui.panes.chart import MARK, loss_chart
from psyche_core.tui.panes.pane import Pane
from psyche_core.tui.watched import Watched
from psyche_core.ui.formatting import bytes_text, count_text, duration_text

FACT_ROWS = 10
MIN_CHART, MAX_CHART = 6, 24
BAR = 20
WIDE = 110


class RunPane(Pane):
    """Shows loss, phase, step, epoch, speed, learning rate and efficiency."""

    def compose(self) -> ComposeResult:
        """Make a line of losses, the curve, and a table of figures."""
        yield Static(id="losses")
        yield Static(id="curve")
        yield Static(id="figures")

    def show(self, watched: Watched, now: float) -> None:
        """Show the present content."""
        width = max(20, self.content_size.width)
        height = max(MIN_CHART, min(MAX_CHART, self.content_size.height - FACT_ROWS - 1))  # 1: the line of losses
        self.query_one("#losses", Static).update(losses_line(watched))
        self.query_one("#curve", Static).update(loss_chart(watched.curve, watched.validation, width=width, height=height))
        self.query_one("#figures", Static).update(figures(watched, now, width=width))


def losses_line(watched: Watched) -> Text:
    """Return the newest losses in one line."""
    loss = watched.last_loss
    reported = "" if watched.view.trained or loss is None else " (as witnesses report it)"
    text = Text.assemble(("loss ", "bold"), facts.number(loss), reported, no_wrap=True, overflow="ellipsis")
    if loss is not None and loss < 700:
        text.append(f"   perplexity {math.exp(loss):.4g}")
    validation = watched.view.newest_validation
    if validation is not None:
        text.append("   validation ", style="bold")
        text.append(f"{validation[1]:.3f} at step {validation[0]} ")
        text.append(MARK, style="bold yellow")
    return text


def figures(watched: Watched, now: float, *, width: int) -> Table:
    """Return a table of all figures but the loss, one in each line."""
    view, state, me = watched.view, watched.state, watched.me
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=10)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(20, width - 14))
    table.add_row("phase", phase_line(watched, now))
    left = facts.remaining(watched, now)
    step = Text(facts.steps_text(watched))
    if view.total_steps:
        part = view.last_step / view.total_steps
        step.append("  ").append(facts.bar(part, BAR)).append(f"  {part:.0%}")
    if left is not None:
        step.append(f", about {duration_text(left)} left")
    table.add_row("step", step)
    table.add_row("epoch", _epoch(watched))
    speed = count_text(watched.tokens_per_second)
    mine = f"{count_text(me.tokens_per_second)} tokens/s here, " if me is not None and len(view.roster) > 1 else ""
    several = "" if me is None or len(view.roster) > 1 else " here"
    table.add_row(
        "speed",
        f"{mine}{speed} tokens/s{' by all' if len(view.roster) > 1 else several}; {count_text(view.tokens)} tokens so far",
    )
    rate = facts.rate_now(watched)
    efficiency = watched.efficiency
    if efficiency is not None:
        table.add_row("efficiency", f"{efficiency:.0%} of the time goes into training")
    if rate is not None:
        schedule = "" if state is None else f", {state.model.LLM.lr_schedule.name} schedule"
        table.add_row("rate", f"learning rate {facts.number(rate, '.4g')}{schedule}")
    sent = sum(member.sent for member in view.roster)
    received = sum(member.received for member in view.roster)
    if sent or received:
        table.add_row("traffic", f"sent {bytes_text(sent)}, received {bytes_text(received)}{_result(watched)}")
    table.add_row("replicas", _replicas(watched))
    table.add_row("here", _here(watched, now))
    return table


def phase_line(watched: Watched, now: float) -> Text:
    """Return the phase and its time."""
    name = facts.phase_name(watched)
    if not name:
        return Text("nothing heard of the run yet", style="dim")

    passed, longest = facts.phase_clock(watched, now)
    text = Text.assemble((name, "bold green"), f"  {duration_text(passed)}")
    if longest:
        text.append(f" of at most {duration_text(longest)}  ").append(facts.bar(passed / longest, BAR))
    meaning = facts.PHASES.get(name)
    if meaning is not None and longest is None:
        text.append(f"  {meaning}", style="dim")
    return text


def _epoch(watched: Watched) -> str:
    phase = watched.view.phase
    if phase is None:
        return "–"

    height = "" if phase.height is None else f", round {phase.height}"
    if phase.needed is not None and phase.clients < phase.needed:
        return f"{phase.epoch}{height}; {phase.clients} of {phase.needed} members that are needed to start"
    return f"{phase.epoch}{height}; {phase.clients} {'member' if phase.clients == 1 else 'members'}"


def _result(watched: Watched) -> str:
    sizes = [member.payload_bytes for member in watched.view.roster if member.payload_bytes is not None]
    return "" if not sizes else f"; a result is {bytes_text(sum(sizes) / len(sizes))}"


def _replicas(watched: Watched) -> Text:
    if watched.view.differ:
        return Text("DIFFERENT: members have not the same model", style="bold red")

    ended = [epoch for epoch in watched.view.epochs.values() if epoch.digests]
    if not ended:
        return Text("compared at each epoch's end", style="dim")

    newest = max(ended, key=lambda epoch: epoch.number)
    digests = newest.digests or {}
    if len(digests) > 1:
        return Text(f"DIFFERENT at the end of epoch {newest.number}", style="bold red")

    count = sum(digests.values())
    digest = printable(next(iter(digests))[:12], at_most=12)
    equal = f", equal at {count} members" if count > 1 else ""
    signed = ", signed by a quorum" if newest.signed else ""
    return Text(f"epoch {newest.number}: {digest}…{equal}{signed}", style="green")


def _here(watched: Watched, now: float) -> Text:
    me, ended = watched.me, watched.view.ended
    if ended is not None:
        return Text(printable(ended.reason), style="green" if ended.success else "bold red")
    if me is not None and me.spans:
        place = me.spans[-1]
        why = f" ({printable(place.why, at_most=200)})" if place.why else ""
        lasted = duration_text(max(0.0, now - place.since))
        return facts.state_text(place.state).append(f" for {lasted}{why}", style="")
    healthy = sum(member.state == "healthy" for member in watched.view.roster)
    return Text(f"{healthy} of {len(watched.view.roster)} members healthy")
