"""Completion of commands and options in a shell: `psyche --show-completion`, `psyche --install-completion`.

click makes the scripts and answers them. Installing writes one file, where the shell looks for completions by itself, and changes
no other file of the user.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from psyche_core.errors import UserError

SHELLS = ("bash", "zsh", "fish")
DETECTED = "detect"
"""Value of an option without a shell's name: that of the user's shell."""

COMPLETE_VARIABLE = "_PSYCHE_COMPLETE"
"""As click makes it of the program's name; the scripts set it."""


class Shell(click.Choice[str]):
    """One of SHELLS for people; DETECTED, which click passes for an option without a value, is neither offered nor named."""

    def __init__(self) -> None:
        super().__init__(SHELLS)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Like click's method, but DETECTED is right, too."""
        return value if value == DETECTED else super().convert(value, param, ctx)


def shell_of(named: str, environment: Mapping[str, str]) -> str:
    """The shell that is meant. named: one of SHELLS, or DETECTED. Raises UserError for a shell that is not supported."""
    if named != DETECTED:
        return named

    found = Path(environment.get("SHELL", "")).name
    if found not in SHELLS:
        what = f"your shell is {found}" if found else "the variable SHELL does not name your shell"
        message = f"{what}; name one of {', '.join(SHELLS)}, as in --show-completion bash"
        raise UserError(message)
    return found


def script(shell: str, command: click.Command) -> str:
    """The script that makes a shell complete `psyche`."""
    made = get_completion_class(shell)
    assert made is not None
    return made(command, {}, "psyche", COMPLETE_VARIABLE).source()


def place_of(shell: str, environment: Mapping[str, str], *, home: Path) -> Path:
    """Where a shell looks for the completions of a command by itself (zsh: once `fpath` names the folder)."""
    if shell == "zsh":
        return Path(environment.get("ZDOTDIR") or home) / ".zfunc" / "_psyche"
    if shell == "fish":
        return Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions" / "psyche.fish"

    return Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share") / "bash-completion" / "completions" / "psyche"


def further_step(shell: str, place: Path) -> str:
    """What the user may still have to do, as a sentence."""
    if shell == "zsh":
        lines = f"fpath+=({place.parent}); autoload -Uz compinit; compinit"
        return f"zsh reads it if ~/.zshrc has, before any other compinit: {lines}"
    if shell == "fish":
        return "fish reads it by itself"
    return f"bash reads it if the package bash-completion is installed; else write into ~/.bashrc: source {place}"


def show(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Callback of --show-completion."""
    if value is not None and not context.resilient_parsing:
        click.echo(script(shell_of(value, os.environ), context.command), nl=False)
        context.exit()


def install(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Callback of --install-completion. Raises UserError if the file cannot be written."""
    if value is None or context.resilient_parsing:
        return

    shell = shell_of(value, os.environ)
    place = place_of(shell, os.environ, home=Path.home())
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(script(shell, context.command), encoding="utf-8")
    except OSError as error:
        message = f"cannot write {place}: {error.strerror}; `psyche --show-completion {shell}` prints what it should hold"
        raise UserError(message) from error

    click.echo(f"wrote {place}; {further_step(shell, place)}. Then start a new shell.")
    context.exit()
