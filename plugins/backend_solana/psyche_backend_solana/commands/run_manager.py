"""`psyche run-manager`: the table of its commands, each imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from psyche_core.option_groups import command_sections, write_sections

_TABLE = {
    "Own a run": {
        "create-run": ("run.owner:create_run", "Create a run."),
        "update-config": ("run.owner:update_config", "Change a run's configuration."),
        "set-paused": ("run.owner:set_paused", "Pause or resume a run."),
        "set-future-epoch-rates": ("run.owner:set_future_epoch_rates", "Set what the next epochs pay."),
        "expel": ("run.members:expel", "Remove a member."),
        "close-run": ("run.owner:close_run", "Close a halted run permanently."),
    },
    "Grant the right to join": {
        "join-authorization-create": ("run.authorizations:create", "Let a wallet join."),
        "join-authorization-read": ("run.authorizations:read", "Show a right to join."),
        "join-authorization-delegate": ("run.authorizations:delegate", "Let other wallets join for this one."),
        "join-authorization-delete": ("run.authorizations:delete", "Revoke the right to join."),
    },
    "Take part in a run": {
        "can-join": ("run.status:can_join", "Check whether a wallet may join a run."),
        "withdraw": ("run.members:withdraw", "Leave a run."),
        "close-address": ("run.members:close_address", "Delete the account with a member's address."),
        "checkpoint": ("run.members:checkpoint", "Report where a run's model is stored."),
        "tick": ("run.members:tick", "Let a run check the clock."),
    },
    "Look at runs": {
        "list-runs": ("run.status:list_runs", "List the runs on a chain."),
        "json-dump-run": ("run.status:json_dump_run", "Print everything about a run, as JSON."),
        "json-dump-user": ("run.status:json_dump_user", "Print everything about a member, as JSON."),
    },
    "Pay and be paid": {
        "treasurer-top-up-rewards": ("payments.rewards:top_up", "Deposit tokens that a run pays its members."),
        "treasurer-pay-members": ("payments.rewards:pay_members", "Pay every member what it has earned."),
        "treasurer-claim-rewards": ("payments.rewards:claim", "Claim what this wallet has earned."),
        "treasurer-free-balances": ("payments.balances:free_balances", "Free the balances of former members that were paid."),
        "mining-pool": ("payments.mining_pool:mining_pool", "Pool collateral and share its returns."),
    },
}


FOR_CLIENT = f"{__name__}.for_client"


class TableGroup(click.Group):
    """A group over a table `heading -> name -> ("module:attribute", short help)` of modules in this package.

    Attributes:
        sections: heading -> names, see `psyche_core.option_groups`.
    """

    def __init__(self, *args: Any, table: Mapping[str, Mapping[str, tuple[str, str]]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = {name: entry for section in table.values() for name, entry in section.items()}
        self.sections: dict[str, tuple[str, ...]] = {heading: tuple(section) for heading, section in table.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Names, sorted; imports nothing."""
        return sorted(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Import and return a command, None for an unknown name."""
        if cmd_name not in self._table:
            return None

        module, _, attribute = self._table[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(module if module.startswith("psyche_") else f"{__package__}.{module}"), attribute)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of the table, one list for each heading."""
        found = command_sections(self, self.list_commands(ctx))
        write_sections(formatter, ((heading, [(name, self._table[name][1]) for name in names]) for heading, names in found))


class StartGroup(TableGroup):
    """Like TableGroup; arguments after `--`, with `--env-file`, are for the started client."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove the client's options before click searches them for a command."""
        if "--" in args:
            at = args.index("--")
            if any(word == "--env-file" or word.startswith("--env-file=") for word in args[:at]):
                ctx.meta[FOR_CLIENT] = tuple(args[at + 1 :])
                args = args[:at]
        return super().parse_args(ctx, args)


@click.group(
    cls=StartGroup,
    table=_TABLE,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="\b\nExample:\n  psyche run-manager list-runs\n  psyche run-manager --env-file run.env\n"
    "  psyche run-manager --env-file run.env --allow-install -- --device cuda:0",
)
@click.option(
    "--env-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take part in a run. FILE contains WALLET_PRIVATE_KEY_PATH, RPC, WS_RPC and optionally RUN_ID and AUTHORIZER.",
)
@click.option("--any-version", is_flag=True, help="Take part with this installation, whatever version the run asks for.")
@click.option(
    "--allow-install/--no-allow-install",
    default=None,
    help="Install the version the run asks for from your package index (ALLOW_INSTALL=1 or 0). Default: only if psyche-core "
    "was installed from an index, not from a folder or repository.",
)
@click.option(
    "--allow-image",
    "images",
    multiple=True,
    metavar="REPOSITORY",
    help="Run container images of this repository, or of an owner/, when the run asks for one (ALLOW_IMAGE); may be repeated.",
)
@click.option(
    "--container-program", metavar="PROGRAM", help="docker or podman, as a name or a path. Default: the first one found."
)
@click.option(
    "--container-option", "container_options", multiple=True, metavar="OPTION", help="Passed on to `docker run`; may be repeated."
)
@click.option("--local", is_flag=True, help="Do not pull images; use those on this machine.")
@click.option("--entrypoint", metavar="PATH", help="Path of the command psyche in the image, if it is not on its PATH.")
@click.option("--coordinator-program-id", metavar="ADDRESS", help="Address of the coordinator program.")
@click.option("--authorizer", metavar="ADDRESS", help="Without RUN_ID: only runs for which this wallet grants the right to join.")
@click.option(
    "--version-interval",
    type=click.FloatRange(min=0.05),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to check which version the run asks for.",
)
@click.option(
    "--client-option",
    "more",
    multiple=True,
    metavar="OPTION",
    help="Passed on to `psyche client train`, like the arguments after --.",
)
@click.pass_context
def run_manager(ctx: click.Context, /, env_file: Path | None, authorizer: str | None, **given: Any) -> int | None:
    """Create, configure, watch and close runs on Solana, and grant the right to join them.

    With --env-file and no command: find the named run, or one that this wallet may join, and take part in it with the client it
    asks for. The other options are only for this. Arguments after -- are passed on to `psyche client train`.
    """
    if ctx.invoked_subcommand is not None:
        return None
    if env_file is None:
        click.echo(ctx.get_help())
        return 0

    from psyche_backend_solana.commands.client.start import StartOptions, start
    from psyche_backend_solana.commands.client.supervisor import SupervisorTimes
    from psyche_backend_solana.commands.context import ADDRESS

    options = StartOptions(
        images=given["images"],
        install=given["allow_install"],
        anything=given["any_version"],
        container_program=given["container_program"],
        container_options=given["container_options"],
        local=given["local"],
        entrypoint=given["entrypoint"],
        coordinator_program_id=given["coordinator_program_id"],
        grantor=None if authorizer is None else ADDRESS.convert(authorizer, None, ctx),
        more=(*given["more"], *ctx.meta.get(FOR_CLIENT, ())),
        times=SupervisorTimes(poll=given["version_interval"]),
    )
    return start(env_file, options)
