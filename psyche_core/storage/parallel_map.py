"""Applies a function to many items on a few cores: for hashing, reading and writing, which release Python's lock (the GIL).

A small number of items is processed in the calling thread, because threads would cost more than they save. Items may be processed
in any order; results are in the order of the items.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

WORTH_THREADS = 8
"""Minimum number of items for which threads are used."""

MOST_THREADS = 4

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return the result of `work` for every item, in order.

    If `work` raises for an item, this raises the same exception, and items that have not begun by then are not processed.
    """
    if len(items) < WORTH_THREADS:
        return [work(item) for item in items]

    with ThreadPoolExecutor(max_workers=min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
