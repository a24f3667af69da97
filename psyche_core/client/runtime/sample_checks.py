"""Reads samples from a data provider and checks that they match the request: a provider may be third-party code."""

from __future__ import annotations

from collections.abc import Sequence

from psyche_core.errors import ProviderFailed, PsycheError
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import IGNORED_LABEL, Samples
from psyche_core.plugin_errors import summary_of
from psyche_core.types import BatchId

READ_TIMEOUT = 60.0


def check_announced(provider: DataProvider, *, sequence_length: int, name: str) -> None:
    """Check that an entered provider has sequences and that their length is this run's. Raises ProviderFailed."""
    if provider.sequence_length != sequence_length:
        message = (
            f"{name} says that its sequences have {provider.sequence_length!r} tokens, those of this run have {sequence_length}"
        )
        raise ProviderFailed(message)

    count: object = provider.num_sequences
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        got = str(count) if type(count) is int else f"a {type(count).__name__}"
        message = f"{name} says that its num_sequences is {got}, expected an int of at least 1"
        raise ProviderFailed(message)


async def read_samples(
    provider: DataProvider,
    batches: Sequence[BatchId],
    *,
    sequence_length: int,
    vocab_size: int | None = None,
    name: str = "the data provider",
    timeout: float = READ_TIMEOUT,
) -> Samples:
    """Read samples and check that they match the request.

    sequence_length: tokens of a sample in this run. vocab_size: of the model; None checks no token ids (`check_token_ids` does
    later). name: of the provider's plugin in messages. Raises ProviderFailed for a provider that breaks its contract, whatever
    it raised, the provider's own PsycheError, and TimeoutError.
    """
    try:
        check_announced(provider, sequence_length=sequence_length, name=name)
        samples = await provider.read(batches, timeout=timeout)
        wrong = _what_is_wrong(samples, count=sum(map(len, batches)), sequence_length=sequence_length)
    except (PsycheError, TimeoutError):
        raise
    except Exception as error:
        message = f"{name} failed with {summary_of(error)}"
        raise ProviderFailed(message) from error

    if wrong is not None:
        message = f"{name} {wrong}; it cannot be trained on"
        raise ProviderFailed(message)
    if vocab_size is not None:
        check_token_ids(samples, vocab_size, name=name)
    return samples


def check_token_ids(samples: Samples, vocab_size: int, *, name: str) -> None:
    """Check that a model knows all token ids and labels of samples, where they were read before the model was opened.

    name: of the provider's plugin in messages. Raises ProviderFailed.
    """
    wrong = _what_is_no_token(samples, vocab_size)
    if wrong is not None:
        message = f"{name} {wrong}; it cannot be trained on"
        raise ProviderFailed(message)


def _what_is_wrong(samples: object, *, count: int, sequence_length: int) -> str | None:
    """Return what does not match the request, as the end of a sentence; None if all matches. Samples checks its own lengths."""
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


def _what_is_no_token(samples: Samples, vocab_size: int) -> str | None:
    """Return which token id or label is not in the model's vocabulary, as the end of a sentence; None if all are."""
    import numpy as np  # imported here: programs that do not train do not need it

    tokens = np.frombuffer(samples.tokens, dtype=f"<u{samples.token_size}")
    labels = np.frombuffer(samples.labels or b"", dtype="<i4")
    labels = labels[labels != IGNORED_LABEL]
    for what, ids in (("token id", tokens), ("label", labels)):
        for worst in (int(ids.max(initial=0)), int(ids.min(initial=0))):
            if not 0 <= worst < vocab_size:
                outside = f"which is outside the model's vocabulary of {vocab_size}"
                return f"gave the {what} {worst}, {outside} (was it made for this model?)"
    return None
