"""Numbers in readable form: bytes, durations, rates, and a loss curve in one line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def bytes_text(count: float) -> str:
    """Return a size as `0 B`, `12.3 kB`, `4.0 MB`, …; decimal prefixes, as usual for networks."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000

    return f"{count:.1f} TB"


def duration_text(seconds: float) -> str:
    """Return a duration as `42 s`, `3 min 05 s` or `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"

    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def count_text(count: float) -> str:
    """Return a number as `950`, `12.3 k`, `1.06 M` or `7.00 G`."""
    for size, unit, digits in ((1e9, "G", 2), (1e6, "M", 2), (1e3, "k", 1)):
        if count >= size:
            return f"{count / size:.{digits}f} {unit}"

    return f"{count:.0f}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return at most `width` bars. Each shows the mean of its part of the values, scaled from the smallest to the largest."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""

    count = min(width, len(finite))
    edges = [index * len(finite) // count for index in range(count + 1)]
    means = [sum(finite[first:last]) / (last - first) for first, last in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)
