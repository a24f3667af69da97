"""`psyche doctor`: is this machine ready to take part in a run?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psyche_core.cli.failures import USER_ERROR
from psyche_core.cli.lazy import WholeSummaries, example

if TYPE_CHECKING:
    from psyche_core.config.run_config import RunFile

DEFAULT_WALLET = Path("~/.config/solana/id.json")


class _Doctor(WholeSummaries):
    """Checks of this machine, and those that a plugin's group `command.doctor` brings, such as `network`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the plugin's checks."""
        group = _plugin_group()
        return [] if group is None else group.list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A check of the plugin. Fails with the way to install it."""
        group = _plugin_group()
        if group is None and cmd_name == "network":
            ctx.fail("doctor network is not installed; install it with: pip install 'psyche-core[quic]'")
        return None if group is None else group.get_command(ctx, cmd_name)


def _plugin_group() -> click.Group | None:
    from psyche_core.errors import PluginError
    from psyche_core.plugins import PluginRegistry

    try:
        found: object = PluginRegistry.discover().load("command", "doctor").load()  # foreign code
    except PluginError:
        return None  # missing, or broken, which the check of plugins reports

    return found if isinstance(found, click.Group) else None


@click.group(
    cls=_Doctor,
    invoke_without_command=True,
    epilog=example(
        "psyche doctor",
        "psyche doctor --state state.toml --checkpoint-dir checkpoints -i me.key",
        note="Exit status: 0 if there is no problem (warnings are none), 2 otherwise.",
    ),
)
@click.option("--state", type=click.Path(path_type=Path), help="Run file (state.toml) to take part in: its model and plugins.")
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    help="Folder at which relative paths of the run file start; default: the run file's folder.",
)
@click.option("--device", default="auto", show_default=True, help="Device to train on, as `psyche client train` takes it.")
@click.option("--checkpoint-dir", type=click.Path(path_type=Path), help="Folder in which checkpoints will be kept.")
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Folder for downloads; default: the system's cache folder.")
@click.option("-i", "--identity-secret-key-path", "identity", type=click.Path(path_type=Path), help="Identity key to check.")
@click.option(
    "-w",
    "--wallet-private-key-path",
    "wallet",
    type=click.Path(path_type=Path),
    help="Wallet file to check; default: ~/.config/solana/id.json, if it exists.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.pass_context
def doctor(
    ctx: click.Context,
    state: Path | None,
    base: Path | None,
    device: str,
    checkpoint_dir: Path | None,
    cache_dir: Path | None,
    identity: Path | None,
    wallet: Path | None,
    as_json: bool,
) -> int | None:
    """Check this machine before it joins a run, with a remedy for each problem. Nothing is changed or sent.

    Looks at Python, torch, device, memory, disk, clock, key files and plugins, and with --state at what the run needs.
    """
    if ctx.invoked_subcommand is not None:
        return None

    from psyche_core.cli.commands import doctor_checks as checks
    from psyche_core.errors import PsycheError
    from psyche_core.plugins import PluginRegistry
    from psyche_core.storage.scratch import default_folder
    from psyche_core.text_safety import printable

    found = [*checks.check_python(), *checks.check_torch(device), *checks.check_limits(), *checks.check_clock()]
    run, model_bytes = None, 0
    if state is not None:
        try:
            run = _run_file(state)
        except PsycheError as error:
            found.append(checks.CheckResult("run file", "problem", str(error), "correct it; see `psyche server validate-config`"))
    if run is not None and not any(each.check == "torch" and each.status == "problem" for each in found):
        folder = base or (state.parent if state is not None else Path())
        count, results = checks.check_model(run, base=folder, device=device)
        found += results
        model_bytes = 4 * count
    places = [("--cache-dir", cache_dir or default_folder())]
    if checkpoint_dir is not None:
        places.append(("--checkpoint-dir", checkpoint_dir))
    found += checks.check_disk(places, model_bytes=model_bytes)
    if wallet is None and DEFAULT_WALLET.expanduser().exists():
        wallet = DEFAULT_WALLET
    found += checks.check_keys(identity, wallet)
    found += checks.check_plugins(PluginRegistry.discover(), run)

    good = all(each.status != "problem" for each in found)
    if as_json:
        rows = [{"check": each.check, "status": each.status, "text": each.text, "remedy": each.remedy} for each in found]
        click.echo(json.dumps({"ok": good, "findings": rows}, indent=2))
    else:
        for each in found:
            lines = [printable(line) for line in each.text.splitlines()]
            click.echo(f"{each.status:<8} {each.check:<14} {lines[0]}")
            for line in lines[1:]:
                click.echo(f"{'':24}{line}")
            if each.remedy:
                click.echo(f"{'':24}-> {printable(each.remedy)}")
    return 0 if good else USER_ERROR


def _run_file(state: Path) -> RunFile:
    from psyche_core.config.run_config import load_run_file
    from psyche_core.server.run_files import NAMELESS

    return load_run_file(state, run_id=NAMELESS)
