"""`psyche server`: host the coordinator of a run, or only check its files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from psyche_core.cli.lazy import WholeSummaries, example
from psyche_core.cli.metrics_port import metrics_sinks
from psyche_core.cli.options import ENVIRONMENT_NOTE, settings_options
from psyche_core.cli.otlp_export import otlp_sinks
from psyche_core.cli.program import log_to_stderr, open_report, run_program
from psyche_core.cli.reference_options import SettingsCommand
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.server import ServerSettings
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import ConfigError


@click.group(cls=WholeSummaries, context_settings={"max_content_width": 110})
def server() -> None:
    """Host the coordinator of a run. It transfers no model weights and does not load torch."""


@server.command(
    cls=SettingsCommand,
    epilog=example(
        "psyche server run --state state.toml --data-config data.toml --server-port 20000 --save-state-dir saved",
        note=ENVIRONMENT_NOTE,
    ),
)
@settings_options(ServerSettings)
def run(**given: Any) -> int:
    """Host a run until it is finished.

    Clients need the address that it prints, including the server's public key after the #. Ctrl-C (SIGINT) or SIGTERM stops the
    server; with --save-state-dir it continues the run when it is started again. SIGUSR1 pauses the run after the epoch's last
    results are applied, or resumes a paused run. With --web-port a web page shows the run: phases, members, points, and losses as
    witnesses report them.

    Exit status: 0 if the run is finished, 130 after SIGINT, 143 after SIGTERM, 2 for an error that you can correct, 1 for other
    failures.
    """
    settings = load_settings(ServerSettings, given)
    log_to_stderr(settings.log)
    from psyche_core.cli.pages import Page
    from psyche_core.cli.screens import open_program_display
    from psyche_core.plugins import PluginRegistry
    from psyche_core.server.owner_requests import heed_requests
    from psyche_core.server.serving import serve_run

    logs = "console" if settings.logs == "auto" else settings.logs
    page = Page(
        settings.web_port,
        host=settings.web_host,
        per_address=settings.web_per_address,
        token_file=settings.token_file,
        source="server",
    )
    with (
        open_program_display(logs, kind="server", title="server") as display,
        metrics_sinks(settings.metrics_local_port) as figures,
        otlp_sinks(settings) as telemetry,
        open_report(
            display.sink,
            *page.sinks,
            *figures,
            *telemetry,
            events_file=settings.events_file,
            events_dir=settings.events_dir,
            keep_event_files=settings.keep_event_files,
            write_log=settings.write_log,
        ) as report,
    ):
        screen = display.screen
        heed = None if screen is None else functools.partial(heed_requests, requests=screen.requests(), state_file=settings.state)
        followers = [follow for follow in (page.follow, display.follow) if follow is not None]

        def follow(state: CoordinatorState) -> None:
            for each in followers:
                each(state)

        program = functools.partial(
            serve_run, settings, PluginRegistry.discover(), report, follow=follow if followers else None, owner=heed
        )
        ended = run_program(functools.partial(page.beside, program))
    return 0 if ended.success else 1


@server.command(
    "validate-config",
    epilog=example(
        "psyche server validate-config --state state.toml --data-config data.toml",
        "psyche server validate-config --state config.toml --no-disk",
    ),
)
@click.option("--state", required=True, type=click.Path(path_type=Path), help="Run file (state.toml).")
@click.option("--data-config", type=click.Path(path_type=Path), help="Data file (data.toml) of a server or a testnet.")
@click.option(
    "--disk/--no-disk",
    default=True,
    help="Also check the model's folder and the token files, as `psyche testnet start` does.  [default: disk]",
)
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    help="Folder at which relative paths of the run file start; default: the run file's folder.",
)
def validate_config(state: Path, data_config: Path | None, disk: bool, base: Path | None) -> None:
    """Check a run's files, the settings of each plugin, and the files on disk that they name. Print a summary of the run.

    A file without run_id, as `run-manager update-config` takes it, is accepted. Notes say what was not checked.
    """
    from psyche_core.cli.commands.preview_lr import notes as schedule_notes
    from psyche_core.plugins import PluginRegistry
    from psyche_core.server.disk_checks import Problem, check_disk
    from psyche_core.server.run_files import NAMELESS, load_run
    from psyche_core.text_safety import printable

    files = load_run(state, data_config, PluginRegistry.discover(), prepares_data=True, only_looks=True)
    found = list(check_disk(files, base=base or state.parent)) if disk else []
    problems = [result.sentence for result in found if isinstance(result, Problem)]
    if problems:
        message = "\n".join([*problems, "if model and data are only on other machines, use --no-disk"])
        raise ConfigError(message)

    for line in files.summary():
        click.echo(line)
    llm, config = files.run.model.LLM, files.run.config
    schedule = llm.lr_schedule
    overlooked = schedule_notes(schedule.name, dict(schedule.settings or {}), config.total_steps, llm.cold_start_warmup_steps)
    notes = [*(result.sentence for result in found), *files.unchecked, *overlooked]
    if files.run.run_id == NAMELESS:
        notes.append(
            "the file has no run_id, so it can only change the configuration of an existing run; a server needs a run_id"
        )
    if not disk:
        notes.append("model and data were not checked")
    for note in notes:
        click.echo(f"note: {printable(note)}")
    click.echo("OK")
