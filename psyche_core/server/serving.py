"""The server program: prepares the data, hosts the coordinator and reports events.

Token files are made at first use, before the server listens, so that a client never finds half-written data. The program ends
when the run is finished and all clients know it. Imports no torch.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import replace

import anyio
import anyio.to_thread

from psyche_core.builtin.local_data import LocalData
from psyche_core.config.options.server import ServerSettings
from psyche_core.config.run_config import CoordinatorConfig, RunFile, check_config
from psyche_core.coordinator import new_state
from psyche_core.coordinator.commands import Event
from psyche_core.coordinator.membership.members import transport_keys
from psyche_core.coordinator.state import CoordinatorState, Progress
from psyche_core.errors import BackendError, ConfigError, UserError
from psyche_core.hookspecs import RelayContext, ServerContext
from psyche_core.interfaces import Relay
from psyche_core.interfaces.backend import KeptRun, OwnerControl
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import store_schemes
from psyche_core.server.change_reporter import ChangeReporter, Follow
from psyche_core.server.owner_requests import pause_or_resume
from psyche_core.server.points import check_points, keep_room, set_points
from psyche_core.server.restarting import (
    TrainedMembers,
    check_decisions,
    heed_loss,
    listening_at,
    name_checkpoint,
    new_run_warning,
    return_to_step,
)
from psyche_core.server.run_files import RunFiles, load_run
from psyche_core.server.token_preparation import prepare_tokens
from psyche_core.storage.folder_lock import locked_folder
from psyche_core.storage.model_stores.run_end import end_sentence
from psyche_core.storage.scratch import default_folder
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.events import Ended, RewardPaid, Started, Stopping
from psyche_core.telemetry.sinks import EventBus
from psyche_core.types import RunState, WitnessMetadata
from psyche_core.wire.signing import SecretKey

_EVERY_INTERFACE = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
"""Addresses that mean every network interface."""

KEY_FILE = "server.key"
"""Name of the server's own key in the folder with the saved state."""


Owner = Callable[[OwnerControl, EventBus], Coroutine[object, object, None]]


async def serve_run(
    settings: ServerSettings,
    registry: PluginRegistry,
    report: EventBus,
    *,
    follow: Follow | None = None,
    owner: Owner | None = None,
) -> Ended:
    """Host a run until it is finished.

    follow: called with each state, from the event loop; must not block. owner: runs beside the server and submits the owner's
    requests. Raises UserError for problems that the user can correct, BackendError otherwise.
    """
    files = load_run(settings.state, settings.data_config, registry)
    if settings.save_state_dir is None:
        return await _host(settings, files, registry, report, follow=follow, owner=owner)
    with locked_folder(settings.save_state_dir, argument="--save-state-dir"):
        return await _host(settings, files, registry, report, follow=follow, owner=owner)


