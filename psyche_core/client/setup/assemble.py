"""Put a client together from settings and plugins, and run it.

Everything is chosen by name through the registry that is passed in. Nothing is imported that the run does not use. Each module
that is called says itself what is wrong with its input.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.from_thread
import anyio.to_thread
from pydantic import BaseModel

from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.model_sync.description import DescriptionExchange
from psyche_core.client.model_sync.exchange import ModelExchange
from psyche_core.client.runtime.resources import Resources, Start
from psyche_core.client.runtime.restoring import ReplayFailed, Restorer, signed_ends
from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.client.setup.data_source import (
    check_announced,
    check_vocabulary,
    data_source,
    first_items,
    first_samples,
    held_out_place,
)
from psyche_core.client.setup.model_store import open_store
from psyche_core.client.setup.own_checks import expect_device, expect_held_out
from psyche_core.client.setup.parallelism import parallelism_of
from psyche_core.config.run_config import Choice, LLMConfig
from psyche_core.config.settings import ClientSettings
from psyche_core.coordinator.checkpoints import loaded_from_hub
from psyche_core.coordinator.round.schedule import cold_start_bounds
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import ConfigError, ModelError
from psyche_core.hookspecs import BackendContext, BackendRegistration, TransportContext
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import Samples
from psyche_core.plugins import PluginRegistry
from psyche_core.storage.scratch import Scratch, default_folder
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.training.checkpoints.origin import Origin, SourceMissing
from psyche_core.wire.signing import SecretKey

if TYPE_CHECKING:
    from psyche_core.training.trainer import Trainer

_LEAVING = (signal.SIGINT, signal.SIGTERM)
Beside = Callable[[ClientRuntime], Coroutine[object, object, None]]
"""Runs beside a client and is cancelled when that ends; called again when the client starts over. It may ask it to leave."""

_ANEW_SECONDS = 1.0
"""Pause before a client starts over, so that a coordinator that goes back and forth does not keep it busy."""


async def train_client(
    settings: ClientSettings,
    registry: PluginRegistry,
    tell: EventBus,
    *,
    backend_settings: BaseModel | None = None,
    key: SecretKey | None = None,
    beside: Beside | None = None,
) -> telemetry.Ended:
    """Take part in a run until it ends, or until SIGINT or SIGTERM asks us to leave in order. A second signal kills the process.

    backend_settings: of the chosen backend's own class. key: our transport's, instead of the one from settings and backend.
    beside: runs instead of the wait for signals; see Beside. Raises UserError for what the user can fix, BackendError,
    DataError and ModelError for what stops the client.
    """
    backend_kind = await anyio.to_thread.run_sync(lambda: registry.load("backend", settings.backend))
    address = _address_for(backend_kind, settings)
    await anyio.to_thread.run_sync(_check_own, settings)
    if key is None:
        key = await anyio.to_thread.run_sync(_transport_key, backend_kind, settings, backend_settings)
    lasting = settings.identity_secret_key_path is not None or backend_kind.transport_key is not None
    create_transport = (await anyio.to_thread.run_sync(lambda: registry.load("transport", settings.transport))).create

    async def take_part() -> tuple[telemetry.Ended, bool]:
        """Run the client once; returns how it ended and whether it must start over."""
        async with AsyncExitStack() as stack:
            scratch = await anyio.to_thread.run_sync(_open_scratch, settings.cache_dir)
            stack.callback(scratch.close)
            restorer = _restorer(settings, tell, member=key.public, lasting=lasting)
            if restorer is not None:
                stack.callback(restorer.close)
                await anyio.to_thread.run_sync(restorer.claim, settings.run_id)
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
            route = address if backend_kind.route is None else backend_kind.route(backend_settings)
            interface = settings.bind_p2p_interface
            if interface == "auto":
                interface = await anyio.to_thread.run_sync(_interface_towards, route)
            transport = await stack.enter_async_context(
                create_transport(
                    TransportContext(run_id=settings.run_id, key=key, interface=interface, port=settings.bind_p2p_port)
                )
            )
            benches = bench_builder(
                settings, registry, key=key, stack=stack, latest=lambda: runtime.state, tell=tell, restorer=restorer
            )
            runtime = ClientRuntime(
                run_id=settings.run_id,
                key=key,
                backend=backend,
                transport=transport,
                build=benches,
                check=benches.check,
                report=tell,
                exchange=ModelExchange(transport, tell=tell, scratch=scratch, at_once=settings.max_concurrent_parameter_requests),
                downloads_at_once=settings.max_concurrent_downloads,
                descriptions=DescriptionExchange(transport, folder=_cache_folder(settings) / "descriptions"),
                store=open_store(settings),
                explain=registry.explain,
            )
            tell(telemetry.Started("client", backend.identity.signer.hex(), settings.run_id, route))
            async with anyio.create_task_group() as tasks:
                if beside is None:
                    tasks.start_soon(
                        _leave_on_signal, runtime, lambda number: tell(telemetry.Leaving(number.name, restorer is not None))
                    )
                else:
                    tasks.start_soon(beside, runtime)
                ended = await runtime.run()
                tasks.cancel_scope.cancel()
            return ended, runtime.begins_anew

    while True:
        ended, again = await take_part()
        if not again:
            return ended

        tell(telemetry.Problem("warning", "starting over from what is on this client's disk"))
        await anyio.sleep(_ANEW_SECONDS)


def _check_own(settings: ClientSettings) -> None:
    """Report problems before joining that would end the client after it. Raises ConfigError, NoSuchDevice."""
    if not settings.base.is_dir():
        message = f"--base {settings.base} is no folder; give the one that the run's relative paths start at"
        raise ConfigError(message)

    parallelism_of(settings)
    folder = settings.checkpoint_dir
    if folder is not None and folder.exists() and not folder.is_dir():
        message = f"--checkpoint-dir {folder} is a file; give a folder, which is made when there is none"
        raise ConfigError(message)

    expect_held_out(settings)
    expect_device(settings)


def _address_for(backend: BackendRegistration, settings: ClientSettings) -> str:
    """The coordinator's address from the user. Raises ConfigError if it is needed and missing, or given and unused."""
    if backend.needs_address and settings.server_addr is None:
        message = f"--server-addr is needed for {backend.name} (or the environment variable PSYCHE_SERVER_ADDR)"
        raise ConfigError(message)
    if not backend.needs_address and settings.server_addr is not None:
        message = f"--server-addr means nothing to the backend {backend.name}; its own options say where the coordinator is"
        raise ConfigError(message)

    return settings.server_addr or ""


