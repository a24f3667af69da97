"""`psyche client`: take part in a run, see how that goes, and show who we are."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import anyio
import click

from psyche_core.cli.lazy import WholeSummaries, example
from psyche_core.cli.metrics_port import metrics_sinks
from psyche_core.cli.options import ENVIRONMENT_NOTE, PluginOptions, settings_options
from psyche_core.cli.otlp_export import otlp_sinks
from psyche_core.cli.program import log_to_stderr, open_report, remember_failure
from psyche_core.cli.trackers import running_trackers
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.loading import load_settings

_RENAMED = {"show-static-p2p-identity": "show-identity", "create-static-p2p-identity": "create-identity"}
"""Names of commands of the Rust client."""


class _ClientGroup(WholeSummaries):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Also find a command by its name in the Rust client."""
        return super().get_command(ctx, _RENAMED.get(cmd_name, cmd_name))


@click.group(cls=_ClientGroup, context_settings={"max_content_width": 110})
def client() -> None:
    """Take part in a run on this machine."""


@client.command(
    cls=PluginOptions,
    epilog=example(
        "psyche client train --run-id first-light --server-addr 203.0.113.7:20000#KEY -i me.key --checkpoint-dir checkpoints",
        "psyche client train --run-id first-light --backend solana -w wallet.json --rpc https://api.devnet.solana.com",
        note=f"{ENVIRONMENT_NOTE} A backend, transport or tracker may have further options: "
        "`psyche client train --tracker NAME --help`.",
    ),
)
@settings_options(ClientSettings)
def train(**given: Any) -> int:
    """Join a run and train until it ends.

    Ctrl-C (SIGINT) or SIGTERM leaves the run cleanly: the other members continue, and with --checkpoint-dir a last checkpoint
    is saved. A second signal ends the process at once. Nothing is lost then, because the journal in --checkpoint-dir is on disk.
    """
    own = {name: value for name, value in given.items() if name in ClientSettings.model_fields}
    settings = load_settings(ClientSettings, own)
    log_to_stderr(settings.log)
    from psyche_core.cli.screens import open_program_display
    from psyche_core.client.setup.assemble import train_client
    from psyche_core.plugins import PluginRegistry
    from psyche_core.plugins.model_stores import StoreOpener
    from psyche_core.training.malloc_tuning import keep_freed_memory

    keep_freed_memory()
    registry = PluginRegistry.discover()
    backend_settings, transport_settings = (
        None if cls is None else load_settings(cls, {name: value for name, value in given.items() if name in cls.model_fields})
        for cls in (
            registry.load("backend", settings.backend).settings,
            registry.load("transport", settings.transport).settings,
        )
    )
    with (
        open_program_display(settings.logs, kind="client", title=settings.run_id) as display,
        running_trackers(settings.tracker, given, registry) as trackers,
        metrics_sinks(settings.metrics_local_port) as figures,
        otlp_sinks(settings) as telemetry,
        open_report(
            display.sink,
            *trackers,
            *figures,
            *telemetry,
            remember_failure(settings.logs),
            events_file=settings.events_file,
            events_dir=settings.events_dir,
            keep_event_files=settings.keep_event_files,
            write_log=settings.write_log,
        ) as report,
    ):
        ended = anyio.run(
            functools.partial(
                train_client,
                settings,
                registry,
                report,
                backend_settings=backend_settings,
                transport_settings=transport_settings,
                stores=StoreOpener(registry, given),
                follow=display.follow,
            )
        )
    return 0 if ended.success else 1


@client.command(
    "show-identity", epilog=example("openssl rand 32 > me.key && chmod 600 me.key", "psyche client show-identity -i me.key")
)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "-i",
    "--identity-secret-key-path",
    "path",
    type=click.Path(path_type=Path),
    envvar="PSYCHE_IDENTITY_SECRET_KEY_PATH",
    help="File with the client's 32-byte Ed25519 key, the same as FILE.",
)
@click.pass_context
def show_identity(ctx: click.Context, file: Path | None, path: Path | None) -> None:
    """Print the public key of an identity in hex. It identifies the client in a run. The secret key is never shown.

    The key is in FILE, or in the environment variable RAW_IDENTITY_SECRET_KEY as 64 hex digits.
    """
    from psyche_core.config.options.loading import ENVIRONMENT_PREFIX, RAW_IDENTITY
    from psyche_core.errors import ConfigError, IdentityError
    from psyche_core.wire.signing import SecretKey

    named = ctx.get_parameter_source("path") is click.core.ParameterSource.COMMANDLINE
    if file is not None and named:
        message = f"two key files are given, {file} and {path}; give one"
        raise ConfigError(message)

    raw = os.environ.get(ENVIRONMENT_PREFIX + RAW_IDENTITY) or os.environ.get(RAW_IDENTITY)
    if file is None and not named and raw:
        if path is not None:
            message = f"the environment names two keys, PSYCHE_IDENTITY_SECRET_KEY_PATH and {RAW_IDENTITY}; set one of them"
            raise IdentityError(message)
        click.echo(SecretKey.parse(raw, source=f"the environment variable {RAW_IDENTITY}").public.hex())
        return

    found = file or path
    if found is None:
        message = (
            "no key file given (-i FILE). Without one, `psyche client train` makes a new identity each time. "
            "Make one with `psyche client create-identity me.key`, or `openssl rand 32 > me.key && chmod 600 me.key`"
        )
        raise IdentityError(message)

    click.echo(SecretKey.load(found).public.hex())


@client.command("create-identity", epilog=example("psyche client create-identity me.key"))
@click.argument("file", type=click.Path(path_type=Path))
def create_identity(file: Path) -> None:
    """Write a new identity key to FILE, which only you can read, and print its public key. An existing file is an error."""
    from psyche_core.wire.signing import SecretKey

    key = SecretKey.generate()
    key.save(file)
    click.echo(key.public.hex())


@client.command(
    epilog=example(
        "psyche client train --run-id first-light --server-addr 203.0.113.7:20000#KEY --events-dir events",
        "psyche client status --events-dir events",
        note="The options can also be set by PSYCHE_EVENTS_FILE and PSYCHE_EVENTS_DIR, as for `psyche client train`.",
    )
)
@click.option(
    "--events-file", type=click.Path(path_type=Path), envvar="PSYCHE_EVENTS_FILE", help="The file of that client's option."
)
@click.option(
    "--events-dir",
    type=click.Path(path_type=Path),
    envvar="PSYCHE_EVENTS_DIR",
    help="The folder of that client's option; of several clients the one that wrote last is shown.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def status(events_file: Path | None, events_dir: Path | None, as_json: bool) -> None:
    """Show where a client of this machine stands, from the events that it writes.

    Run, phase, step and loss; its place (healthy, waiting, dropped, ...); how it reaches each member with which it keeps a
    connection (direct, relayed or none), with round trip and rates, and how many it reaches over others; its newest checkpoint.
    It only reads files, while the client runs or later.
    """
    import json

    from psyche_core.cli.commands.member.client_status import newest_client, read_status
    from psyche_core.errors import InputError
    from psyche_core.ui.client_status_text import status_lines

    if (events_file is None) == (events_dir is None):
        message = "give --events-file FILE or --events-dir DIR, as they were given to `psyche client train`"
        raise InputError(message)

    files = [events_file] if events_file is not None else newest_client(events_dir or Path())
    document = read_status(files).document()
    click.echo(json.dumps(document) if as_json else "\n".join(status_lines(document)))
