"""Puts a client together from settings and plugins, and runs it.

Everything is chosen by name through the registry that is handed in; nothing is imported that the run does not use. Refuses
nothing by itself: each room says what is wrong in its own sentence.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from psyche_core.client import report
from psyche_core.client.runtime import ClientRuntime
from psyche_core.client.workshop import Bench
from psyche_core.coordinator.schedule import cold_start_bounds
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import ConfigError
from psyche_core.hookspecs import BackendContext, DataContext, TransportContext
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import Samples
from psyche_core.plugins import PluginRegistry, validate_settings
from psyche_core.run_config import Choice, LLMConfig
from psyche_core.settings import ClientSettings
from psyche_core.types import BatchId
from psyche_core.wire.signing import SecretKey

if TYPE_CHECKING:
    from psyche_core.training.trainer import Trainer

READ_TIMEOUT = 60.0
_LEAVING = (signal.SIGINT, signal.SIGTERM)


async def train_client(settings: ClientSettings, registry: PluginRegistry, tell: report.Report) -> report.Ended:
    """Take part in a run until it ends, or until SIGINT or SIGTERM asks us to leave in order. A second signal kills the process.

    Raises UserError for what the user can mend, BackendError, DataError and ModelError for what stops the client.
    """
    path = settings.identity_secret_key_path
    key = SecretKey.generate() if path is None else await anyio.to_thread.run_sync(SecretKey.load, path)
    create_backend = (await anyio.to_thread.run_sync(lambda: registry.load("backend", settings.backend))).create
    create_transport = (await anyio.to_thread.run_sync(lambda: registry.load("transport", settings.transport))).create
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(
            create_backend(
                BackendContext(
                    run_id=settings.run_id, address=settings.server_addr, key=key, retry_seconds=settings.reconnect_seconds
                )
            )
        )
        interface = settings.bind_p2p_interface
        if interface == "auto":
            interface = await anyio.to_thread.run_sync(_interface_towards, settings.server_addr)
        transport = await stack.enter_async_context(
            create_transport(TransportContext(run_id=settings.run_id, key=key, interface=interface, port=settings.bind_p2p_port))
        )
        runtime = ClientRuntime(
            run_id=settings.run_id,
            key=key,
            backend=backend,
            transport=transport,
            build=bench_builder(settings, registry, key=key, stack=stack, latest=lambda: runtime.state),
            report=tell,
        )
        tell(report.Started("client", backend.identity.signer.hex(), settings.run_id, settings.server_addr))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_leave_on_signal, runtime)
            ended = await runtime.run()
            tasks.cancel_scope.cancel()
        return ended


def bench_builder(
    settings: ClientSettings,
    registry: PluginRegistry,
    *,
    key: SecretKey,
    stack: AsyncExitStack,
    latest: Callable[[], CoordinatorState],
) -> Callable[[CoordinatorState], Awaitable[Bench]]:
    """A function that opens model, optimizer, data and held-out data for a run's state.

    stack: closes them. latest: the newest state, asked for the epoch's cold start whenever a learning rate is needed.
    """

    def open_trainer(state: CoordinatorState) -> Trainer:
        import torch  # heavy: in the worker thread, and not with the command line

        from psyche_core.training.build import build_trainer

        if settings.torch_threads is not None:
            torch.set_num_threads(settings.torch_threads)
        return build_trainer(
            registry_load=registry.load,
            model_config=state.model,
            run_id=state.run_id,
            device=settings.device,
            micro_batch_size=settings.micro_batch_size,
            base=settings.base,
            cold_start_bounds=lambda: cold_start_bounds(latest()),
        )

    opened: dict[tuple[Choice, int], DataProvider] = {}

    async def provider(choice: Choice, llm: LLMConfig) -> DataProvider:
        """Opened once, however often the model is built anew."""
        known = opened.get((choice, llm.max_seq_len))
        if known is None:
            registration = await anyio.to_thread.run_sync(lambda: registry.load("data", choice.name))
            checked = validate_settings(registration, choice.settings, where=f"model.LLM.data_location.{choice.name}")
            context = DataContext(settings=checked, sequence_length=llm.max_seq_len, key=key, base=settings.base)
            known = opened[choice, llm.max_seq_len] = await stack.enter_async_context(registration.create(context))
        return known

    async def build(state: CoordinatorState) -> Bench:
        llm = state.model.LLM
        trainer = await anyio.to_thread.run_sync(open_trainer, state)
        data = await provider(llm.data_location, llm)
        validation = None
        if settings.validation_data is not None:
            place = {"location": str(settings.validation_data.absolute()), "token_size": settings.validation_token_size}
            held_out = await provider(Choice("Local", place), llm)
            validation = await _first_samples(held_out, settings.validation_sequences)
        return Bench(
            trainer,
            data,
            validation=validation,
            checkpoints=settings.checkpoint_dir,
            keep_checkpoints=_keeper(settings, state.run_id),
        )

    return build


async def _first_samples(provider: DataProvider, count: int) -> Samples:
    if provider.num_sequences < 1:
        message = "the validation data holds no whole sequence"
        raise ConfigError(message)

    return await provider.read([BatchId(0, min(count, provider.num_sequences) - 1)], timeout=READ_TIMEOUT)


def _keeper(settings: ClientSettings, run_id: str) -> Callable[[Path], None]:
    def keep(directory: Path) -> None:
        from psyche_core.training.checkpoint import keep_last

        keep_last(directory.parent, run_id, settings.keep_steps)

    return keep


def _interface_towards(address: str) -> str:
    """The local address from which `host:port#KEY` is reached; loopback when that cannot be told. Sends nothing."""
    host, _, port = address.partition("#")[0].rpartition(":")
    try:
        family, kind, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"


async def _leave_on_signal(runtime: ClientRuntime) -> None:
    """Leave in order at the first SIGINT or SIGTERM.

    The second one ends the process at once, by the system's own hand: a KeyboardInterrupt would wait for the thread that trains.
    """
    with contextlib.suppress(NotImplementedError), anyio.open_signal_receiver(*_LEAVING) as signals:  # not on Windows
        async for _ in signals:
            runtime.leave()
            for number in _LEAVING:
                signal.signal(number, signal.SIG_DFL)
            await anyio.sleep_forever()
