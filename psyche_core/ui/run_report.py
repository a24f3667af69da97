"""The report of a run as one JSON object, and checks of its figures against what the caller requires.

The format is fixed, because other programs read it. Requirements are checked against the report itself, not against separate
data.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from psyche_core.ui.run_metrics import RunMetrics


def make_report(metrics: RunMetrics, *, wall_seconds: float) -> dict[str, Any]:
    """Return a report: run_id, steps, epochs, clients, validation, identical, wall_seconds, train_seconds.

    Losses are in nats per token, None for one that is not finite. A client's `paths`, if it reported any, are the newest on how
    it reached each other member: peer, path (direct, relayed, none), rtt_ms, sent_per_second, received_per_second (bytes),
    neighbour. In an overlay `over_others` is the number of members that are not among these, since it keeps no connections with
    them. If clients were killed there is also `faults`: kills, resyncs, and shares that were not accepted and were assigned
    again. If shares were checked there is `checks`: the number of checks by outcome, and the strikes by member.
    """
    faults = {"kills": metrics.kills, "resyncs": metrics.resyncs, "requeued_shares": sum(metrics.requeued.values())}
    report = {
        "run_id": metrics.run_id,
        "steps": metrics.steps,
        "epochs": metrics.epochs,
        "clients": [
            {
                "id": client.id,
                "losses": [[step, _finite(loss)] for step, loss in client.losses],
                "param_sha256": {str(epoch): digest for epoch, digest in sorted(client.digests.items())},
                "payload_bytes": list(client.payload_bytes),
                **({"paths": [asdict(each) for each in client.paths]} if client.paths else {}),
                **({"over_others": client.over_others} if client.over_others else {}),
            }
            for client in metrics.clients.values()
        ],
        "validation": [[step, _finite(loss)] for step, loss in metrics.validation],
        "identical": metrics.identical,
        "wall_seconds": round(wall_seconds, 3),
        "train_seconds": round(metrics.train_seconds, 3),
    }
    if metrics.checks:
        report["checks"] = {"outcomes": dict(metrics.checks), "strikes": dict(metrics.strikes)}
    return report | {"faults": faults} if metrics.kills else report


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def unmet(report: dict[str, Any], *, steps: int, epochs: int, loss_drop: float) -> Iterator[str]:
    """Yield a sentence for each figure that was not reached. loss_drop: nats, from first to last validation."""
    if not report["identical"]:
        yield "the replicas were not shown to be identical at every epoch's end"
    if report["steps"] < steps:
        yield f"{report['steps']} steps were trained and applied, at least {steps} were required"
    if report["epochs"] < epochs:
        yield f"{report['epochs']} epochs were completed by all, at least {epochs} were required"
    if loss_drop <= 0:
        return

    losses = [loss for _, loss in report["validation"]]
    if len(losses) < 2:
        yield f"validation loss was measured {len(losses)} times, so a fall by {loss_drop} nats cannot be shown"
    elif losses[0] is None or losses[-1] is None:
        yield f"validation loss was not a finite number at the first or last measurement, so no fall by {loss_drop} nats is shown"
    elif losses[0] - losses[-1] < loss_drop:
        yield (
            f"validation loss fell by {losses[0] - losses[-1]:.3f} nats ({losses[0]:.3f} to {losses[-1]:.3f}), "
            f"at least {loss_drop} were required"
        )


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write the report atomically: the file is complete or unchanged."""
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(report, stream, allow_nan=False)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
