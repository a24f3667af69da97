"""Opens a client's model and optimizer for a run's state: finds the weights, and restores from our disk.

Blocking code for a worker thread. Data and held-out data are opened in `resources_builder`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.from_thread
import anyio.to_thread

from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.machine.rounds.settled_rounds import first_conflicting_step
from psyche_core.client.runtime.journal_history import signed_ends
from psyche_core.client.runtime.resources import ResourcesRequest
from psyche_core.client.runtime.restoring import ReplayFailed, Restorer
from psyche_core.client.setup.parallelism import parallelism_of
from psyche_core.client.setup.preflight import expect_device
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.run_config import Choice, LLMConfig
from psyche_core.coordinator.checkpoints import loaded_from_hub
from psyche_core.coordinator.learning_rate import cold_start_bounds
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import ModelError
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener
from psyche_core.storage.scratch import default_folder
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.training.checkpoints.initial_model import NoModelSource, Origin

if TYPE_CHECKING:
    from psyche_core.training.trainer import Trainer


def cache_folder(settings: ClientSettings) -> Path:
    """Return the folder for files that can be fetched again."""
    return settings.cache_dir or default_folder()


class ModelOpener:
    """Opens the model of one client, any number of times; only the newest one is in memory.

    latest: returns the newest state, needed for the epoch's cold start whenever a learning rate is computed. restorer: the
    client's checkpoints and journal; None: the client keeps neither. stores: opens stores of models. All methods but `aclose` run
    in a worker thread.
    """

    def __init__(
        self,
        settings: ClientSettings,
        registry: PluginRegistry,
        *,
        latest: Callable[[], CoordinatorState],
        report: EventBus,
        restorer: Restorer | None,
        stores: StoreOpener,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._latest = latest
        self._report = report
        self._restorer = restorer
        self._stores = stores
        self._parallelism = parallelism_of(settings)
        self._micro_batch_size: int | Literal["auto"] = settings.micro_batch_size
        self._resumed: telemetry.Resumed | None = None
        self._newest: Trainer | None = None

    async def aclose(self) -> None:
        """Close the newest model, even if this task is cancelled."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._close_newest)

    def check(self, state: CoordinatorState) -> None:
        """Check this machine for problems without opening the model. Raises PluginError, NoSuchDevice, ConfigError."""
        self._expect_plugins(state.model.LLM)
        expect_device(self._settings)
        if self._restorer is not None:
            self._restorer.lock_folder(state.run_id)

    def open(self, request: ResourcesRequest, *, use_journal: bool = True) -> tuple[Trainer, Origin]:
        """Return the trainer and where its master weights come from. use_journal: False after a journal could not be replayed.

        Raises UserError, ModelError and PluginError for what prevents it.
        """
        from psyche_core.training.checkpoints.private_state import private_path  # imports torch, which takes seconds

        state = request.state
        self._expect_plugins(state.model.LLM)
        if self._restorer is not None and request.folder is None and use_journal:
            self._restorer.look_back(state)
        origin = self._find_model(request)
        trainer = self._build(state, origin.folder)
        if origin.step is not None and self._settings.checkpoint_dir is not None:
            try:
                trainer.load_private(private_path(self._settings.checkpoint_dir, state.run_id))
            except ModelError as error:
                self._warn(f"{error}; training goes on without it")
        if self._restorer is None or request.folder is not None:
            return trainer, origin

        try:
            step = self._restorer.restore(trainer, state, step=origin.step, use_journal=use_journal and not request.fresh)
        except ReplayFailed as error:
            self._warn(f"{error}; going on from the checkpoint before it")
            return self.open(request, use_journal=False)

        if not request.fresh:
            self._report_resumed(state, checkpoint=origin.step, step=step)
        return trainer, replace(origin, step=step)

    def _build(self, state: CoordinatorState, folder: Path) -> Trainer:
        """Build the trainer with the weights in a folder, after closing the one before."""
        import torch  # slow import: in the worker thread, not at program start

        from psyche_core.training.build import Compute, build_trainer

        settings = self._settings
        if settings.torch_threads is not None:
            torch.set_num_threads(settings.torch_threads)
        self._close_newest()
        trainer = self._newest = build_trainer(
            registry_load=self._registry.load,
            model_config=state.model,
            run_id=state.run_id,
            compute=Compute(
                device=settings.device,
                dtype=settings.compute_dtype,
                attention=settings.attention,
                gradient_checkpointing=settings.gradient_checkpointing,
                micro_batch_size=self._micro_batch_size,
                parallelism=self._parallelism,
                notice=self._warn,
            ),
            source=folder,
            cold_start_bounds=lambda: cold_start_bounds(self._latest()),
            checked=state.config.verification_percent > 0,
        )
        if self._micro_batch_size == "auto":  # searched once: when the model is rebuilt, the old one still uses memory
            self._micro_batch_size = trainer.micro_batch_size
            self._report_from_thread(telemetry.MicroBatchFound(trainer.micro_batch_size))
        return trainer

    def _close_newest(self) -> None:
        """Close the group of processes that share the model; there is one at a time."""
        former, self._newest = self._newest, None
        if former is not None:
            former.close()

    def _find_model(self, request: ResourcesRequest) -> Origin:
        """Return where the weights are: another member's model in a folder, our disk, or the place that the run names."""
        if request.folder is not None:
            return Origin(request.folder)

        source = self._registry.load("model", request.state.model.LLM.architecture).source
        if source is not None:
            return self._find_origin(request, source=source)
        try:
            return self._find_origin(request)
        except NoModelSource:
            if self._restorer is None:
                raise
            if not self._restorer.reaches_stored(request.state):
                self._report_resumed(request.state, checkpoint=None, step=None)
                raise
            state = replace(request.state, model=loaded_from_hub(request.state.model))
            return self._find_origin(replace(request, state=state))

    def _find_origin(self, request: ResourcesRequest, *, source: Path | None = None) -> Origin:
        """Find the weights. source: a folder to use instead of the run's checkpoint, for a model with its own first weights."""
        from psyche_core.training.checkpoints.initial_model import FROM_MEMBERS, find_origin

        checkpoint = request.state.model.LLM.checkpoint
        if source is not None:
            checkpoint = Choice("P2P" if checkpoint.name in FROM_MEMBERS else "Hub", {"repo_id": str(source.absolute())})
        return find_origin(
            checkpoint,
            run_id=request.state.run_id,
            instance=request.state.instance,
            base=self._settings.base,
            cache=cache_folder(self._settings),
            own=self._settings.checkpoint_dir,
            at_most=masters_due(request.state),
            fresh=request.fresh,
            generation=request.state.generation,
            ends=signed_ends(request.state),
            stored_step=request.state.stored.step if source is None or checkpoint.name not in FROM_MEMBERS else None,
            journal_base=None if self._restorer is None else self._restorer.base_of_history(request.state),
            conflicts=lambda decision: first_conflicting_step(request.state, (decision,)) is not None,
            report=self._warn,
            open_store=self._stores,
            proceed=anyio.from_thread.check_cancelled,
        )

    def _expect_plugins(self, llm: LLMConfig) -> None:
        """Report missing plugins before anything is fetched. Raises PluginError."""
        needed = [("model", llm.architecture), ("optimizer", llm.optimizer.name), ("data", llm.data_location.name)]
        if self._parallelism is not None:
            needed.append(("sharding", self._parallelism.sharding))
        for kind, name in needed:
            self._registry.load(kind, name)

    def _report_resumed(self, state: CoordinatorState, *, checkpoint: int | None, step: int | None) -> None:
        """Report from where we resume, the same only once. A new run has nothing to resume from."""
        due = masters_due(state)
        found = telemetry.Resumed(str(self._settings.checkpoint_dir), checkpoint, step, due)
        if due > 0 and found != self._resumed:
            again = self._resumed is not None
            self._resumed = found
            self._report_from_thread(replace(found, again=again))

    def _warn(self, sentence: str) -> None:
        self._report_from_thread(telemetry.Problem("warning", sentence))

    def _report_from_thread(self, event: telemetry.Event) -> None:
        anyio.from_thread.run_sync(self._report, event)
