"""A run's data provider by its name, and the first samples of held-out data."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio.to_thread

from psyche_core.errors import ConfigError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import Samples
from psyche_core.plugins import PluginRegistry, validate_settings
from psyche_core.run_config import Choice
from psyche_core.types import BatchId
from psyche_core.wire.signing import SecretKey

READ_TIMEOUT = 60.0


async def data_source(
    registry: PluginRegistry, choice: Choice, *, sequence_length: int, key: SecretKey, base: Path, cache: Path
) -> AbstractAsyncContextManager[DataProvider]:
    """The provider that a `data_location` names, to be entered.

    sequence_length: tokens of a sample. base: folder that relative locations start from. cache: for what can be had again.
    Raises PluginError for a name nobody has, ConfigError for settings its plugin refuses.
    """

    def create(choice: Choice, *, others: bool) -> DataProvider:
        registration = registry.load("data", choice.name)
        context = DataContext(
            settings=validate_settings(registration, choice.settings, where=f"model.LLM.data_location.{choice.name}"),
            sequence_length=sequence_length,
            key=key,
            base=base,
            cache=cache,
            provider=(lambda name, settings: create(Choice(name, settings), others=False)) if others else None,
        )
        return registration.create(context)

    return await anyio.to_thread.run_sync(lambda: create(choice, others=True))


def held_out_place(path: Path, token_size: str) -> Choice:
    """Held-out token files of this machine as a data location."""
    return Choice("Local", {"location": str(path.absolute()), "token_size": token_size})


async def first_samples(provider: DataProvider, count: int) -> Samples:
    """The first `count` samples, or all where there are fewer. Raises ConfigError where there is none."""
    if provider.num_sequences < 1:
        message = "the validation data holds no whole sequence"
        raise ConfigError(message)

    return await provider.read([BatchId(0, min(count, provider.num_sequences) - 1)], timeout=READ_TIMEOUT)