async def _host(
    settings: ServerSettings,
    files: RunFiles,
    registry: PluginRegistry,
    report: EventBus,
    *,
    follow: Follow | None,
    owner: Owner | None,
) -> Ended:
    """Host the run, see `serve_run`. The folder of its state, if any, is already locked for this process."""
    create_server = registry.load("backend", settings.backend).create_server
    if create_server is None:
        message = f"the backend {settings.backend} has no server to host; choose another --backend"
        raise UserError(message)

    relay = _relay(settings, registry)
    folder = settings.save_state_dir
    started_before = folder is not None and (folder / KEY_FILE).exists()
    key = await anyio.to_thread.run_sync(server_key, settings)
    config = first_config(files.run, settings)
    cache = settings.save_state_dir or default_folder()
    data = None
    if files.data is not None:
        await prepare_tokens(files.data, report)
        data = LocalData.from_data_file(files.data, cache=cache)
    trained = TrainedMembers()
    reporter = ChangeReporter(report, follow=follow, settings=settings, trained=trained)
    progress = files.run.progress
    state = new_state(
        files.run.run_id,
        config,
        files.run.model,
        progress=Progress(progress.epoch, progress.step, progress.epoch_start_data_index),
        now=int(time.time()),
        instance=secrets.token_bytes(32),
    )

    changed = False
    change = anyio.Event()

    def on_event(state: CoordinatorState, events: tuple[Event, ...]) -> None:
        nonlocal changed, change
        changed = True
        change.set()
        change = anyio.Event()
        reporter.report_change(state, events)
        if relay is not None:
            relay.set_members(transport_keys(state))

    context = ServerContext(
        state=state,
        host=settings.host,
        port=settings.server_port,
        data=data,
        data_port=files.data_port,
        withdraw_on_disconnect=settings.withdraw_on_disconnect,
        reconnect_seconds=settings.reconnect_seconds,
        key=key,
        state_dir=settings.save_state_dir,
        allow_list=settings.allow_list,
        opening=files.run.config if config != files.run.config else None,
        on_event=on_event,
        on_withdrawn=reporter.note_withdrawn,
        on_figures=lambda signer, figures: _report_figures(report, signer.hex()[:8], figures),
        on_later_state=reporter.report_later_state,
        on_paid=lambda signer, units: report(RewardPaid(signer.hex()[:8], units)),
    )
    async with contextlib.AsyncExitStack() as stack:
        if data is not None:
            await stack.enter_async_context(data)
        if relay is not None:
            await stack.enter_async_context(relay)
            context = replace(context, relays=(relay.url,))
        try:
            hosted = create_server(context)
            if settings.points_per_epoch is not None:
                check_points(hosted, backend=settings.backend)
            server = await stack.enter_async_context(hosted)
        except OSError as error:
            message = f"cannot listen on {settings.host}:{settings.server_port}: {error.strerror}; choose another --server-port"
            raise UserError(message) from error

        schemes = store_schemes(registry)
        check_decisions(server, settings, schemes=schemes)
        signals = stack.enter_context(_owner_signals()) if isinstance(server, OwnerControl) else None
        settings = listening_at(settings, server.address)
        report(Started("server", key.public.hex(), files.run.run_id, server.address, server.state.config.total_steps))
        if relay is not None:
            relay.set_members(transport_keys(server.state))
            report(telemetry.RelayStarted(relay.url))
        for unchecked in files.unchecked:
            report(telemetry.Problem("warning", unchecked))
        if (problem := files.data_only_here(settings.host)) is not None:
            report(telemetry.Problem("warning", problem))
        begun = server.state
        saved = server.continued_from if isinstance(server, KeptRun) else None
        resumed = saved is not None if isinstance(server, KeptRun) else begun.instance != state.instance
        trained.see(begun)
        if resumed:
            report(telemetry.RunContinued(begun.progress.epoch, begun.progress.step, "" if saved is None else str(saved)))
        elif started_before:
            report(telemetry.Problem("warning", new_run_warning(settings, begun)))
        reporter.continue_from(begun, settings, continued=resumed)
        reporter.report_beginning()
        if follow is not None:
            follow(server.state)
        if settings.checkpoint is not None:
            name_checkpoint(server, settings.checkpoint, schemes=schemes)
        if settings.restart_from_step is not None:
            report(return_to_step(server, settings.restart_from_step))
        if heed_loss(server, settings):
            reporter.report_lost_model(server.state)
        async with anyio.create_task_group() as tasks:
            if isinstance(server, OwnerControl):
                if signals is not None:
                    tasks.start_soon(_pause_on_signal, signals, server, report)
                if owner is not None:
                    tasks.start_soon(owner, server, report)
                if settings.points_per_epoch is not None:
                    set_points(server, settings.points_per_epoch)
                    tasks.start_soon(keep_room, server, lambda: change)
            try:
                await server.serve()
            except anyio.get_cancelled_exc_class():
                unchanged = not (resumed or changed) and server.state == begun
                kept = None if folder is None or unchanged else str(folder)
                report(Stopping(server.state.progress.step, kept, unchanged))
                raise
            tasks.cancel_scope.cancel()
        if server.state.run_state is not RunState.Finished:
            message = f"the server stopped in {server.state.run_state.name}, before the run was finished; start it again"
            raise BackendError(message)

        reason = f"the run finished after {server.state.progress.step - 1} steps"
        ended = Ended(end_sentence(server.state, reason=reason), success=True)
        report(ended)
        return ended


