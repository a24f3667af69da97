"""`psyche run-manager`: the table of its commands, each imported when it is called."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

_TABLE = {
    "can-join": ("reading:can_join", "Say whether a wallet may join a run."),
    "checkpoint": ("members:checkpoint", "Tell a run where its model is stored."),
    "close-run": ("owner:close_run", "Close a halted run for good."),
    "create-run": ("owner:create_run", "Make a run."),
    "join-authorization-create": ("authorizations:create", "Let a wallet join."),
    "join-authorization-delegate": ("authorizations:delegate", "Let other wallets join in one's place."),
    "join-authorization-delete": ("authorizations:delete", "Take the right to join back."),
    "join-authorization-read": ("authorizations:read", "Show a right to join."),
    "json-dump-run": ("reading:json_dump_run", "Print all about a run, as JSON."),
    "json-dump-user": ("reading:json_dump_user", "Print all about a member, as JSON."),
    "list-runs": ("reading:list_runs", "List the runs on a chain."),
    "migrate": ("owner:migrate", "Bring an older run's account to the present version."),
    "mining-pool": ("mining_pool:mining_pool", "Pool collateral and share what comes of it."),
    "set-future-epoch-rates": ("owner:set_future_epoch_rates", "Say what the next epochs pay."),
    "set-paused": ("owner:set_paused", "Pause a run, or let it go on."),
    "tick": ("members:tick", "Let a run look at the clock."),
    "treasurer-claim-rewards": ("rewards:claim", "Take out what one has earned."),
    "treasurer-top-up-rewards": ("rewards:top_up", "Put in what a run pays."),
    "update-config": ("owner:update_config", "Change a run's configuration."),
    "expel": ("members:expel", "Send a member away."),
    "withdraw": ("members:withdraw", "Leave a run."),
}


class TableGroup(click.Group):
    """A group over a table `name -> ("module:attribute", short help)` of modules beside this one."""

    def __init__(self, *args: Any, table: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Names, sorted; imports nothing."""
        return sorted(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Import and return a command, None when there is no such name."""
        if cmd_name not in self._table:
            return None

        module, _, attribute = self._table[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(module if "." in module else f"{__package__}.{module}"), attribute)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._table[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=TableGroup,
    table=_TABLE,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="\b\nExample:\n  psyche run-manager list-runs\n  psyche run-manager --env-file run.env",
)
@click.option(
    "--env-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with WALLET_PRIVATE_KEY_PATH, RPC, WS_RPC and, if wanted, RUN_ID and AUTHORIZER: take part in a run.",
)
@click.option("--any-version", is_flag=True, help="Take part although the run asks for another version of the client.")
@click.option(
    "--client-option", "more", multiple=True, metavar="OPTION", help="Passed on to `psyche client train`; may be repeated."
)
@click.pass_context
def run_manager(ctx: click.Context, env_file: Path | None, any_version: bool, more: tuple[str, ...]) -> int | None:
    """Make, configure, watch and close runs on Solana, and say who may join them.

    With --env-file and no command: find the run, or one that would let this wallet in, and take part in it.
    """
    if ctx.invoked_subcommand is not None:
        return None
    if env_file is None:
        click.echo(ctx.get_help())
        return 0

    from psyche_backend_solana.commands.start import start

    return start(env_file, any_version=any_version, more=more)
