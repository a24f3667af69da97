"""The same work for many items, on a few cores: for hashing, reading and writing, which release Python's lock (the GIL).

Few items are worked on in the calling thread, because threads would cost more than they save. Items may be worked on in any
order; results are in the order of the items.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

WORTH_THREADS = 8
"""Items from which on several are worked on at once."""

MOST_THREADS = 4

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """What `work` gives for every item. Raises what the first failing one raised; what has not begun by then never does."""
    if len(items) < WORTH_THREADS:
        return [work(item) for item in items]

    with ThreadPoolExecutor(max_workers=min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
