"""The table for people and the figure, from finished cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import tuning
from benchmarks.peers.measures import loss_at, time_to
from benchmarks.peers.systems import BASE, SYSTEMS

_SECONDS, _TOKENS, _SENT = 0, 1, 2
_LEAST_WIDTH = 6.0
"""Inches of the figure: two names of systems side by side."""


def speed_name(megabits: float | None) -> str:
    """A line's speed for people."""
    return "unshaped" if megabits is None else f"{megabits:g} Mbit/s"


def rows(cells: Mapping[str, dict[str, Any]], *, seconds: float, tokens: int, losses: Sequence[float]) -> list[dict[str, Any]]:
    """One row for each system and speed, with its best rate, in the order of speeds and systems.

    busy_share: what computing alone takes of a mean step. other_cpu_per_step: processor seconds besides forward and backward of
    computing alone. loss_after_seconds, loss_after_tokens: validation loss, None where a run did not get so far; by tokens None
    for computing alone too, where a member learns from its own only.
    times_to_losses: seconds since members were started until the validation loss is each of `losses`, None likewise.
    """
    trained = tuning.shown(cells.values())
    base = next((cell for cell in trained if cell["system"] == BASE and cell.get("busy_cpu_per_step")), None)
    order = list(SYSTEMS)
    found = []
    for cell in sorted(trained, key=lambda cell: (cell["megabits"] or float("inf"), order.index(cell["system"]))):
        row = {key: value for key, value in cell.items() if key not in ("training", "validation", "key", "fault")}
        curve = cell.get("validation", [])
        row["loss_after_seconds"] = loss_at(curve, seconds, column=_SECONDS)
        row["loss_after_tokens"] = None if cell["system"] == BASE else loss_at(curve, tokens, column=_TOKENS)
        row["times_to_losses"] = [time_to(curve, loss) for loss in losses]
        if base is not None and cell.get("step_mean_s"):
            row["busy_share"] = round(base["busy_per_step_s"] / cell["step_mean_s"], 3)
            row["other_cpu_per_step"] = round(cell["cpu_per_step"] - base["busy_cpu_per_step"], 4)
        found.append(row)
    return found


def table(rows: Sequence[Mapping[str, Any]], *, seconds: float, steps: float, losses: Sequence[float]) -> str:
    """A Markdown table. steps: whole batches that `loss_after_tokens` of the rows was taken after."""
    heads = (
        "Mbit/s",
        "system",
        "step: median, mean, longest",
        "computing",
        "sent in a step",
        "start-up",
        "other CPU of a step",
        "memory",
        f"loss after {seconds:g} s",
        f"after {steps:g} steps",
        f"seconds to {', '.join(f'{loss:g}' for loss in losses)}",
    )
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
    lines += [f"| {' | '.join(_words(row))} |" for row in rows]
    return "\n".join(lines)


def _words(row: Mapping[str, Any]) -> list[str]:
    """A row's columns for people."""
    failed = str(row.get("failed", "")).replace("|", "/")
    step = ", ".join(_number(row.get(name), digits=2) for name in ("step_s", "step_mean_s")) + ", "
    share = row.get("busy_share")
    return [
        "-" if row["system"] == BASE else "unshaped" if row["megabits"] is None else f"{row['megabits']:g}",
        _title(row) + (f": *{failed}*" if failed else ""),
        f"{step}{_number(row.get('longest_gap_s'), digits=1)} s",
        "-" if share is None else f"{share:.0%}",
        _amount(row.get("sent_per_step")),
        f"{_number(row.get('startup_s'), digits=1)} s",
        f"{_number(row.get('other_cpu_per_step'), digits=2)} s",
        _amount(row.get("memory")),
        _number(row["loss_after_seconds"], digits=2),
        _number(row["loss_after_tokens"], digits=2),
        ", ".join(_number(seconds, digits=0) for seconds in row["times_to_losses"]),
    ]


