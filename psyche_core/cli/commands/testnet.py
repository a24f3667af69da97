"""`psyche testnet`: a whole run on this machine, each member a process of its own."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psyche_core.cli.lazy import WholeSummaries, example
from psyche_core.cli.options import TestnetOptions, option_words, settings_options
from psyche_core.cli.program import log_to_stderr, run_program
from psyche_core.cli.trackers import tracker_words
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.testnet import TestnetSettings

if TYPE_CHECKING:
    from psyche_core.config.run_config import RunFile
    from psyche_core.plugins import PluginRegistry


@click.group(cls=WholeSummaries, context_settings={"max_content_width": 110})
def testnet() -> None:
    """Try a whole run on this machine: a server and several clients."""


@testnet.command(
    cls=TestnetOptions,
    epilog=example(
        "psyche testnet start --num-clients 3 --config-path examples/local_testnet --web-port 8420",
        note="The folder given with --out then contains report.json, loss.png, events/, logs/ and the checkpoint.",
    ),
)
@settings_options(TestnetSettings)
def start(**given: Any) -> int:
    """Start a server and clients, wait until they end, and check that all replicas are equal at each epoch's end."""
    own = {name: value for name, value in given.items() if name in TestnetSettings.model_fields}
    settings = load_settings(TestnetSettings, own)
    log_to_stderr(settings.log)
    from psyche_core.cli.pages import page_of_folder
    from psyche_core.cli.screens import fitting
    from psyche_core.errors import UserError
    from psyche_core.plugins import PluginRegistry
    from psyche_core.server.run_files import load_run
    from psyche_core.testnet.testnet import run_testnet
    from psyche_core.tui.display import ScreenDisplay

    data_config = settings.config_path / "data.toml"
    registry = PluginRegistry.discover()
    files = load_run(
        settings.config_path / "state.toml",
        data_config if data_config.exists() else None,
        registry,
        prepares_data=True,
        members_here=True,
    )
    if settings.first_client_checkpoint is not None:
        files = replace(files, run=begun_with(files.run, settings.first_client_checkpoint, base=settings.run_base))
    backend = registry.load("backend", settings.backend)
    if backend.create_server is None:
        message = f"a testnet cannot host the backend {settings.backend}; choose another --backend"
        raise UserError(message)
    testnet = backend.testnet
    lose_route = None if testnet is None else testnet.lose_route
    if settings.lose_route_after is not None and lose_route is None:
        message = f"the backend {settings.backend} has only one route to its coordinator; leave out --lose-route-after"
        raise UserError(message)
    wanted = files.run.config.init_min_clients
    if settings.num_clients < wanted:
        message = (
            f"--num-clients {settings.num_clients} is less than init_min_clients = {wanted} of run {files.run.run_id}; "
            f"start at least {wanted} clients, or change the run file"
        )
        raise UserError(message)
    member_options = None if testnet is None else testnet.member_options
    trackers = tracker_words(settings.tracker, given, registry)
    transport = transport_words(settings.transport, given, registry)
    page = page_of_folder(
        settings.web_port, host=settings.web_host, per_address=settings.web_per_address, token_file=settings.token_file
    )
    settings = settings.model_copy(update={"logs": fitting(settings.logs)})
    screen = functools.partial(ScreenDisplay, kind="testnet")
    return run_program(
        functools.partial(
            run_testnet,
            settings,
            files,
            member_options,
            lose_route=lose_route,
            beside=page,
            screen=screen,
            further_options=[*transport, *trackers],
        )
    )


def transport_words(name: str, given: Mapping[str, Any], registry: PluginRegistry) -> list[str]:
    """The options that make a client use a transport, with its settings.

    given: all options of the command, those of the transport among them. Raises UserError for a transport that is not there and
    for settings that cannot work.
    """
    cls = registry.load("transport", name).settings
    if cls is None:
        return ["--transport", name]

    of_ours = TestnetSettings.model_fields  # an option of the testnet's own is not the transport's, though it has its name
    settings = load_settings(cls, {field: given[field] for field in cls.model_fields if field in given and field not in of_ours})
    return ["--transport", name, *option_words(settings)]


def begun_with(run: RunFile, model: str, *, base: Path) -> RunFile:
    """The run with another first model.

    model: repository of the Hub, or a folder. base: where the clients' relative paths start. Raises ConfigError for a long name.
    """
    from psyche_core.config.run_config import checked_run

    plain = run.model_dump(exclude_none=True)
    if Path(model).is_dir():
        model = min(str(Path(model).absolute()), os.path.relpath(model, base), key=len)  # a run file has room for 64 bytes
    plain["model"]["LLM"]["checkpoint"] = {"Hub": {"repo_id": model}}
    return checked_run(plain, source="--first-client-checkpoint")
