"""Runs a function on parts of a range, in as many threads as torch uses. Each call starts its threads, which takes 0.1 ms."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

ELEMENTS_PER_THREAD = 2**18
"""Smallest number of elements per thread: processing them takes about ten times as long as starting a thread."""


def thread_parts(elements: int) -> int:
    """Return how many threads `run_in_threads` uses for this number of elements."""
    return max(1, min(torch.get_num_threads(), elements // ELEMENTS_PER_THREAD))


def run_in_threads(work: Callable[[int, int], None], *, elements: int) -> None:
    """Call work(part, parts) for each part, the last one in this thread.

    elements: total number of elements. Raises the exception of the first part that fails.
    """
    parts = thread_parts(elements)
    if parts == 1:
        work(0, 1)
        return

    with ThreadPoolExecutor(parts - 1) as pool:
        others = [pool.submit(work, part, parts) for part in range(parts - 1)]
        work(parts - 1, parts)
        for other in others:
            other.result()
