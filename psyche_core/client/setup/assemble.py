"""Put a client together from settings and plugins, and run it.

`resources_builder` opens what the client trains with. Plugins are chosen by name through the registry that is passed in. Only
what the run uses is imported. Each module that is called reports itself what is wrong with its input.
"""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread
from pydantic import BaseModel

from psyche_core.client.model_sync.description import DescriptionExchange
from psyche_core.client.model_sync.exchange import ModelExchange
from psyche_core.client.runtime.reports.score_reports import ScoreReports
from psyche_core.client.runtime.restoring import Restorer
from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.client.runtime.worker import Worker
from psyche_core.client.setup.evaluations import Evaluations
from psyche_core.client.setup.evaluations import wanted as evaluations_wanted
from psyche_core.client.setup.model_opener import cache_folder
from psyche_core.client.setup.model_store import open_store
from psyche_core.client.setup.parallelism import parallelism_of
from psyche_core.client.setup.preflight import (
    expect_device,
    expect_evaluations,
    expect_held_out,
    expect_publishing,
    expect_result_files,
)
from psyche_core.client.setup.resources_builder import ResourcesBuilder
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.loading import RAW_IDENTITY
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import ConfigError, IdentityError
from psyche_core.hookspecs import BackendContext, BackendRegistration, TransportContext
from psyche_core.interfaces.backend import KnownPosition, TellsLater
from psyche_core.p2p.local_address import interface_towards
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener
from psyche_core.storage.scratch import Scratch, default_folder
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.wire.signing import SecretKey

_LEAVING = (signal.SIGINT, signal.SIGTERM)
Beside = Callable[[ClientRuntime], Coroutine[object, object, None]]
"""Runs beside a client until the client ends, and again when the client starts over. It may ask the client to leave."""

_ANEW_SECONDS = 1.0
"""Pause before a client starts over, so that a coordinator whose state often goes back does not keep the client busy."""


async def train_client(
    settings: ClientSettings,
    registry: PluginRegistry,
    report: EventBus,
    *,
    backend_settings: BaseModel | None = None,
    transport_settings: BaseModel | None = None,
    stores: StoreOpener | None = None,
    key: SecretKey | None = None,
    beside: Beside | None = None,
    follow: Callable[[CoordinatorState], None] | None = None,
) -> telemetry.Ended:
    """Take part in a run until it ends, or until SIGINT or SIGTERM asks us to leave in order. A second signal kills the process.

    backend_settings, transport_settings: of the chosen backend's and transport's own classes; None for the defaults.
    stores: opens stores of models by URL; None for one that takes the plugins' settings from the environment.
    key: our transport's key, instead of the one from settings or backend.
    beside: runs instead of the wait for signals; see Beside. follow: called with each state of the coordinator; must not block.
    Raises UserError for what the user can fix, and BackendError, DataError and ModelError for what stops the client.
    """
    backend_kind = await anyio.to_thread.run_sync(lambda: registry.load("backend", settings.backend))
    address = _address_for(backend_kind, settings)
    await anyio.to_thread.run_sync(_check_own, settings)
    if key is None:
        key = await anyio.to_thread.run_sync(_transport_key, backend_kind, settings, backend_settings)
    named = settings.identity_secret_key_path is not None or settings.raw_identity_secret_key is not None
    stores = stores or StoreOpener(registry)
    lasting = named or backend_kind.transport_key is not None
    create_transport = (await anyio.to_thread.run_sync(lambda: registry.load("transport", settings.transport))).create

    async def take_part() -> tuple[telemetry.Ended, bool]:
        """Run the client once; return how it ended and whether it must start over."""
        async with AsyncExitStack() as stack:
            scratch = await anyio.to_thread.run_sync(_open_scratch, settings.cache_dir)
            stack.callback(scratch.close)
            store = await anyio.to_thread.run_sync(open_store, settings, registry, stores)
            restorer = open_restorer(settings, report, member=key.public, lasting=lasting)
            if restorer is not None:
                stack.callback(restorer.close)
                await anyio.to_thread.run_sync(restorer.lock_folder, settings.run_id)
            backend = await stack.enter_async_context(
                backend_kind.create(
                    BackendContext(
                        run_id=settings.run_id,
                        address=address,
                        key=key,
                        settings=backend_settings,
                        retry_seconds=settings.reconnect_seconds,
                    )
                )
            )
            if restorer is not None and isinstance(backend, TellsLater):
                restorer.ahead.tell_later = _from_worker_thread(backend)
            route = address if backend_kind.route is None else backend_kind.route(backend_settings)
            interface = settings.bind_p2p_interface
            found = interface == "auto"
            if found:
                interface = await anyio.to_thread.run_sync(interface_towards, route)
            transport = await stack.enter_async_context(
                create_transport(
                    TransportContext(
                        run_id=settings.run_id,
                        key=key,
                        interface=interface,
                        port=settings.bind_p2p_port,
                        whole_interface=found,
                        settings=transport_settings,
                    )
                )
            )
            build = ResourcesBuilder(
                settings,
                registry,
                key=key,
                stack=stack,
                latest=lambda: runtime.state,
                report=report,
                restorer=restorer,
                stores=stores,
            )
            scores, evaluations = ScoreReports(), None
            if evaluations_wanted(settings):
                evaluations = Evaluations(settings, lambda: runtime.resources, EventBus(report, scores))
            worker = Worker(
                build,
                transport=transport,
                report=report,
                store=store,
                exchange=ModelExchange(
                    transport, report=report, scratch=scratch, at_once=settings.max_concurrent_parameter_requests
                ),
                descriptions=DescriptionExchange(transport, folder=cache_folder(settings) / "descriptions"),
                explain=registry.explain,
                check=build.check,
                spare=None if evaluations is None else evaluations.spare,
            )
            runtime = ClientRuntime(
                run_id=settings.run_id,
                key=key,
                backend=backend,
                transport=transport,
                worker=worker,
                report=report,
                downloads_at_once=settings.max_concurrent_downloads,
                follow=follow,
                at_end=None if evaluations is None else evaluations.at_end,
                scores=None if evaluations is None else scores.take,
            )
            report(telemetry.Started("client", backend.identity.signer.hex(), settings.run_id, route))
            async with (
                contextlib.nullcontext() if evaluations is None else evaluations.running(),
                anyio.create_task_group() as tasks,
            ):
                if beside is None:
                    tasks.start_soon(
                        _leave_on_signal, runtime, functools.partial(_report_leaving, report, runtime, saves=restorer is not None)
                    )
                else:
                    tasks.start_soon(beside, runtime)
                ended = await runtime.run()
                tasks.cancel_scope.cancel()
            return ended, runtime.must_restart

    while True:
        ended, again = await take_part()
        if not again:
            return ended

        report(telemetry.Problem("warning", "starting over from what is on this client's disk"))
        await anyio.sleep(_ANEW_SECONDS)


