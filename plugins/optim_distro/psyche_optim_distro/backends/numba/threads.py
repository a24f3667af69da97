"""The same work on parts of a range, in as many threads as torch uses. Refuses to keep threads: starting them takes 0.1 ms."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

ELEMENTS_PER_THREAD = 2**18
"""Elements that are worth a thread of their own: the work takes some ten times as long as starting it."""


def run_in_threads(work: Callable[[int, int], None], *, elements: int) -> None:
    """work(part, parts) for each part, the last in this thread. elements: of all. Raises what the first that fails raises."""
    parts = max(1, min(torch.get_num_threads(), elements // ELEMENTS_PER_THREAD))
    if parts == 1:
        work(0, 1)
        return

    with ThreadPoolExecutor(parts - 1) as pool:
        others = [pool.submit(work, part, parts) for part in range(parts - 1)]
        work(parts - 1, parts)
        for other in others:
            other.result()
