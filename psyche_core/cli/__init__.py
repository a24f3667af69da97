"""The `psyche` command: its list of commands, and how the end of a program becomes an exit code.

Commands are imported only when they are used: `psyche --help` imports click and no other heavy package. Plugins provide commands,
too (`plugin_commands`). Only this module turns exceptions into sentences: exit code 2 for errors that the user can fix, 1 for all
other exceptions raised on purpose and for exceptions from a plugin's code, 130 for Ctrl-C (SIGINT), 143 for SIGTERM. Defects of
psyche-core show their traceback; --debug shows all other tracebacks, too.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from psyche_core.cli.completion import DETECTED, Shell, install, show
from psyche_core.cli.failures import describe_failure
from psyche_core.cli.lazy import example
from psyche_core.cli.plugin_commands import PluginGroup
from psyche_core.cli.plugin_switching import switch_plugins
from psyche_core.text_safety import printable_lines

_as_python_does = warnings.formatwarning


@dataclass(slots=True)
class Switches:
    """Options given before the command's name.

    Attributes:
        reported_end: sentence of a failure that was already shown where errors are printed.
        abandons: the process ends at once, without what libraries do at its exit: one of them hangs.
    """

    debug: bool = False
    reported_end: str = ""
    abandons: bool = False


@click.group(
    epilog=example("psyche testnet start --num-clients 3 --config-path examples/local_testnet"),
    cls=PluginGroup,
    commands_by_path={
        "Take part in a run": {
            "client": ("psyche_core.cli.commands.member.client:client", "Take part in a run on this machine."),
            "doctor": (
                "psyche_core.cli.commands.doctor:doctor",
                "Check this machine before it joins a run, with a remedy for each problem.",
            ),
            "predownload": (
                "psyche_core.cli.commands.member.predownload:predownload",
                "Download and verify a model now, so that joining its run later needs no download.",
            ),
            "sidecar": (
                "psyche_core.cli.commands.member.sidecar:sidecar",
                "Compute a part of a client's model on another machine.",
            ),
        },
        "Host and try runs": {
            "server": ("psyche_core.cli.commands.server:server", "Host the coordinator of a run."),
            "testnet": (
                "psyche_core.cli.commands.testnet:testnet",
                "Try a whole run on this machine: a server and several clients.",
            ),
            "preview-lr": (
                "psyche_core.cli.commands.preview_lr:preview_lr",
                "Show a run's learning rates, as a table or a picture.",
            ),
        },
        "Watch runs": {
            "web": (
                "psyche_core.cli.commands.watch.web:web",
                "Show runs live on a web page: curves, members, epochs, checkpoints.",
            ),
            "replay": ("psyche_core.cli.commands.watch.replay:replay", "Play a finished run from its event files, at any speed."),
        },
        "Models and data": {
            "data": ("psyche_core.cli.commands.data:data", "Make token files from text, and inspect training data."),
            "train-local": (
                "psyche_core.cli.commands.model.train_local:train_local",
                "Train a run's model on this machine alone: no server, no network, the same steps.",
            ),
            "bench": ("psyche_core.cli.commands.bench:bench", "Compare optimizers, and measure what verification must allow."),
            "generate": (
                "psyche_core.cli.commands.model.generate:generate",
                "Write text with a trained model: continue each prompt.",
            ),
            "evaluate": ("psyche_core.cli.commands.model.evaluate:evaluate", "Measure a trained model in benchmarks."),
        },
        "Check the protocol": {
            "audit": (
                "psyche_core.cli.commands.audit:audit",
                "Recompute a run's weights from published journals, and check everything on the way.",
            ),
            "sim": ("psyche_core.cli.commands.sim:sim", "Test the protocol with faults and lies, in virtual time."),
        },
        "This program": {
            "plugins": (
                "psyche_core.cli.commands.plugins:plugins",
                "List the installed plugins, and say which are broken and why.",
            ),
            "man": ("psyche_core.cli.commands.man:man", "Print the manual page of a command in the format of man."),
        },
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="psyche-core", message="psyche %(version)s")
@click.option(
    "--debug",
    is_flag=True,
    envvar="PSYCHE_DEBUG",
    help="Show detailed log lines, and a traceback for every failure.",
)
@click.option(
    "--show-completion",
    is_flag=False,
    flag_value=DETECTED,
    type=Shell(),
    metavar="[bash|zsh|fish]",
    expose_value=False,
    is_eager=True,
    callback=show,
    help="Print the script that completes commands and options in a shell (default: yours).",
)
@click.option(
    "--install-completion",
    is_flag=False,
    flag_value=DETECTED,
    type=Shell(),
    metavar="[bash|zsh|fish]",
    expose_value=False,
    is_eager=True,
    callback=install,
    help="Write that script where the shell looks for it.",
)
@click.option(
    "--disable-plugin",
    "disabled",
    multiple=True,
    is_eager=True,  # so that --help behind it marks what it names
    metavar="NAME",
    help=(
        "Do as if a plugin were not installed: optimizer.Distro, Distro, or all of a distribution, psyche-optim-distro. May be "
        "repeated. The variable PSYCHE_DISABLE_PLUGINS=a,b names more of them, PSYCHE_PLUGINS=a,b the only ones to use."
    ),
)
@click.pass_context
def cli(context: click.Context, *, debug: bool, disabled: tuple[str, ...]) -> None:
    """Train one language model together with others, over the internet."""
    context.ensure_object(Switches).debug = debug
    switch_plugins(context, disabled)


def _with_its_place(error: click.ClickException) -> click.ClickException:
    """The error, with a hint if an option of psyche itself was written after the command."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error

    option, (program, _, command) = error.option_name, error.ctx.command_path.partition(" ")
    if option not in {name for each in cli.params for name in each.opts}:
        return error
    value = " NAME" if option == "--disable-plugin" else ""
    message = f"No such option: {option} here. It goes before the command: {program} {option}{value} {command}"
    return click.NoSuchOption(option, message, ctx=error.ctx)


def _written(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
    """A warning of our own as its sentence, another one with its line of code, as Python does."""
    if category.__module__.partition(".")[0] == "psyche_core":
        return f"Warning: {printable_lines(str(message))}\n"
    return _as_python_does(message, category, *where, **more)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Always raises SystemExit.

    arguments: the arguments after the program's name; those of sys.argv if None.
    """
    switches = Switches()
    warnings.formatwarning = _written
    gc.set_threshold(10_000)  # what importing torch makes stays: to search it for garbage every 700 objects takes a second
    atexit.register(gc.freeze)  # and more than another one when Python ends
    try:
        result = cli.main(args=arguments, prog_name="psyche", standalone_mode=False, obj=switches)
    except click.ClickException as error:
        _with_its_place(error).show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BaseException as error:  # described below, or raised again
        described = describe_failure(error)
        if described is None:
            raise
        sentence, code = described
        if switches.debug and sentence:
            traceback.print_exception(error)
        if sentence and sentence != switches.reported_end:
            click.echo(f"Error: {printable_lines(sentence)}", err=True)  # it may contain text from a server or a chain
    else:
        code = result if isinstance(result, int) else 0

    if switches.abandons:
        _end_at_once(code)
    sys.exit(code)


def _end_at_once(code: int) -> None:
    """End the process after everything of ours was cleaned up, without waiting for threads and exit handlers of libraries."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
