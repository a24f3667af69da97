"""The last output of a run: its figures, its clients, and where the results are."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from psyche_core.telemetry.events import PromptAnswered
from psyche_core.text_safety import printable
from psyche_core.ui.formatting import bytes_text, duration_text
from psyche_core.ui.run_metrics import RunMetrics

TEXTS = 2
"""Prompts whose answers are shown."""

TEXT_CHARACTERS = 160


def _texts(metrics: RunMetrics) -> list[tuple[PromptAnswered, PromptAnswered]]:
    """Return first and last answers to a few prompts that were answered by different models."""
    pairs = [pair for _, pair in sorted(metrics.texts.items()) if pair[0].step != pair[1].step]
    return pairs[:TEXTS]


def _text(event: PromptAnswered) -> Text:
    """Return a prompt and its answer, in one line."""
    prompt = " ".join(event.prompt.split())
    return Text.assemble((printable(prompt), "bold"), printable(f" {' '.join(event.text.split())}", at_most=TEXT_CHARACTERS))


def checks_text(checks: Mapping[str, Any]) -> str:
    """Return how checks of shares ended, and which members got strikes. checks: of a report."""
    outcomes = dict(checks["outcomes"])
    words = [f"{count} {outcome.replace('_', ' ')}" for outcome, count in sorted(outcomes.items(), key=lambda each: -each[1])]
    strikes = ", ".join(f"{printable(name, at_most=16)} {count}" for name, count in sorted(checks["strikes"].items()))
    return f"{sum(outcomes.values())}: {', '.join(words)}; " + (f"strikes: {strikes}" if strikes else "no strikes")


def summary(metrics: RunMetrics, report: dict[str, Any], *, files: list[Path]) -> RenderableType:
    """Return figures of the run and a row per client, as a rich renderable. files: result files to list."""
    figures = Table.grid(padding=(0, 2))
    figures.add_column(style="bold")
    figures.add_column()
    figures.add_row("run", Text(printable(metrics.run_id, at_most=64)))
    figures.add_row("steps", f"{report['steps']} in {report['epochs']} epochs")
    figures.add_row("replicas", "identical, bit for bit" if report["identical"] else "NOT shown to be identical")
    faults = report.get("faults")
    if faults is not None:
        text = f"{faults['kills']} kills, {faults['resyncs']} resyncs, {faults['requeued_shares']} shares handed out again"
        figures.add_row("faults", text)
    checks = report.get("checks")
    if checks is not None:
        figures.add_row("checked shares", checks_text(checks))
    validation = report["validation"]
    if validation:
        (first_step, first), (last_step, last) = validation[0], validation[-1]
        text = f"{first:.3f} (step {first_step}) → {last:.3f} (step {last_step}), {last - first:+.3f} nats per token"
        figures.add_row("validation loss", text)
    figures.add_row("training took", f"{duration_text(report['train_seconds'])} of {duration_text(report['wall_seconds'])}")

    for first, last in _texts(metrics):
        figures.add_row(f"step {first.step} writes", _text(first))
        figures.add_row(f"step {last.step} writes", _text(last))

    clients = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("client", "id", "steps", "loss at first", "at last", "per result", "sent", "received"):
        clients.add_column(column, justify="left" if column in ("client", "id") else "right", no_wrap=True)
    for client in metrics.clients.values():
        clients.add_row(
            Text(printable(client.name)),
            Text(printable(client.id[:8])),
            str(len(client.losses)),
            f"{client.losses[0][1]:.3f}" if client.losses else "",
            f"{client.losses[-1][1]:.3f}" if client.losses else "",
            bytes_text(statistics.fmean(client.payload_bytes)) if client.payload_bytes else "",
            bytes_text(client.network.bytes_sent),
            bytes_text(client.network.bytes_received),
        )

    return Group(figures, Text(), clients, Text(), *(Text(printable(f"→ {path}")) for path in files))