def _relay(settings: ServerSettings, registry: PluginRegistry) -> Relay | None:
    """Return the relay beside the coordinator, if one is wanted; it listens once it is entered. Raises UserError."""
    if not settings.with_relay:
        given = [
            name
            for name in ("relay", "relay_port", "relay_url", "relay_tls_cert", "relay_tls_key")
            if name in settings.model_fields_set
        ]
        if given:
            message = f"--{given[0].replace('_', '-')} is for the relay beside the server, which starts with --with-relay only"
            raise ConfigError(message)
        return None
    if settings.relay_port and settings.relay_port == settings.server_port:
        message = f"--relay-port and --server-port are both {settings.relay_port}; choose another port for the relay"
        raise ConfigError(message)
    if not registry.load("backend", settings.backend).offers_relays:
        message = (
            f"--with-relay: a server of the backend {settings.backend} cannot tell its members of a relay; run one with "
            "`psyche relay run`, and name it in the run file: [model.network] relays"
        )
        raise ConfigError(message)
    if settings.relay_url is None and settings.host in _EVERY_INTERFACE:
        message = (
            f"--with-relay with --host {settings.host} needs --relay-url, the URL at which members reach the relay, such as "
            f"http://server.example.org:{settings.relay_port}"
        )
        raise ConfigError(message)

    return registry.load("relay", settings.relay).create(
        RelayContext(
            host=settings.host,
            port=settings.relay_port,
            url=settings.relay_url,
            tls_cert=settings.relay_tls_cert,
            tls_key=settings.relay_tls_key,
        )
    )


def _report_figures(report: EventBus, member: str, figures: WitnessMetadata) -> None:
    """Report a witness's statement about its own training. member: first digits of its key."""
    report(telemetry.WitnessReported(member, figures.step, figures.loss, figures.tokens_per_sec, figures.bandwidth_per_sec))
    for score in figures.scores:
        report(telemetry.ScoreReported(member, score.task, score.metric, score.value, score.documents, score.step))


def server_key(settings: ServerSettings) -> SecretKey:
    """Return the key that authenticates this server to clients. Raises IdentityError for a key file that cannot be used."""
    if settings.identity_secret_key_path is not None:
        return SecretKey.load(settings.identity_secret_key_path)
    if settings.save_state_dir is None:
        return SecretKey.generate()

    path = settings.save_state_dir / KEY_FILE
    if not path.exists():
        SecretKey.generate().save(path)
    return SecretKey.load(path)


def first_config(run: RunFile, settings: ServerSettings) -> CoordinatorConfig:
    """Return the configuration until the first round: the file's, changed by the --init-… options. Raises ConfigError."""
    changes = {"warmup_time": settings.init_warmup_time, "init_min_clients": settings.init_min_clients}
    given = {name: value for name, value in changes.items() if value is not None}
    config = run.config.model_copy(update=given)
    try:
        check_config(config)
    except ConfigError as error:
        message = f"the value of --init-warmup-time or --init-min-clients is not allowed: {error}"
        raise ConfigError(message) from error

    return config


def _owner_signals() -> AbstractContextManager[AsyncIterator[signal.Signals] | None]:
    """Receive SIGUSR1, which otherwise ends the process; enter it before a message mentions the signal. None on Windows."""
    number = getattr(signal, "SIGUSR1", None)
    return contextlib.nullcontext() if number is None else anyio.open_signal_receiver(number)


async def _pause_on_signal(signals: AsyncIterator[signal.Signals], server: OwnerControl, report: EventBus) -> None:
    """Pause the run at each signal, or continue a paused run."""
    async for _ in signals:
        pause_or_resume(server, report)