def _transport_key(backend: BackendRegistration, settings: ClientSettings, backend_settings: BaseModel | None) -> SecretKey:
    """Our transport's key: from the file, else from the backend's settings, else a new one. Raises IdentityError."""
    if settings.identity_secret_key_path is not None:
        return SecretKey.load(settings.identity_secret_key_path)
    if backend.transport_key is not None:
        return backend.transport_key(settings.run_id, backend_settings)

    return SecretKey.generate()


def _restorer(settings: ClientSettings, tell: EventBus, *, member: bytes | None = None, lasting: bool = True) -> Restorer | None:
    """Checkpoints and journal of this client, if it keeps any; the caller closes it. member, lasting: see Restorer."""
    if settings.checkpoint_dir is None:
        return None

    def warn(sentence: str) -> None:
        anyio.from_thread.run_sync(tell, telemetry.Problem("warning", sentence))

    return Restorer(settings.checkpoint_dir, settings.journal_size, warn, member, lasting)


@dataclass(frozen=True, slots=True)
class ResourcesBuilder:
    """Opens the resources of a client.

    build: model, optimizer, data and held-out data for a run's state. check: checks all of that except the model, and what the
    options name on this machine, before a client joins a run with this state.
    """

    build: Callable[[Start], Awaitable[Resources]]
    check: Callable[[CoordinatorState], Awaitable[None]]

    async def __call__(self, start: Start) -> Resources:
        """Open all of it."""
        return await self.build(start)


