"""A member of a run inside a program: it joins, trains, reports events and leaves the run cleanly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.client.setup.assemble import train_client
from psyche_core.config.options.client import ClientSettings
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import PluginFailed, PsycheError
from psyche_core.plugin_errors import leaf_exceptions
from psyche_core.plugin_objects import ObjectPlugin
from psyche_core.plugins import PluginRegistry, discover_and_tell
from psyche_core.sdk.address import Address, HostedAddress, late_start, resolve_address
from psyche_core.sdk.arguments.callbacks import ENDS_THE_PROGRAM, Callback, cause, checked_callbacks, isolated, log_problem
from psyche_core.sdk.arguments.checks import arguments_known, folder_of, key_given, mapping_of, path_of
from psyche_core.sdk.arguments.held_out import held_out_plugin, registry_with
from psyche_core.sdk.arguments.objects import (
    BackendGiven,
    OptimizerGiven,
    TransportGiven,
    as_plugin,
    module_of,
    with_address,
    with_source,
)
from psyche_core.sdk.arguments.settings import backend_settings_of, embedded_settings, own_key, suggestion
from psyche_core.sdk.event_log import EventLog
from psyche_core.sdk.metrics import Metrics
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.wire.signing import SecretKey

if TYPE_CHECKING:
    import torch

    from psyche_core.sdk.arguments.objects import DataGiven, EvalGiven, ModelGiven


class Client:
    """Takes part in one run while its `async with` block lasts.

    Example:
        async with psyche.Client(coordinator.address, model=module, data=dataset) as client:
            async for event in client.events():
                print(event)

    Problems, their end, and an end without success are also records of the logger "psyche.sdk" (WARNING, ERROR), so they appear
    on standard error unless logging is configured otherwise. The first 8 items of a dataset are checked before the client joins.

    The constructor raises TypeError for objects of the wrong kind and ConfigError for values that break a rule. Later errors end
    the client and are raised by `events`, by `wait` or, at the latest, at the end of the block: BackendError, ModelError,
    DataError, PluginFailed, UserError. Guaranteed: the client never blocks the event loop; at the end of the block it leaves the
    run cleanly, and saves first if there is a checkpoint_dir; after an exception in the block it is cancelled, and does not leave
    cleanly. Not guaranteed: that this client trains a certain share, or that the run continues without it. A client belongs to
    one event loop and is used once; no method is thread-safe.

    model, data, optimizer, transport and backend also take a registration or a plugin's name. The run's configuration decides
    which plugins a run uses. A name given for model, data or optimizer is therefore the expected one: the client does not join a
    run with another. None accepts the run's choice.

    Args:
        address: `Coordinator.address`, or the coordinator's address in its backend's format (`host:port#KEY` for tcp; then
            `run_id` is needed too), or None for a backend that needs no address.
        model: a torch.nn.Module (float32; called with int64 ids (B, T); returns logits (B, T, V), an object with `.logits`, or a
            scalar mean loss in nats), a transformers causal language model, or a function without arguments that makes one of
            these. The client trains it in place, in eval mode; it holds the run's weights when the client has ended. All members
            must start with equal weights.
        data: a map-style dataset whose items are `sequence_length` token ids (or mappings with `input_ids` and perhaps `labels`),
            the same for all members, or a DataProvider.
        eval_data: held-out data of this client alone, of the same types as `data` but not a name. Validated events report the
            mean loss over its first 64 items (`options={"validation_sequences": …}`) before the first step and after each epoch.
        optimizer: a function from a Model to an Optimizer, or an Optimizer.
        transport: a Transport, or a function from a TransportContext.
        backend: a Backend, or a function from a BackendContext.
        callbacks: functions called with each event, in the event loop; must not block. A callback that raises is not called
            again; a Problem event reports it, and training continues.
        checkpoint_dir: folder for checkpoints and journal; if it holds checkpoints of this run, the client continues from them.
            None stores nothing on disk.
        key: our identity, or a file with it; a new one if not given.
        device: auto, cpu, mps, cuda, cuda:N.
        micro_batch_size: sequences per forward pass, or "auto".
        base: folder that the run's relative paths start from; the address's base if not given.
        options: further options of `psyche client train`, by name with underscores, such as {"compute_dtype": "bfloat16"}.
            Those of its screen, event files, figures and trackers are refused: a program has events instead. Environment
            variables are not read.
        backend_options: fields of the backend's own settings.
        plugins: the registry to load plugins from; the installed plugins if not given.
    """

    @arguments_known(suggestion)
    def __init__(
        self,
        address: Address | str | None,
        *,
        run_id: str | None = None,
        model: ModelGiven | None = None,
        data: DataGiven | None = None,
        eval_data: EvalGiven | None = None,
        optimizer: OptimizerGiven | None = None,
        transport: TransportGiven | None = None,
        backend: BackendGiven | None = None,
        callbacks: Iterable[Callback] = (),
        checkpoint_dir: Path | str | None = None,
        key: SecretKey | Path | str | None = None,
        device: str = "auto",
        micro_batch_size: int | Literal["auto"] = 8,
        base: Path | str | None = None,
        options: Mapping[str, Any] | None = None,
        backend_options: Mapping[str, Any] | None = None,
        plugins: PluginRegistry | None = None,
    ) -> None:
        self._callbacks = checked_callbacks(callbacks)
        mapping_of("options", options, of="further settings by name")
        mapping_of("backend_options", backend_options, of="the backend's settings by name")
        folder = folder_of("checkpoint_dir", checkpoint_dir)
        key_given("key", key)
        kinds = {"model": model, "data": data, "optimizer": optimizer, "transport": transport, "backend": backend}
        found = {kind: as_plugin(kind, value) for kind, value in kinds.items()}
        self._held_out = held_out_plugin(eval_data, options or {})
        place = resolve_address(address, run_id, path_of("base", base), found)
        self._hosted_state = address.state if isinstance(address, HostedAddress) else None
        self._objects = {kind: each for kind, each in found.items() if isinstance(each, ObjectPlugin)}
        if place.server is not None:
            self._objects.setdefault("backend", ObjectPlugin(place.server.backend(), "psyche_core"))
            if transport is None:
                self._objects["transport"] = ObjectPlugin(place.server.transport(), "psyche_core")
        elif "backend" in self._objects and place.location:
            self._objects["backend"] = with_address(self._objects["backend"], backend, place.location)
        names = {kind: each for kind, each in found.items() if isinstance(each, str)}
        self._expected = {kind: name for kind, name in names.items() if kind in ("model", "data", "optimizer")}
        self._key = key if isinstance(key, SecretKey) else None
        self._settings: ClientSettings = embedded_settings(
            {
                "run_id": place.run_id,
                "server_addr": (place.location or None) if place.server is None else None,
                "backend": place.backend,
                "transport": names.get("transport"),
                "identity_secret_key_path": Path(key) if isinstance(key, Path | str) else None,
                "checkpoint_dir": folder,
                "device": device,
                "micro_batch_size": micro_batch_size,
                "base": place.base,
            },
            options or {},
        )
        self._backend_options = dict(backend_options or {})
        self._plugins = plugins
        self._known_plugins: PluginRegistry = PluginRegistry(())
        self._model = found["model"]
        self._log: EventLog[telemetry.Event] | None = None
        self._metrics = Metrics()
        self._runtime: ClientRuntime | None = None
        self._bus: EventBus | None = None
        self._last_state: CoordinatorState | None = None
        self._connecting: anyio.CancelScope | None = None
        self._stop_after: int | None = None
        self._paused: anyio.Event | None = None
        self._stopping = False
        self._tasks: TaskGroup | None = None
        self._stack = AsyncExitStack()
        self._over = False
        self._done = False
        self._ended: telemetry.Ended | None = None
        self._failure: BaseException | None = None
        self._raised = False

    @property
    def metrics(self) -> Metrics:
        """Our current figures."""
        return self._metrics

    @property
    def state(self) -> CoordinatorState | None:
        """The newest known state of the coordinator; None before the first one arrives."""
        return self._last_state if self._runtime is None else self._runtime.known_state or self._last_state

    @property
    def model(self) -> torch.nn.Module | None:
        """The torch module being trained, if one was given or built from an argument; else None.

        It holds the run's weights once the client has ended. During training it holds look-ahead weights, which differ from
        them.
        """
        return module_of(self._model)

    async def events(self) -> AsyncIterator[telemetry.Event]:
        """All events from the start until the client has ended. A slow reader gets only the last 4096 waiting events.

        Each call has its own position in the stream. After the last event, raises the error that ended the client, if any.
        Raises RuntimeError outside the block.
        """
        async for event in self._opened().read():
            yield event
        self._raise()

    async def wait(self) -> telemetry.Ended:
        """Wait until the client has ended: the run is finished, or we have left. Raises the error that ended it. Cancel-safe."""
        async for _ in self._opened().read():
            pass
        self._raise()
        if self._ended is None:
            message = "the client was stopped early: its block was cancelled or raised an exception"
            raise PsycheError(message)
        return self._ended

    def stop(self, *, after_step: int | None = None) -> None:
        """Leave the run cleanly, saving first if there is a checkpoint_dir. Returns at once; `wait` waits until it is done.

        after_step: leave once the results of this step are in our weights; None leaves now. Idempotent; call it only from the
        event loop. The run continues with the other members. Raises ValueError for a step below 1.
        """
        if after_step is not None and after_step < 1:
            message = f"after_step must be at least 1, the first step, got {after_step}"
            raise ValueError(message)

        if after_step is not None and self._metrics.applied < after_step:
            self._stop_after = after_step
            return
        self._stopping = True
        if self._paused is not None:
            self._paused.set()
        self._leave()

    def pause(self) -> None:
        """Leave the run cleanly, like `stop`, and stay away until `resume`. The run continues if it has enough members.

        State that only this client has is saved to its checkpoint_dir. Without one, the client restarts from the other members'
        model. An Ended event with the reason `left the run as asked` is reported although the client continues after `resume`;
        `events` and `wait` continue, too. A round whose witnesses have left lasts until the run's max_round_train_time.
        `Coordinator.pause` pauses a run for everybody. Idempotent; returns at once.
        """
        if self._paused is None and not self._stopping:
            self._paused = anyio.Event()
            self._leave()

    def resume(self) -> None:
        """Join again after `pause`, from the next epoch on. Has no effect if not paused; returns at once."""
        if self._paused is not None:
            self._paused.set()

    async def __aenter__(self) -> Self:
        if self._log is not None:
            message = "a Client is used once; make a new one to take part again"
            raise RuntimeError(message)

        self._log = EventLog()
        async with AsyncExitStack() as stack:
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks.start_soon(self._run)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,  # Python's signature
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._tasks is not None
        try:
            if exc is None:
                self.stop()
                async for _ in self._opened().read():
                    pass
        finally:
            self._tasks.cancel_scope.cancel()
            await self._stack.__aexit__(None, None, None)  # so that the block's own exception is not wrapped in a group
        if exc is None and not self._raised:
            self._raise()

    async def _run(self) -> None:
        """Run the client. Errors are kept for readers of events, so that they do not cancel the caller's block."""
        try:
            self._ended = await self._take_part()
        except BaseException as error:
            if isinstance(error, anyio.get_cancelled_exc_class()) or any(
                isinstance(leaf, ENDS_THE_PROGRAM) for leaf in leaf_exceptions(error)
            ):
                raise
            self._failure = cause(next(leaf_exceptions(error)), self._known_plugins.places())
            if not self._done:
                self._report(telemetry.Ended(f"{self._failure}", success=False))
        finally:
            assert self._log is not None
            self._log.close()

    async def _take_part(self) -> telemetry.Ended:
        """Take part until stopped, again after each `resume`.

        A temporary folder holds the files that a model needs besides its checkpoints.
        """
        folder = await anyio.to_thread.run_sync(lambda: TemporaryDirectory(prefix="psyche-model-"))
        try:
            if "model" in self._objects:
                self._objects["model"] = with_source(self._objects["model"], Path(folder.name))
            if self._held_out is not None:
                self._settings = self._settings.model_copy(update={"validation_data": Path(folder.name)})
            return await self._run_until_left()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(folder.cleanup)

    async def _run_until_left(self) -> telemetry.Ended:
        plugins = self._plugins
        if plugins is None:
            plugins = await anyio.to_thread.run_sync(discover_and_tell)
        registry = self._known_plugins = registry_with(
            plugins, self._objects, self._expected, place=self._settings.validation_data, held_out=self._held_out
        )
        backend_settings = await anyio.to_thread.run_sync(
            backend_settings_of, registry, self._settings.backend, self._backend_options
        )
        bus = EventBus(self._note, *(isolated(each, report=self._report) for each in self._callbacks))
        self._bus = bus
        if self._key is None and self._settings.identity_secret_key_path is None:
            self._key = await anyio.to_thread.run_sync(own_key, registry, self._settings, backend_settings)
        while True:
            ended = telemetry.Ended("left before joining the run", success=True)
            with anyio.CancelScope() as self._connecting:
                if self._stopping:
                    self._connecting.cancel()
                over = () if self._hosted_state is None else late_start(self._hosted_state())
                for event in over:
                    self._report(event)
                    if isinstance(event, telemetry.Ended):
                        return event
                ended = await train_client(
                    self._settings, registry, bus, backend_settings=backend_settings, key=self._key, beside=self._beside
                )
            await self._show_weights()
            if self._paused is None:
                return ended

            await self._paused.wait()
            self._paused = None
            if self._stopping:
                return ended

    async def _beside(self, runtime: ClientRuntime) -> None:
        """Keep a reference to a runtime while it runs."""
        self._runtime = runtime
        if self._stopping or self._paused is not None:
            runtime.leave()
        await anyio.sleep_forever()

    def _leave(self) -> None:
        if self._runtime is not None:
            self._runtime.leave()
        elif self._connecting is not None:
            self._connecting.cancel()

    async def _show_weights(self) -> None:
        """Write the run's weights into the module that was given to us, in place of the last look-ahead weights."""
        self._last_state = self.state
        runtime, self._runtime = self._runtime, None
        resources = None if runtime is None else runtime.resources
        if self.model is not None and resources is not None:
            try:
                await anyio.to_thread.run_sync(resources.trainer.load_masters)  # type: ignore[attr-defined]  # of training.trainer
            except Exception as error:
                why = self._known_plugins.explain(error)
                message = f"the run's weights could not be put into the model that was given: {why}"
                raise PluginFailed(message) from error

    def _note(self, event: telemetry.Event) -> None:
        log_problem(event)
        self._metrics = self._metrics.after(event)
        if self._log is not None:
            self._log.put(event)
        self._done = isinstance(event, telemetry.Ended)
        if isinstance(event, telemetry.StepApplied) and self._stop_after is not None and event.step >= self._stop_after:
            self.stop()

    def _report(self, event: telemetry.Event) -> None:
        """Pass an event to the log, and to the callbacks once they are known."""
        (self._note if self._bus is None else self._bus)(event)

    def _opened(self) -> EventLog[telemetry.Event]:
        if self._log is None:
            message = "the client has not started; use it inside `async with psyche.Client(…) as client:`"
            raise RuntimeError(message)
        return self._log

    def _raise(self) -> None:
        if self._failure is not None:
            self._raised = True
            raise self._failure
