"""Spellings of the Rust programs of Psyche, so that a command copied from their manual works or says in one sentence why not.

`respelled` rewrites the words of a command line before click reads them: flags that take `true` or `false`, `--tui`, options with
another name. ABSENT holds the options that have no counterpart here, with what to do instead. The page
`docs/reference/seeds-commands.md` lists all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import click

from psyche_core.config.options.loading import ENVIRONMENT_PREFIX
from psyche_core.option_groups import GroupedCommand

ABSENT: dict[str, str] = {
    "--hub-max-concurrent-downloads": "the Hub's own library decides how many files it downloads at a time",
    "--sidecar-port": "processes on other machines connect to --sidecar-bind HOST:PORT; those of this machine need no port",
}
"""Option -> why it is not here, and what to use instead."""

_SAYS = {"true": True, "false": False}
_ALWAYS = {"--grad-accum-in-fp32": "--micro-batch-size", "--python": "--micro-batch-size", "--write-log": "--num-clients"}
"""Flags that ask for what is always so here, with an option of the commands for which it is: gradients are summed in float32,
models are Python, and a testnet's programs write log files."""

_VALUES = {
    ("--tui", "true"): ("--logs", "tui"),
    ("--tui", "false"): ("--logs", "console"),
}
"""(option, value) -> the words that mean it here."""

_ALONE = {"--tui": ("--logs", "tui"), "--no-tui": ("--logs", "console")}
"""Flag without a value -> the words that mean it."""


class SettingsCommand(GroupedCommand):
    """A command that also takes the spellings of the Rust programs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Respell, then parse. Raises UsageError, also for an option that is not built, with what to use instead."""
        try:
            return super().parse_args(ctx, list(respelled(args, self.get_params(ctx))))
        except click.NoSuchOption as error:
            if error.option_name not in ABSENT:
                raise
            message = f"{error.option_name}: {ABSENT[error.option_name]}"
            raise click.UsageError(message, ctx) from error


def respelled(words: Sequence[str], parameters: Sequence[click.Parameter]) -> Iterator[str]:
    """The words as click expects them. parameters: of the command. Words after `--` stay as they are."""
    known = {name: each for each in parameters if isinstance(each, click.Option) for name in each.opts}
    logs = "--logs" in known
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            yield from (word, *rest)
            return
        name, equals, value = word.partition("=")
        following = value if equals else (rest[0] if rest else "")
        option = known.get(name)
        if option is None and _ALWAYS.get(name) in known:
            continue
        if logs and (name, following) in _VALUES:
            yield from _VALUES[name, following]
        elif option is not None and option.is_flag and following in _SAYS:
            yield from _flag(option, name, on=_SAYS[following])
        elif logs and word in _ALONE:
            if following and not following.startswith("-"):
                message = f"{word} takes true or false, got {following!r}; leave the word out or give one of these"
                raise click.UsageError(message)
            yield from _ALONE[word]
            continue
        else:
            yield word
            continue
        if not equals:
            rest.pop(0)


def with_implied_trackers(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The words of a command with `--tracker wandb` if options of that tracker ask for it, as they do in the Rust programs.

    Variables of the environment ask for it only where no tracker is named.
    """
    named = [word for word in itertools.takewhile(lambda word: word != "--", words) if word.startswith("--")]
    tracks = any(word.partition("=")[0] == "--tracker" for word in named) or environment.get(ENVIRONMENT_PREFIX + "TRACKER")
    asked = any(word.startswith("--wandb-") for word in named)
    told = any(name.startswith(ENVIRONMENT_PREFIX + "WANDB_") and value for name, value in environment.items())
    return [*(("--tracker", "wandb") if asked or (told and not tracks) else ()), *words]


def _flag(option: click.Option, name: str, *, on: bool) -> tuple[str, ...]:
    """A flag without its value: its name, its negation, or nothing if it has none."""
    return (name,) if on else tuple(option.secondary_opts[:1])
