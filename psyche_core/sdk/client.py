"""A member of a run in a program: joins, trains, tells what happens, and leaves in order."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from pydantic import BaseModel

from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.client.setup.assemble import train_client
from psyche_core.config.settings import ClientSettings, load_settings
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import ConfigError
from psyche_core.plugin_faults import brief, leaves
from psyche_core.plugin_objects import Given, RegistryWithObjects
from psyche_core.plugins import PluginRegistry
from psyche_core.sdk.address import Address
from psyche_core.sdk.held_out import RegistryWithHeldOut
from psyche_core.sdk.log import EventLog
from psyche_core.sdk.metrics import Metrics
from psyche_core.sdk.objects import BackendGiven, OptimizerGiven, TransportGiven, given, module_of, with_address, with_source
from psyche_core.sdk.settings import embedded_settings
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.wire.signing import SecretKey

if TYPE_CHECKING:
    import torch

    from psyche_core.sdk.objects import DataGiven, EvalGiven, ModelGiven

logger = logging.getLogger("psyche.sdk")

Callback = Callable[[telemetry.Event], None]


class Client:
    """Takes part in one run while its `async with` block lasts.

    Example:
        async with psyche.Client(coordinator.address, model=module, data=dataset) as client:
            async for event in client.events():
                print(event)

    address: `Coordinator.address`, or where the coordinator is as its backend says it (`host:port#KEY` for tcp; then `run_id` is
    needed too), or None for a backend that needs no address.

    model: a torch.nn.Module (float32; called with int64 ids (B, T); answers with logits (B, T, V), an object with `.logits`, or a
    scalar mean loss in nats), a transformers causal language model, or a function without arguments that makes one. It is trained
    in place, in eval mode, and holds the run's weights when the client has ended. All members must bring equal first weights.
    data: a map-style dataset whose items are `sequence_length` token ids (or mappings with `input_ids` and perhaps `labels`), the
    same for all members, or a DataProvider. eval_data: held-out data of this client alone, as `data` but no name; the mean loss
    over its first 64 items (`options={"validation_sequences": …}`) is told as Validated events, before the first step and after
    each epoch. optimizer: a function from a Model to an Optimizer, or an Optimizer. transport,
    backend: objects of the interfaces, or functions from their contexts. Each also takes a registration, or a plugin's name: the
    run's configuration decides which plugins a run has, so a name of model, data or optimizer is what we expect there, and
    another one in the run is refused. None follows the run.

    callbacks: functions called with each event, in the event loop; must not block. One that raises is not called again, and a
    Problem event tells of it; training goes on. checkpoint_dir: folder for checkpoints and journal; where it holds some of this
    run, the client goes on from there. None keeps nothing on disk. key: our identity, or a file with it; a new one when not
    given. device: auto, cpu, mps, cuda, cuda:N. micro_batch_size: sequences per forward pass, or "auto". base: folder that
    relative paths of the run start from; the address's when not given. options: further fields of `psyche client train`, by
    name with underscores, such as {"compute_dtype": "bfloat16"}; environment variables are not read. backend_options: fields
    of the backend's own settings. plugins: where plugins come from; those installed here when not given.

    Raises at once TypeError for objects of the wrong kind and ConfigError for values that break a rule. What goes wrong later
    ends the client and is raised by `events`, `wait` or, at the latest, when the block ends: BackendError, ModelError, DataError,
    PluginFailed, UserError. Guaranteed: nothing of it blocks the event loop; leaving the block leaves the run in order, and saves
    first where there is a checkpoint_dir; an exception in the block leaves without ceremony. Not guaranteed: that this client
    trains a certain share, or that the run goes on without it. One event loop, one use; no method is thread-safe.
    """

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
        self._callbacks = tuple(_checked_callback(each) for each in callbacks)
        kinds = {"model": model, "data": data, "optimizer": optimizer, "transport": transport, "backend": backend}
        found = {kind: given(kind, value) for kind, value in kinds.items()}
        self._held_out = _held_out(eval_data, options or {})
        place = _place(address, run_id, base, found)
        self._objects = {kind: each for kind, each in found.items() if isinstance(each, Given)}
        if place.server is not None:
            self._objects.setdefault("backend", Given(place.server.backend(), "psyche_core"))
            if transport is None:
                self._objects["transport"] = Given(place.server.transport(), "psyche_core")
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
                "checkpoint_dir": None if checkpoint_dir is None else Path(checkpoint_dir),
                "device": device,
                "micro_batch_size": micro_batch_size,
                "base": place.base,
            },
            options or {},
        )
        self._backend_options = dict(backend_options or {})
        self._plugins = plugins
        self._model = found["model"]
        self._log: EventLog[telemetry.Event] | None = None
        self._metrics = Metrics()
        self._runtime: ClientRuntime | None = None
        self._bus: EventBus | None = None
        self._last_state: CoordinatorState | None = None
        self._connecting: anyio.CancelScope | None = None
        self._stop_after: int | None = None
        self._away: anyio.Event | None = None
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
        """Our figures now."""
        return self._metrics

    @property
    def state(self) -> CoordinatorState | None:
        """The newest state of the coordinator that we know; None before the first."""
        return self._last_state if self._runtime is None else self._runtime.known_state or self._last_state

    @property
    def model(self) -> torch.nn.Module | None:
        """The torch module that is trained, where one was given or made here; else None.

        It holds the run's weights once the client has ended, and others, look-ahead weights, while it trains.
        """
        return module_of(self._model)

    async def events(self) -> AsyncIterator[telemetry.Event]:
        """What happens, from the start (of long waits the last 4096 events) until the client has ended.

        Each call reads for itself. Raises what ended the client, after the last event. Raises RuntimeError outside the block.
        """
        async for event in self._opened().read():
            yield event
        self._raise()

    async def wait(self) -> telemetry.Ended:
        """Wait until the client has ended: the run is finished, or we have left. Raises what ended it. Cancel-safe."""
        async for _ in self._opened().read():
            pass
        self._raise()
        assert self._ended is not None
        return self._ended

    def stop(self, *, after_step: int | None = None) -> None:
        """Leave the run in order, saving first where there is a checkpoint_dir. Returns at once; `wait` waits for it.

        after_step: once the results of this step are in our weights; now when not given. Idempotent; from the event loop only.
        The run goes on with the other members. Raises ValueError for a step below 1.
        """
        if after_step is not None and after_step < 1:
            message = f"after_step must be at least 1, the first step, got {after_step}"
            raise ValueError(message)

        if after_step is not None and self._metrics.applied < after_step:
            self._stop_after = after_step
            return
        self._stopping = True
        if self._away is not None:
            self._away.set()
        self._leave()

    def pause(self) -> None:
        """Leave the run in order, as `stop`, and stay away until `resume`. The run goes on, where it has enough members.

        What only this client had is saved to its checkpoint_dir; without one it begins anew from the other members' model.
        `Coordinator.pause` pauses a run for everybody. Idempotent; returns at once.
        """
        if self._away is None and not self._stopping:
            self._away = anyio.Event()
            self._leave()

    def resume(self) -> None:
        """Join again after `pause`: take part from the next epoch on. Without effect otherwise; returns at once."""
        if self._away is not None:
            self._away.set()

    async def __aenter__(self) -> Self:
        if self._log is not None:
            message = "a Client is used once; make a new one to take part again"
            raise RuntimeError(message)

        self._log = EventLog()
        async with AsyncExitStack() as stack:
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks.start_soon(self._live)
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
            await self._stack.__aexit__(None, None, None)  # so that no group is made of the block's own exception
        if exc is None and not self._raised:
            self._raise()

    async def _live(self) -> None:
        """All of it; what goes wrong is kept for who reads, in place of tearing down the caller's block."""
        try:
            self._ended = await self._take_part()
        except Exception as error:
            self._failure = next(leaves(error))
            if not self._done:
                self._tell(telemetry.Ended(f"{self._failure}", success=False))
        finally:
            assert self._log is not None
            self._log.close()

    async def _take_part(self) -> telemetry.Ended:
        """One life after the other, with a folder for what a model needs beside its checkpoints."""
        folder = await anyio.to_thread.run_sync(lambda: TemporaryDirectory(prefix="psyche-model-"))
        try:
            if "model" in self._objects:
                self._objects["model"] = with_source(self._objects["model"], Path(folder.name))
            if self._held_out is not None:
                self._settings = self._settings.model_copy(update={"validation_data": Path(folder.name)})
            return await self._live_on()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(folder.cleanup)

    async def _live_on(self) -> telemetry.Ended:
        plugins = self._plugins
        if plugins is None:
            plugins = await anyio.to_thread.run_sync(lambda: PluginRegistry.discover())
        registry = self._registry(plugins)
        backend_settings = await anyio.to_thread.run_sync(self._backend_settings, registry)
        bus = EventBus(self._note, *map(self._shielded, self._callbacks))
        self._bus = bus
        if self._key is None and self._settings.identity_secret_key_path is None:
            self._key = await anyio.to_thread.run_sync(_own_key, registry, self._settings, backend_settings)
        while True:
            ended = telemetry.Ended("left before the run was joined", success=True)
            with anyio.CancelScope() as self._connecting:
                if self._stopping:
                    self._connecting.cancel()
                ended = await train_client(
                    self._settings, registry, bus, backend_settings=backend_settings, key=self._key, beside=self._beside
                )
            await self._show_weights()
            if self._away is None:
                return ended

            await self._away.wait()
            self._away = None
            if self._stopping:
                return ended

    async def _beside(self, runtime: ClientRuntime) -> None:
        """Hold on to a runtime while it lives."""
        self._runtime = runtime
        if self._stopping or self._away is not None:
            runtime.leave()
        await anyio.sleep_forever()

    def _leave(self) -> None:
        if self._runtime is not None:
            self._runtime.leave()
        elif self._connecting is not None:
            self._connecting.cancel()

    async def _show_weights(self) -> None:
        """Give the module that was handed to us the run's weights, in place of those that were trained at last."""
        self._last_state = self.state
        runtime, self._runtime = self._runtime, None
        resources = None if runtime is None else runtime.resources
        if self.model is not None and resources is not None:
            await anyio.to_thread.run_sync(resources.trainer.load_masters)  # type: ignore[attr-defined]  # of training.trainer

    def _note(self, event: telemetry.Event) -> None:
        self._metrics = self._metrics.after(event)
        if self._log is not None:
            self._log.put(event)
        self._done = isinstance(event, telemetry.Ended)
        if isinstance(event, telemetry.StepApplied) and self._stop_after is not None and event.step >= self._stop_after:
            self.stop()

    def _tell(self, event: telemetry.Event) -> None:
        """To the callbacks too, once there are any."""
        (self._note if self._bus is None else self._bus)(event)

    def _shielded(self, callback: Callback) -> Callback:
        """A callback that is called until it raises, which is told."""
        broken = False

        def call(event: telemetry.Event) -> None:
            nonlocal broken
            if broken:
                return
            try:
                callback(event)
            except Exception as error:  # a program's own display must not stop training
                broken = True
                name = getattr(callback, "__qualname__", type(callback).__name__)
                logger.warning("a callback failed", exc_info=error)
                sentence = f"the callback {name} failed with {brief(error)}; it is not called again, training goes on"
                self._tell(telemetry.Problem("warning", sentence))

        return call

    def _registry(self, plugins: PluginRegistry) -> RegistryWithObjects:
        place = self._settings.validation_data
        if place is None:
            return RegistryWithObjects(plugins, objects=self._objects, expected=self._expected)
        return RegistryWithHeldOut(plugins, objects=self._objects, expected=self._expected, place=place, held_out=self._held_out)

    def _backend_settings(self, registry: RegistryWithObjects) -> BaseModel | None:
        cls = registry.load("backend", self._settings.backend).settings
        if cls is None and self._backend_options:
            message = f"the backend {self._settings.backend} has no options of its own, got {', '.join(self._backend_options)}"
            raise ConfigError(message)
        return None if cls is None else load_settings(cls, self._backend_options)

    def _opened(self) -> EventLog[telemetry.Event]:
        if self._log is None:
            message = "the client has not begun; use it inside `async with psyche.Client(…) as client:`"
            raise RuntimeError(message)
        return self._log

    def _raise(self) -> None:
        if self._failure is not None:
            self._raised = True
            raise self._failure


