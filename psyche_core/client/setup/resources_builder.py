"""Opens what a client trains with, for a run's state: model and optimizer, data, held-out data.

`model_opener` opens the model. Data is opened once and used again when the model is opened again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.runtime.reports.result_files import ResultFiles
from psyche_core.client.runtime.reports.step_observer import StepObserver
from psyche_core.client.runtime.resources import Resources, ResourcesRequest
from psyche_core.client.runtime.restoring import Restorer
from psyche_core.client.runtime.sample_checks import check_announced, check_token_ids
from psyche_core.client.setup.data_source import (
    check_vocabulary,
    data_source,
    first_items,
    first_samples,
    held_out_place,
)
from psyche_core.client.setup.model_opener import ModelOpener, cache_folder
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.run_config import Choice, LLMConfig
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import Samples
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener
from psyche_core.telemetry.sinks import EventBus
from psyche_core.wire.signing import SecretKey

if TYPE_CHECKING:
    from psyche_core.training.trainer import Trainer


class ResourcesBuilder:
    """Opens the resources of one client. Calling it opens all of them for a state; `check` opens all but the model.

    key: our transport's; a run's data server is asked with it. stack: closes what is opened here. latest: returns the newest
    state, needed for the epoch's cold start whenever a learning rate is computed. restorer: the client's checkpoints and journal,
    which the caller closes; None: the client keeps neither. stores: opens stores of models. Raises ConfigError for settings that
    contradict each other.
    """

    def __init__(
        self,
        settings: ClientSettings,
        registry: PluginRegistry,
        *,
        key: SecretKey,
        stack: AsyncExitStack,
        latest: Callable[[], CoordinatorState],
        report: EventBus,
        restorer: Restorer | None,
        stores: StoreOpener,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._key = key
        self._stack = stack
        self._restorer = restorer
        self._model = ModelOpener(settings, registry, latest=latest, report=report, restorer=restorer, stores=stores)
        stack.push_async_callback(self._model.aclose)
        self._opened: dict[tuple[Choice, int], DataProvider] = {}
        self._validation: Samples | None = None
        self._first_items: Samples | None = None
        self._files: ResultFiles | None = None
        if settings.write_gradients_dir is not None or settings.write_distro_data is not None:
            member = key.public.hex()
            self._files = ResultFiles(
                report, member=member, own=settings.write_gradients_dir, accepted=settings.write_distro_data
            )
            stack.push_async_callback(self._close_files, self._files)

    async def check(self, state: CoordinatorState) -> None:
        """Check this machine and the data before the client joins a run with this state. Raises the errors of opening them."""
        llm = state.model.LLM
        await anyio.to_thread.run_sync(self._model.check, state)
        await self._look_at_items(await self._provider(llm.data_location, llm), llm)
        await self._held_out(llm)

    async def __call__(self, request: ResourcesRequest) -> Resources:
        """Open everything. Raises UserError, ModelError, DataError and PluginError for what prevents it."""
        llm = request.state.model.LLM
        trainer, origin = await anyio.to_thread.run_sync(self._model.open, request)
        data = await self._provider(llm.data_location, llm)
        check_vocabulary(await self._look_at_items(data, llm), trainer.vocab_size)
        return Resources(
            trainer,
            data,
            validation=await self._held_out(llm, trainer.vocab_size),
            checkpoints=self._settings.checkpoint_dir,
            keep_checkpoints=self._keeper(request.state.run_id),
            step=origin.step,
            stored_step=origin.stored_step,
            journal=None if self._restorer is None else self._restorer.journal,
            published=self._settings.publish_journal,
            held=await self._held_ends(request.state, origin.step),
            optimizer_name=self._registry.label("optimizer", llm.optimizer.name),
            data_name=self._called(llm.data_location),
            training_delay=self._settings.dummy_training_delay_secs,
            observer=self._observer(trainer),
        )

    def _observer(self, trainer: Trainer) -> StepObserver:
        every = self._settings.optim_stats_steps
        return StepObserver(files=self._files, statistics=None if every is None else trainer.update_statistics(every=every))

    @staticmethod
    async def _close_files(files: ResultFiles) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(files.close)
        files.tell()

    async def _provider(self, choice: Choice, llm: LLMConfig) -> DataProvider:
        """Return the entered provider of a data location. It is opened once, even if the model is opened again."""
        known = self._opened.get((choice, llm.max_seq_len))
        if known is None:
            source = await data_source(
                self._registry,
                choice,
                sequence_length=llm.max_seq_len,
                key=self._key,
                base=self._settings.base,
                cache=cache_folder(self._settings) / "data",
            )
            known = self._opened[choice, llm.max_seq_len] = await self._stack.enter_async_context(source)
            check_announced(known, sequence_length=llm.max_seq_len, name=self._called(choice))
        return known

    def _called(self, choice: Choice) -> str:
        return self._registry.label_of_location(choice.name, choice.settings)

    async def _held_out(self, llm: LLMConfig, vocab_size: int | None = None) -> Samples | None:
        """Return the samples of --validation-data, read once. vocab_size: None as long as the model is not open."""
        settings = self._settings
        if settings.validation_data is None:
            return None

        place = held_out_place(settings.validation_data, settings.validation_token_size)
        if self._validation is None:
            self._validation = await first_samples(
                await self._provider(place, llm),
                settings.validation_sequences,
                sequence_length=llm.max_seq_len,
                name=self._called(place),
            )
        if vocab_size is not None:
            check_token_ids(self._validation, vocab_size, name=self._called(place))
        return self._validation

    async def _look_at_items(self, data: DataProvider, llm: LLMConfig) -> Samples | None:
        """Return the first items of a dataset object, read once, so that errors in them are found before a round waits."""
        if self._first_items is None:
            name = self._called(llm.data_location)
            self._first_items = await first_items(data, sequence_length=llm.max_seq_len, name=name)
        return self._first_items

    async def _held_ends(self, state: CoordinatorState, step: int | None) -> tuple[tuple[int, bytes], ...]:
        """Return the signed ends on our disk.

        They are searched for only if the master weights are not up to date or nobody signed them: it reads whole checkpoints.
        """
        due = masters_due(state)
        signed = any(end.step == due for end in state.ends)
        if self._restorer is None or (step is not None and step >= due and signed):
            return ()

        return await anyio.to_thread.run_sync(self._restorer.held, state)

    def _keeper(self, run_id: str) -> Callable[[Path], None]:
        """Return a function that deletes the oldest checkpoints after a new one."""
        keep_steps = self._settings.keep_steps

        def keep(directory: Path) -> None:
            from psyche_core.training.checkpoints.checkpoint import keep_last  # imports torch, which takes seconds

            keep_last(directory.parent, run_id, keep_steps)

        return keep
