"""`psyche loss-curve`: what is read is in `events`, how it looks in `chart`; here are the words of the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from psyche_command_loss_curve.chart import LABEL, draw
from psyche_command_loss_curve.events import Curve, read
from psyche_core.errors import UserError

MIN_WIDTH = LABEL + 10


@click.command("loss-curve", epilog="Example: psyche loss-curve runs/demo --height 20")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--width", type=click.IntRange(min=MIN_WIDTH), help="Columns of the drawing; those of the terminal if not given.")
@click.option("--height", type=click.IntRange(min=3), default=12, show_default=True, help="Lines of the curve.")
def command(run: Path, width: int | None, height: int) -> None:
    """Draw the loss of a run. RUN is an event file, or a folder of event files, as --events-dir and `psyche testnet` write them.

    A star is the mean of all members' shares in the steps of its column; o is a loss on held-out text.
    """
    curve = read(run)
    if not curve.trained:
        message = f"{run} has no loss of a trained step yet; is it a member's file, and has it trained?"
        raise UserError(message)  # one sentence, exit code 2

    columns = width or max(MIN_WIDTH, shutil.get_terminal_size().columns)
    for line in (*draw(curve.trained, curve.validated, width=columns, height=height), "", *_told(curve)):
        click.echo(line)


def _told(curve: Curve) -> list[str]:
    """The curve in sentences."""
    (first, begin), (last, end) = curve.trained[0], curve.trained[-1]
    low, step = min((loss, step) for step, loss in curve.trained)
    members = "1 member" if curve.members == 1 else f"{curve.members} members"
    lines = [f"{members}: {begin:.3f} nats a token in step {first}, {end:.3f} in step {last}; lowest {low:.3f} in step {step}"]
    if curve.validated:
        step, loss = curve.validated[-1]
        lines.append(f"held-out text: {loss:.3f} after step {step}")
    if curve.not_finite:
        lines.append(f"left out: {curve.not_finite} with a loss that is not a number")
    return lines