def bench_builder(
    settings: ClientSettings,
    registry: PluginRegistry,
    *,
    key: SecretKey,
    stack: AsyncExitStack,
    latest: Callable[[], CoordinatorState],
    tell: EventBus,
    restorer: Restorer | None = None,
) -> ResourcesBuilder:
    """Makes the builder that opens model, optimizer, data and held-out data for a run's state.

    stack: closes them. latest: the newest state, used for the epoch's cold start whenever a learning rate is needed. restorer:
    of our checkpoints and journal, closed by the caller; None for one of our own where the settings name a folder. Raises
    ConfigError.
    """

    def tell_from_thread(event: telemetry.Event) -> None:
        anyio.from_thread.run_sync(tell, event)

    def warn_from_thread(sentence: str) -> None:
        tell_from_thread(telemetry.Problem("warning", sentence))

    micro_batch_size = settings.micro_batch_size
    parallelism = parallelism_of(settings)
    resumed: telemetry.Resumed | None = None
    newest: Trainer | None = None

    def close_newest() -> None:
        """Close the group of processes that share the model; there is one at a time."""
        nonlocal newest
        former, newest = newest, None
        if former is not None:
            former.close()

    async def close_at_the_end() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(close_newest)

    stack.push_async_callback(close_at_the_end)
    if restorer is None:
        restorer = _restorer(settings, tell)
        if restorer is not None:
            stack.callback(restorer.close)

    def tell_resumed(state: CoordinatorState, *, checkpoint: int | None, step: int | None) -> None:
        """Report the same resumption only once; a new run has nothing to resume from."""
        nonlocal resumed
        due = masters_due(state)
        found = telemetry.Resumed(str(settings.checkpoint_dir), checkpoint, step, due)
        if due > 0 and found != resumed:
            resumed = found
            tell_from_thread(found)

    def find_model(start: Start) -> Origin:
        if start.folder is not None:
            return Origin(start.folder)

        source = registry.load("model", start.state.model.LLM.architecture).source
        if source is not None:
            return _find_origin(settings, start, tell=warn_from_thread, source=source)
        try:
            return _find_origin(settings, start, tell=warn_from_thread)
        except SourceMissing:
            if restorer is None:
                raise
            if not restorer.begins_with_stored(start.state):
                tell_resumed(start.state, checkpoint=None, step=None)
                raise
            state = replace(start.state, model=loaded_from_hub(start.state.model))
            return _find_origin(settings, replace(start, state=state), tell=warn_from_thread)

    def expect_plugins(llm: LLMConfig) -> None:
        """Report missing plugins before anything is fetched. Raises PluginError."""
        needed = [("model", llm.architecture), ("optimizer", llm.optimizer.name), ("data", llm.data_location.name)]
        for kind, name in needed if parallelism is None else [*needed, ("sharding", parallelism.sharding)]:
            registry.load(kind, name)

    def look_around(state: CoordinatorState) -> None:
        """Check this machine for problems without opening the model."""
        expect_plugins(state.model.LLM)
        expect_device(settings)
        if restorer is not None:
            restorer.claim(state.run_id)

    def open_trainer(start: Start, *, use_journal: bool = True) -> tuple[Trainer, Origin]:
        import torch  # slow import: in the worker thread, not at program start

        from psyche_core.training.build import Compute, build_trainer
        from psyche_core.training.checkpoints.private_state import private_path

        nonlocal micro_batch_size, newest
        state = start.state
        llm = state.model.LLM
        expect_plugins(llm)
        if restorer is not None and start.folder is None and use_journal:
            restorer.look_back(state)
        origin = find_model(start)
        if settings.torch_threads is not None:
            torch.set_num_threads(settings.torch_threads)
        close_newest()
        trainer = newest = build_trainer(
            registry_load=registry.load,
            model_config=state.model,
            run_id=state.run_id,
            compute=Compute(
                device=settings.device,
                dtype=settings.compute_dtype,
                attention=settings.attention,
                gradient_checkpointing=settings.gradient_checkpointing,
                micro_batch_size=micro_batch_size,
                parallelism=parallelism,
                notice=warn_from_thread,
            ),
            source=origin.folder,
            cold_start_bounds=lambda: cold_start_bounds(latest()),
        )
        if micro_batch_size == "auto":  # found once: when the model is rebuilt, the old one still uses memory
            micro_batch_size = trainer.micro_batch_size
            tell_from_thread(telemetry.MicroBatchFound(micro_batch_size))
        if origin.step is not None and settings.checkpoint_dir is not None:
            try:
                trainer.load_private(private_path(settings.checkpoint_dir, state.run_id))
            except ModelError as error:
                warn_from_thread(f"{error}; training goes on without it")
        if restorer is None or start.folder is not None:
            return trainer, origin

        use_journal = use_journal and not start.fresh
        try:
            step = restorer.restore(trainer, state, step=origin.step, use_journal=use_journal)
        except ReplayFailed as error:
            warn_from_thread(f"{error}; going on from the checkpoint before it")
            return open_trainer(start, use_journal=False)

        if not start.fresh:
            tell_resumed(state, checkpoint=origin.step, step=step)
        return trainer, replace(origin, step=step)

    validation: Samples | None = None
    looked_at: Samples | None = None
    opened: dict[tuple[Choice, int], DataProvider] = {}

    async def provider(choice: Choice, llm: LLMConfig) -> DataProvider:
        """Opened once, even if the model is built again."""
        known = opened.get((choice, llm.max_seq_len))
        if known is None:
            cache = _cache_folder(settings) / "data"
            source = await data_source(
                registry, choice, sequence_length=llm.max_seq_len, key=key, base=settings.base, cache=cache
            )
            known = opened[choice, llm.max_seq_len] = await stack.enter_async_context(source)
            check_announced(known, sequence_length=llm.max_seq_len, name=registry.label("data", choice.name))
        return known

    async def held_out(llm: LLMConfig) -> Samples | None:
        nonlocal validation
        if validation is None and settings.validation_data is not None:
            source = await provider(held_out_place(settings.validation_data, settings.validation_token_size), llm)
            validation = await first_samples(source, settings.validation_sequences, sequence_length=llm.max_seq_len)
        return validation

    async def look_at_items(data: DataProvider, llm: LLMConfig) -> Samples | None:
        """The first items of a dataset given as an object, read once: what is wrong with them is told before a round waits."""
        nonlocal looked_at
        if looked_at is None:
            name = registry.label("data", llm.data_location.name)
            looked_at = await first_items(data, sequence_length=llm.max_seq_len, name=name)
        return looked_at

    async def check(state: CoordinatorState) -> None:
        llm = state.model.LLM
        await anyio.to_thread.run_sync(look_around, state)
        await look_at_items(await provider(llm.data_location, llm), llm)
        await held_out(llm)

    async def held_ends(state: CoordinatorState, step: int | None) -> tuple[tuple[int, bytes], ...]:
        """Signed ends on our disk; searched only if the masters are not up to date, because that reads whole checkpoints."""
        if restorer is None or (step is not None and step >= masters_due(state)):
            return ()

        return await anyio.to_thread.run_sync(restorer.held, state)

    async def build(start: Start) -> Resources:
        llm = start.state.model.LLM
        trainer, origin = await anyio.to_thread.run_sync(open_trainer, start)
        data = await provider(llm.data_location, llm)
        check_vocabulary(await look_at_items(data, llm), trainer.vocab_size)
        return Resources(
            trainer,
            data,
            validation=await held_out(llm),
            checkpoints=settings.checkpoint_dir,
            keep_checkpoints=_keeper(settings, start.state.run_id),
            step=origin.step,
            stored_step=origin.stored_step,
            journal=None if restorer is None else restorer.journal,
            held=await held_ends(start.state, origin.step),
            optimizer_name=registry.label("optimizer", llm.optimizer.name),
            data_name=registry.label("data", llm.data_location.name),
        )

    return ResourcesBuilder(build, check)


