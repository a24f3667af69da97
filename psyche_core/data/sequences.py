"""Any map-style dataset as a run's data: an object with a length whose items are token arrays, such as a list, a numpy array of
two dimensions, a torch `Dataset` or one of the `datasets` package.

Sample i of the run is item i, so the dataset must be the same for every member. Items are read in a worker thread, one by one.
An item is a flat array of exactly the run's sequence length of whole numbers from 0 (list, numpy, torch), or a mapping with
`input_ids` and perhaps `labels` (aligned with them, -100 for tokens that are not predicted). An item of another length or kind
is an error that names its number: nothing is cut or padded silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import anyio
import anyio.to_thread
import numpy as np
from numpy.typing import NDArray

from psyche_core.errors import DataError
from psyche_core.interfaces.data import IGNORED_LABEL, DataProvider, Samples
from psyche_core.types import BatchId

_TOKEN_SIZE = 4
_MOST = 2**32 - 1


@runtime_checkable
class MapDataset(Protocol):
    """An object with numbered items: torch's map-style datasets, those of `datasets`, arrays, lists."""

    def __len__(self) -> int:
        """Number of items, at least one."""

    def __getitem__(self, index: int, /) -> Any:
        """Item 0 <= index < len."""


class SequenceData(DataProvider):
    """A map-style dataset as a provider; see the module.

    items: the dataset; one worker thread at a time reads it. sequence_length: tokens per item.
    """

    def __init__(self, items: MapDataset, *, sequence_length: int) -> None:
        self._items = items
        self._sequence_length = sequence_length
        self._count = len(items)
        if self._count < 1:
            message = f"the dataset ({type(items).__name__}) is empty; a run needs at least one sequence"
            raise DataError(message)

    @property
    def sequence_length(self) -> int:
        """Tokens per sample."""
        return self._sequence_length

    @property
    def num_sequences(self) -> int:
        """Number of items of the dataset."""
        return self._count

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """The items of the intervals, in order. Raises DataError, TimeoutError."""
        with anyio.fail_after(timeout):
            return await anyio.to_thread.run_sync(self._read, tuple(batches), abandon_on_cancel=True)

    async def aclose(self) -> None:
        """Do nothing: the owner closes the dataset."""

    def _read(self, batches: Sequence[BatchId]) -> Samples:
        numbers = [index % self._count for batch in batches for index in range(batch.first, batch.last + 1)]
        rows = [self._row(number) for number in numbers]
        tokens = np.stack([ids for ids, _ in rows]).astype("<u4").tobytes()
        labels = None
        if any(given is not None for _, given in rows):
            spelled = [ids if given is None else given for ids, given in rows]
            labels = np.stack(spelled).astype("<i4").tobytes()
        return Samples(tokens, len(rows), self._sequence_length, _TOKEN_SIZE, labels)

    def _row(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Tokens (T,) and labels (T,), or None, of an item; int64."""
        item = self._items[number]
        if not isinstance(item, Mapping):
            return self._numbers(item, number, least=0), None
        if "input_ids" not in item:
            message = (
                f"item {number} of the dataset has no input_ids, got a mapping with {', '.join(map(str, item)) or 'nothing'}"
            )
            raise DataError(message)

        labels = item.get("labels")
        ids = self._numbers(item["input_ids"], number, least=0)
        return ids, None if labels is None else self._numbers(labels, number, least=IGNORED_LABEL)

    def _numbers(self, given: Any, number: int, *, least: int) -> NDArray[np.int64]:
        try:
            array = np.asarray(given)
        except Exception as error:  # a tensor on a GPU or ragged lists raise different exceptions
            message = f"item {number} of the dataset ({type(given).__name__}) is no array of tokens: {error}"
            raise DataError(message) from error

        if array.shape != (self._sequence_length,) or array.dtype.kind not in "iu":
            message = (
                f"item {number} of the dataset must be {self._sequence_length} whole numbers (the run's max_seq_len), got "
                f"{type(given).__name__} of shape {array.shape} and type {array.dtype}; cut or pad it in the dataset"
            )
            raise DataError(message)
        if int(array.min()) < least or int(array.max()) > _MOST:
            message = f"item {number} of the dataset holds {int(array.min())} to {int(array.max())}; token ids are 0 to {_MOST}"
            raise DataError(message)
        return array.astype(np.int64)
