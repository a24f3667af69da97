"""Makes a run's data provider by name, and reads the first samples of held-out data and of datasets given as objects."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio.to_thread
import numpy as np

from psyche_core.config.run_config import Choice
from psyche_core.data.sequences import SequenceData
from psyche_core.errors import ConfigError, DataError, PsycheError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import Samples
from psyche_core.plugin_faults import brief
from psyche_core.plugins import PluginRegistry, validate_settings
from psyche_core.types import BatchId
from psyche_core.wire.signing import SecretKey

READ_TIMEOUT = 60.0
LOOKED_AT = 8
"""Items of a dataset given as an object that are looked at before the run is joined; reading them may take time."""


async def data_source(
    registry: PluginRegistry, choice: Choice, *, sequence_length: int, key: SecretKey, base: Path, cache: Path
) -> AbstractAsyncContextManager[DataProvider]:
    """The provider that a `data_location` names, to be entered.

    sequence_length: tokens of a sample. base: folder that relative locations start from. cache: for what can be fetched again.
    Raises PluginError for an unknown name, ConfigError for settings that its plugin rejects.
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
    """Held-out token files on this machine as a data location."""
    return Choice("Local", {"location": str(path.absolute()), "token_size": token_size})


async def first_samples(provider: DataProvider, count: int, *, sequence_length: int, name: str = "the data provider") -> Samples:
    """The first `count` samples, or all if there are fewer; see `read_samples`. Raises ConfigError if there is none."""
    if provider.num_sequences < 1:
        message = "the validation data holds no whole sequence"
        raise ConfigError(message)

    wanted = [BatchId(0, min(count, provider.num_sequences) - 1)]
    return await read_samples(provider, wanted, sequence_length=sequence_length, name=name, timeout=READ_TIMEOUT)


def check_announced(provider: DataProvider, *, sequence_length: int, name: str) -> None:
    """Check that an entered provider has sequences of this run's length. Raises DataError."""
    if provider.sequence_length != sequence_length:
        message = (
            f"{name} says that its sequences have {provider.sequence_length} tokens, those of this run have {sequence_length}"
        )
        raise DataError(message)


async def first_items(provider: DataProvider, *, sequence_length: int, name: str) -> Samples | None:
    """The first items of a dataset given as an object, None for any other provider. Raises DataError for one of no use."""
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


async def read_samples(
    provider: DataProvider,
    batches: Sequence[BatchId],
    *,
    sequence_length: int,
    name: str = "the data provider",
    timeout: float = READ_TIMEOUT,
) -> Samples:
    """Read samples and check that they match the request, because a provider may be third-party code.

    sequence_length: tokens of a sample in this run. name: of the provider's plugin in messages. Raises DataError for a provider
    that breaks its contract, whatever it raised, and TimeoutError.
    """
    try:
        check_announced(provider, sequence_length=sequence_length, name=name)
        samples = await provider.read(batches, timeout=timeout)
        wrong = _what_is_wrong(samples, count=sum(map(len, batches)), sequence_length=sequence_length)
    except (PsycheError, TimeoutError):
        raise
    except Exception as error:
        message = f"{name} failed with {brief(error)}"
        raise DataError(message) from error

    if wrong is not None:
        message = f"{name} {wrong}; it cannot be trained on"
        raise DataError(message)
    return samples


def _what_is_wrong(samples: object, *, count: int, sequence_length: int) -> str | None:
    """What does not match the request, as the end of a sentence. Lengths in bytes are checked when Samples are made."""
    if not isinstance(samples, Samples):
        return f"gave a {type(samples).__name__} where Samples are expected"
    if samples.count != count:
        return f"gave {samples.count} sequences where {count} were asked for"
    if samples.sequence_length != sequence_length:
        return f"gave sequences of {samples.sequence_length} tokens, those of this run have {sequence_length}"

    columns = {"tokens": samples.tokens, "labels": samples.labels, "position_ids": samples.position_ids}
    for column, data in columns.items():
        if not isinstance(data, bytes) and (column == "tokens" or data is not None):
            return f"gave {column} as {type(data).__name__}, expected bytes"
    return None
