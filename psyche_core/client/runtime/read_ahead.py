"""Reads the samples of a share before it is trained, and checks that they match the request."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from psyche_core.client.runtime.resources import Resources
from psyche_core.client.runtime.sample_checks import read_samples
from psyche_core.errors import DataError, NothingForUs, ProviderFailed
from psyche_core.interfaces.data import Samples
from psyche_core.types import BatchId

DATA_TIMEOUT = 120.0

Share = tuple[BatchId, ...]


class ReadAhead:
    """Reads ahead for one client. explain: returns one sentence about an unexpected exception."""

    def __init__(self, *, explain: Callable[[BaseException], str]) -> None:
        self._explain = explain
        self._readings: dict[Share, _Reading] = {}

    async def begin(self, resources: Resources, share: Share, *, sequence_length: int) -> None:
        """Start to read a share's samples. `samples` raises any error later. sequence_length: the run's."""
        if share in self._readings:
            return

        for stale in [known for known, reading in self._readings.items() if reading.done.is_set()]:
            del self._readings[stale]
        reading = self._readings[share] = _Reading()
        try:
            reading.samples = await _read(resources, share, sequence_length=sequence_length)
        except Exception as error:
            reading.error = error
        finally:
            reading.done.set()

    async def samples(self, resources: Resources, share: Share, *, sequence_length: int) -> Samples:
        """Return a share's samples, read ahead or read now. Raises DataError (NothingForUs, ProviderFailed), TimeoutError."""
        reading = self._readings.get(share)
        if reading is None:
            return await _read(resources, share, sequence_length=sequence_length)

        await reading.done.wait()
        self._readings.pop(share, None)
        if reading.samples is not None:
            return reading.samples

        if reading.error is None:
            why = "reading samples was cancelled"
        elif isinstance(reading.error, TimeoutError):
            why = str(reading.error) or f"reading samples took longer than {DATA_TIMEOUT:g} s"
        else:
            why = self._explain(reading.error)
        kinds = (NothingForUs, ProviderFailed)
        kind = next((known for known in kinds if isinstance(reading.error, known)), DataError)
        raise kind(why) from reading.error


async def _read(resources: Resources, share: Share, *, sequence_length: int) -> Samples:
    return await read_samples(
        resources.data,
        share,
        sequence_length=sequence_length,
        vocab_size=resources.trainer.vocab_size,
        name=resources.data_name,
        timeout=DATA_TIMEOUT,
    )


class _Reading:
    """A read in progress."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.samples: Samples | None = None
        self.error: Exception | None = None