def _keeper(settings: ClientSettings, run_id: str) -> Callable[[Path], None]:
    def keep(directory: Path) -> None:
        from psyche_core.training.checkpoints.checkpoint import keep_last

        keep_last(directory.parent, run_id, settings.keep_steps)

    return keep


def _find_origin(settings: ClientSettings, start: Start, *, tell: Callable[[str], None], source: Path | None = None) -> Origin:
    """source: folder to use instead of the run's checkpoint, for a model that brings its own first weights."""
    from psyche_core.training.checkpoints.origin import FROM_MEMBERS, find_origin

    checkpoint = start.state.model.LLM.checkpoint
    if source is not None:
        checkpoint = Choice("P2P" if checkpoint.name in FROM_MEMBERS else "Hub", {"repo_id": str(source.absolute())})
    return find_origin(
        checkpoint,
        run_id=start.state.run_id,
        instance=start.state.instance,
        base=settings.base,
        cache=_cache_folder(settings),
        own=settings.checkpoint_dir,
        at_most=masters_due(start.state),
        fresh=start.fresh,
        generation=start.state.generation,
        ends=signed_ends(start.state),
        stored_step=start.state.stored.step,
        tell=tell,
    )


def _cache_folder(settings: ClientSettings) -> Path:
    return settings.cache_dir or default_folder()


def _open_scratch(folder: Path | None) -> Scratch:
    """The scratch files of this client. A named folder must be usable; otherwise a private one may replace the system's."""
    if folder is not None:
        return Scratch(folder)

    try:
        return Scratch(default_folder())
    except (ConfigError, RuntimeError):  # RuntimeError: this user has no home
        return Scratch()


def _interface_towards(address: str) -> str:
    """The local address from which `host:port#KEY` is reached; loopback if that is unknown. Sends nothing."""
    host, _, port = address.partition("#")[0].rpartition(":")
    try:
        family, kind, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"


async def _leave_on_signal(runtime: ClientRuntime, told: Callable[[signal.Signals], None]) -> None:
    """Leave in order at the first SIGINT or SIGTERM; `told` is called once a second one would kill the process.

    The second signal ends the process at once through the system: a KeyboardInterrupt would wait for the training thread.
    """
    with contextlib.suppress(NotImplementedError), anyio.open_signal_receiver(*_LEAVING) as signals:  # not on Windows
        async for received in signals:
            runtime.leave()
            for number in _LEAVING:
                signal.signal(number, signal.SIG_DFL)
            told(received)
            await anyio.sleep_forever()