def _report_leaving(
    report: Callable[[telemetry.Event], None], runtime: ClientRuntime, number: signal.Signals, *, saves: bool
) -> None:
    loading = runtime.resources is None
    report(telemetry.Leaving(number.name, saves=saves and not loading, loading=loading))


def _check_own(settings: ClientSettings) -> None:
    """Check before joining for problems that would end the client later. Raises ConfigError, NoSuchDevice."""
    if not settings.base.is_dir():
        message = f"--base {settings.base} is no folder; give the one that the run's relative paths start at"
        raise ConfigError(message)

    parallelism_of(settings)
    folder = settings.checkpoint_dir
    if folder is not None and folder.exists() and not folder.is_dir():
        message = f"--checkpoint-dir {folder} is a file; give a folder, which is made when there is none"
        raise ConfigError(message)

    expect_publishing(settings)
    expect_result_files(settings)
    expect_held_out(settings)
    expect_evaluations(settings)
    expect_device(settings)


def _address_for(backend: BackendRegistration, settings: ClientSettings) -> str:
    """Return the coordinator's address from the user. Raises ConfigError if it is needed and missing, or given and unused."""
    if backend.needs_address and settings.server_addr is None:
        message = f"--server-addr is needed for {backend.name} (or the environment variable PSYCHE_SERVER_ADDR)"
        raise ConfigError(message)
    if not backend.needs_address and settings.server_addr is not None:
        message = f"--server-addr means nothing to the backend {backend.name}; its own options say where the coordinator is"
        raise ConfigError(message)

    return settings.server_addr or ""


def _transport_key(backend: BackendRegistration, settings: ClientSettings, backend_settings: BaseModel | None) -> SecretKey:
    """Return our transport's key: from a file or the environment, from the backend's settings, or a new one. Raises
    IdentityError.
    """
    raw = settings.raw_identity_secret_key
    if raw is not None:
        if settings.identity_secret_key_path is not None:
            message = f"both --identity-secret-key-path and the environment variable {RAW_IDENTITY} name a key; use one of them"
            raise IdentityError(message)
        return SecretKey.parse(raw.get_secret_value(), source=f"the environment variable {RAW_IDENTITY}")
    if settings.identity_secret_key_path is not None:
        return SecretKey.load(settings.identity_secret_key_path)
    if backend.transport_key is not None:
        return backend.transport_key(settings.run_id, backend_settings)

    return SecretKey.generate()


def open_restorer(settings: ClientSettings, report: EventBus, *, member: bytes, lasting: bool) -> Restorer | None:
    """Open this client's checkpoints and journal; None if it keeps none. The caller closes it. member, lasting: see Restorer."""
    if settings.checkpoint_dir is None:
        return None

    def warn(sentence: str) -> None:
        anyio.from_thread.run_sync(report, telemetry.Problem("warning", sentence))

    return Restorer(settings.checkpoint_dir, settings.journal_size, warn, member, lasting)


def _from_worker_thread(backend: TellsLater) -> Callable[[KnownPosition], None]:
    """Return the backend's `tell_later`, callable from the worker thread that reads our disk."""
    return lambda known: anyio.from_thread.run_sync(backend.tell_later, known)


def _open_scratch(folder: Path | None) -> Scratch:
    """Open the client's scratch folder. A named folder must be usable; the default one may be replaced by a private one."""
    if folder is not None:
        return Scratch(folder)

    try:
        return Scratch(default_folder())
    except (ConfigError, RuntimeError):  # RuntimeError: this user has no home
        return Scratch()


async def _leave_on_signal(runtime: ClientRuntime, told: Callable[[signal.Signals], None]) -> None:
    """Leave in order at the first SIGINT or SIGTERM. Call `told` as soon as a second one would kill the process.

    The second signal ends the process at once through the operating system: a KeyboardInterrupt would wait for the training
    thread.
    """
    with contextlib.suppress(NotImplementedError), anyio.open_signal_receiver(*_LEAVING) as signals:  # not on Windows
        async for received in signals:
            runtime.leave()
            for number in _LEAVING:
                signal.signal(number, signal.SIG_DFL)
            told(received)
            await anyio.sleep_forever()