def _number(value: float | None, *, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _amount(count: float | None) -> str:
    return "-" if count is None else bytes_text(count)


def fault_table(cells: Mapping[str, dict[str, Any]]) -> str:
    """What happened when a member was killed, and when one came late; "" if nobody tried."""
    by_system: dict[str, dict[str, str]] = {}
    for cell in cells.values():
        if cell["fault"]:
            by_system.setdefault(cell["system"], {})[cell["fault"]] = verdict(cell)
    if not by_system:
        return ""
    lines = ["| system | one of them is killed | one more comes late |", "|---|---|---|"]
    for name in (name for name in SYSTEMS if name in by_system):
        found = by_system[name]
        lines.append(f"| {SYSTEMS[name].title} | {found.get('kill', '-')} | {found.get('join', '-')} |")
    return "\n".join(lines)


def verdict(cell: Mapping[str, Any]) -> str:
    """A fault's outcome in a few words."""
    if cell.get("failed"):
        return str(cell["failed"])
    words = f"{cell['verdict']}, {cell['seconds']:g} s"
    if cell["fault"] == "join" and cell["verdict"] != "works" and "others" in cell:
        words += f"; the others: {cell['others']}"
    return words + (f" ({cell['why']})" if cell.get("why") else "")


def bytes_text(count: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def figure(cells: Mapping[str, dict[str, Any]], file: Path) -> None:
    """Validation loss against time since the start, and against the bytes that a member has sent, a column for each speed."""
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    trained = [cell for cell in tuning.shown(cells.values()) if cell.get("validation")]
    speeds = sorted({_speed_of(cell) for cell in trained})
    if not speeds:
        return
    picture = Figure(figsize=(max(4.5 * len(speeds), _LEAST_WIDTH), 7), layout="constrained")
    panels = picture.subplots(2, len(speeds), sharex="row", sharey=True, squeeze=False)
    names = [name for name in SYSTEMS if any(cell["system"] == name for cell in trained)]
    for speed, above, below in zip(speeds, *panels, strict=True):
        # Computing alone needs no line, so it is shown beside all.
        for cell in (each for name in names for each in trained if each["system"] == name):
            if cell["system"] != BASE and _speed_of(cell) != speed:
                continue
            style = _style(cell, names.index(cell["system"]))
            losses = [point[-1] for point in cell["validation"]]
            above.plot([point[_SECONDS] for point in cell["validation"]], losses, **style)
            if cell["system"] != BASE:
                below.plot([point[_SENT] for point in cell["validation"]], losses, **style)
        above.set_title(speed_name(None if speed == float("inf") else speed))
        above.set_xlabel("seconds since members were started")
        below.set_xscale("log")
        below.xaxis.set_major_formatter(EngFormatter(unit="B"))
        below.set_xlabel("bytes that a member has sent")
        for panel in (above, below):
            panel.grid(visible=True, alpha=0.3)
    for row in panels:
        row[0].set_ylabel("validation loss, nats a token")
    picture.legend(*_handles(panels[0]), loc="outside lower center", ncols=max(2, len(speeds)), fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    with np.errstate(invalid="ignore"):  # numpy may see flags that torch's kernels left, when matplotlib divides plain numbers
        picture.savefig(file, dpi=110)


def _speed_of(cell: Mapping[str, Any]) -> float:
    return cell["megabits"] or float("inf")


def _title(cell: Mapping[str, Any]) -> str:
    factor = tuning.factor_of(cell)
    return SYSTEMS[cell["system"]].title + ("" if factor == 1 else f", rate × {factor:g}")


def _style(cell: Mapping[str, Any], place: int) -> dict[str, Any]:
    name = cell["system"]
    wide = 2.2 if name.startswith("ours") else 1.2
    line = "--" if name == BASE else "-"
    return {"label": _title(cell), "color": f"C{place % 10}", "linewidth": wide, "linestyle": line, "marker": "."}


def _handles(panels: Sequence[Any]) -> tuple[list[Any], list[str]]:
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
