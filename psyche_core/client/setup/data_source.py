"""Opens a run's data provider by name, and reads the first samples of held-out data and of datasets given as objects."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio.to_thread
import numpy as np

from psyche_core.client.runtime.sample_checks import READ_TIMEOUT, check_announced, read_samples
from psyche_core.config.run_config import Choice
from psyche_core.data.sequences import SequenceData
from psyche_core.errors import ConfigError, DataError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import Samples
from psyche_core.plugins import PluginRegistry, validate_settings
from psyche_core.types import BatchId
from psyche_core.wire.signing import SecretKey

LOOKED_AT = 8
"""How many items of a dataset object are checked before the client joins; reading them may take time."""


async def data_source(
    registry: PluginRegistry, choice: Choice, *, sequence_length: int, key: SecretKey, base: Path, cache: Path
) -> AbstractAsyncContextManager[DataProvider]:
    """Return the provider that a `data_location` names; the caller enters it.

    sequence_length: tokens of a sample. base: folder that relative locations start from. cache: for what can be fetched again.
    Raises PluginError for an unknown name, ConfigError for settings that the plugin rejects.
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
    """Return the data location of held-out token files on this machine."""
    return Choice("Local", {"location": str(path.absolute()), "token_size": token_size})


async def first_samples(
    provider: DataProvider, count: int, *, sequence_length: int, name: str, vocab_size: int | None = None
) -> Samples:
    """Return the first `count` samples, or all if there are fewer; see `read_samples`. Raises ConfigError if there is none."""
    if provider.num_sequences == 0:
        message = "the validation data holds no whole sequence; add text, or choose a smaller max_seq_len"
        raise ConfigError(message)

    check_announced(provider, sequence_length=sequence_length, name=name)
    wanted = [BatchId(0, min(count, provider.num_sequences) - 1)]
    return await read_samples(
        provider, wanted, sequence_length=sequence_length, vocab_size=vocab_size, name=name, timeout=READ_TIMEOUT
    )


async def first_items(provider: DataProvider, *, sequence_length: int, name: str) -> Samples | None:
    """Return the first items of a dataset object, None for any other provider. Raises DataError if they cannot be used."""
    if not isinstance(provider, SequenceData):
        return None
    return await first_samples(provider, LOOKED_AT, sequence_length=sequence_length, name=name)


def check_vocabulary(items: Samples | None, vocab_size: int) -> None:
    """Check that the model knows the token ids of a dataset's first items. Raises DataError."""
    if items is None:
        return

    ids = np.frombuffer(items.tokens, f"<u{items.token_size}").reshape(items.count, items.sequence_length)
    for number, largest in enumerate(ids.max(axis=1)):
        if largest >= vocab_size:
            message = (
                f"item {number} of the dataset holds token id {largest}, outside the model's vocabulary of {vocab_size}; "
                "was the data made for this model?"
            )
            raise DataError(message)
