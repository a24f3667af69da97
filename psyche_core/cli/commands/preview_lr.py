"""`psyche preview-lr`: the learning-rate schedule of a run file, before anybody trains with it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from psyche_core.cli.lazy import example
from psyche_core.errors import ConfigError

BAR_WIDTH = 40


@click.command(
    "preview-lr",
    epilog=example(
        "psyche preview-lr --state examples/local_testnet/state.toml",
        "psyche preview-lr --state state.toml --rows 50",
        "psyche preview-lr --state state.toml --plot rates.png",
        note="A round's results are applied two steps later, with the rate of that step. --plot needs psyche-core[plot].",
    ),
)
@click.option("--state", required=True, type=click.Path(path_type=Path), help="Run file (state.toml), or an owner's config.toml.")
@click.option("--rows", type=click.IntRange(2, 100_000), default=20, show_default=True, help="Rows of the table.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw the schedule into this PNG file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def preview_lr(state: Path, rows: int, plot: Path | None, as_json: bool) -> None:
    """Show a run's learning rates, as a table or a picture. Nothing is trained.

    The table has evenly spaced steps from 1 to total_steps, and each step at which the schedule changes. With
    cold_start_warmup_steps each epoch that starts cold begins with less; that depends on the run and is not shown.
    """
    from psyche_core.config.run_config import load_run_file
    from psyche_core.coordinator.learning_rate import learning_rate
    from psyche_core.server.run_files import NAMELESS

    run = load_run_file(state, run_id=NAMELESS)
    llm, total = run.model.LLM, run.config.total_steps
    marks = turning_points(llm.lr_schedule.name, llm.lr_schedule.settings or {})
    steps = sorted(
        {1 + round(number * (total - 1) / (rows - 1)) for number in range(rows)} | {step for step in marks if 1 <= step <= total}
    )
    table = [(step, learning_rate(llm.lr_schedule, step)) for step in steps]
    if as_json:
        facts = {
            "schedule": llm.lr_schedule.to_toml(),
            "total_steps": total,
            "cold_start_warmup_steps": llm.cold_start_warmup_steps,
            "rates": [{"step": step, "learning_rate": rate, "mark": marks.get(step)} for step, rate in table],
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        _write_table(llm.lr_schedule.name, table, marks)
        for note in notes(llm.lr_schedule.name, llm.lr_schedule.settings or {}, total, llm.cold_start_warmup_steps):
            click.echo(f"note: {note}")
    if plot is not None:
        from psyche_core.ui.plot import plot_rates

        try:
            dense = sorted({1 + number * (total - 1) // 2000 for number in range(2001)} | set(steps))
            plot_rates(
                plot,
                [(step, learning_rate(llm.lr_schedule, step)) for step in dense],
                title=f"{llm.lr_schedule.name}, {state.name}",
            )
        except OSError as error:
            message = f"cannot write {plot}: {error.strerror}; choose another file with --plot"
            raise ConfigError(message) from error
        click.echo(f"the schedule is drawn in {plot}", err=as_json)


def turning_points(name: str, settings: dict[str, float]) -> dict[int, str]:
    """Step -> what the schedule begins there."""
    warmup = int(settings["warmup_steps"])
    if name == "Constant":
        return {warmup: "constant"}
    if name in ("Linear", "Cosine"):
        return {warmup: f"{name.lower()} decay", int(settings["total_steps"]): "final rate"}

    decay = warmup + int(settings["stable_steps"])
    linear = decay + int(settings["cosine_decay_steps"])
    return {
        warmup: "stable",
        decay: "cosine decay",
        linear: "linear decay",
        linear + int(settings["linear_decay_steps"]): "final rate",
    }


def notes(name: str, settings: dict[str, float], total: int, cold_start: int) -> list[str]:
    """What is easy to overlook: a schedule that ends before the run or after it, a warm-up at each cold start, a huge rate."""
    found = []
    if settings["base_lr"] > 1:
        found.append(f"a learning rate of {settings['base_lr']:g} is far above what trains a model")
    end = max(turning_points(name, settings))
    if name != "Constant" and end < total:
        found.append(f"the schedule ends at step {end}; the run's steps after that keep the final rate up to step {total}")
    if name != "Constant" and end > total:
        found.append(f"the run ends at step {total}, before the schedule does at step {end}")
    if settings["warmup_steps"] >= total:
        found.append(f"the warm-up of {settings['warmup_steps']} steps is as long as the run or longer")
    if cold_start:
        found.append(f"an epoch that starts cold raises its rate from 0 during its first {cold_start} steps")
    return found


def _write_table(name: str, table: list[tuple[int, float]], marks: dict[int, str]) -> None:
    top = max(rate for _, rate in table) or 1.0
    width = len(str(table[-1][0]))
    click.echo(f"{'step':>{max(width, 4)}}  learning rate  {name}")
    for step, rate in table:
        bar = "#" * round(BAR_WIDTH * rate / top)
        mark = f"  {marks[step]}" if step in marks else ""
        click.echo(f"{step:>{max(width, 4)}}  {rate:>13.6g}  {bar:<{BAR_WIDTH}}{mark}".rstrip())