def _checked_callback(callback: object) -> Callback:
    if not callable(callback):
        message = f"callbacks= takes functions of one event, got a {type(callback).__name__}"
        raise TypeError(message)
    if inspect.iscoroutinefunction(callback):
        message = "callbacks= takes plain functions, got an async one; use `async for event in client.events()` for that"
        raise TypeError(message)
    return callback


def _held_out(value: object, options: Mapping[str, Any]) -> Given | None:
    """A registration for `eval_data`. Raises TypeError, ConfigError."""
    if isinstance(value, str):
        message = f"eval_data= takes objects, got a text; for token files, options={{'validation_data': {value!r}}}"
        raise TypeError(message)
    found = given("data", value, argument="eval_data")
    if found is not None and "validation_data" in options:
        message = "eval_data= and options={'validation_data': …} both say what is held out; leave one out"
        raise ConfigError(message)
    assert not isinstance(found, str)
    return found


def _place(address: object, run_id: str | None, base: Path | str | None, found: Mapping[str, Given | str | None]) -> Address:
    """Where we connect to. Raises TypeError, ConfigError."""
    if isinstance(address, Address):
        if run_id is not None and run_id != address.run_id:
            message = f"run_id={run_id!r} is not the run of the address, {address.run_id!r}; leave it out"
            raise ConfigError(message)
        folder = address.base if base is None else Path(base)
        return Address(
            run_id=address.run_id, backend=address.backend, location=address.location, base=folder, server=address.server
        )

    if not isinstance(address, str | None):
        message = (
            f"a Client takes Coordinator.address, or a text such as 'host:port#KEY' with run_id=, got a {type(address).__name__}"
        )
        raise TypeError(message)
    if run_id is None:
        message = "run_id= is needed to join a run by the text of its address; it must be the one that the coordinator hosts"
        raise ConfigError(message)

    backend = found["backend"]
    name = backend if isinstance(backend, str) else "tcp" if backend is None else backend.registration.name
    return Address(run_id=run_id, backend=name, location=address or "", base=Path(base or ""))


def _own_key(registry: RegistryWithObjects, settings: ClientSettings, backend_settings: BaseModel | None) -> SecretKey:
    """One key for all our lives: what the backend makes of its settings, else a new one."""
    make = registry.load("backend", settings.backend).transport_key
    key: SecretKey = SecretKey.generate() if make is None else make(settings.run_id, backend_settings)
    return key
