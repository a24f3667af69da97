"""Computes what a member that did not train properly would have to claim, so that its commitments explain what it sent.

A *contribution* is what a member claims to have added to its delta, see `psyche_core.verification.replay`. A member that computed
another gradient claims that gradient, at the scale that fits best, since the scale is the easiest thing to guess. A member that
sends a payload without training for it must commit to a delta whose largest coefficients are in that payload: `forged` is the
smallest change that makes such a delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_core.interfaces.replay import Replay
from psyche_core.verification.replay import Scores, chunk_scores

Arrays = Sequence[NDArray[np.floating[Any]]]

_SCALES = tuple(2.0 ** (power / 4) for power in range(-8, 9))
_MARGIN = 1.001
"""A forged coefficient is larger by this factor than all coefficients that are not sent."""


def scores(contribution: Arrays, recomputed: Arrays, before: Arrays, *, floor: float) -> Scores:
    """Return the scores d of all chunks of all groups, float64 [chunks].

    contribution, recomputed, before: one array [chunks, size] for each group.
    """
    parts = [
        chunk_scores(one, other, before=old, floor=floor)
        for one, other, old in zip(contribution, recomputed, before, strict=True)
        if one.size
    ]
    return np.concatenate([*parts, np.zeros(0)])


def least_scores(contribution: Arrays, recomputed: Arrays, before: Arrays, *, floor: float) -> Scores:
    """Return `scores` at the scale of the contribution, from a quarter to four times, that gives the lowest mean.

    Each score is computed as a quotient of scalar products. It is exact up to their rounding, which does not matter for
    contributions that differ.
    """
    own, other = _products(contribution, contribution), _products(recomputed, recomputed)
    product, rounding = _products(contribution, recomputed), floor**2 * _products(before, before)

    def at(scale: float) -> Scores:
        together = scale**2 * own + other
        total = together + rounding
        difference = np.maximum(together - 2 * scale * product, 0.0)
        found: Scores = np.where(total > 0, difference / np.where(total > 0, total, 1.0), 0.0)
        return found

    return min((at(scale) for scale in _SCALES), key=lambda found: float(found.mean()) if found.size else 0.0)


def _products(one: Arrays, other: Arrays) -> Scores:
    """Return the scalar products of all rows of all groups, float64."""
    parts = [np.einsum("ij,ij->i", a.astype(np.float64), b.astype(np.float64)) for a, b in zip(one, other, strict=True)]
    return np.concatenate([*parts, np.zeros(0)])


def forged(replay: Replay, base: Arrays, known: Arrays | None, target: Arrays) -> list[NDArray[np.float64]]:
    """Return the contribution to claim so that `target` is the payload of delta, by group.

    base: delta before the contribution is added, that is decay (delta - taken). known: the true contribution if the member has
    computed it; None for a member that has not trained. target: values of the payload at their positions, zero elsewhere.
    """
    start = list(base) if known is None else [one + other for one, other in zip(base, known, strict=True)]
    wanted = []
    for coefficients, values in zip(replay.coefficients(start), target, strict=True):
        there = values != 0
        rest = np.where(there, 0.0, np.abs(coefficients)).max(axis=1, keepdims=True, initial=0.0) * _MARGIN
        signs = np.sign(values)
        wanted.append(np.where(there, signs * np.maximum(coefficients * signs, rest), coefficients))
    return [one - other for one, other in zip(replay.elements(wanted), base, strict=True)]


def random_payload(replay: Replay, counts: Sequence[int], generator: np.random.Generator) -> list[NDArray[np.float64]]:
    """Return as many random coefficients as a chunk may send, as positions and signs. counts: number of chunks of each group."""
    found = []
    for group, count in zip(replay.groups, counts, strict=True):
        values = np.zeros((count, group.size))
        places = np.argsort(generator.random(values.shape), axis=1)[:, : group.topk]
        np.put_along_axis(values, places, generator.choice((-1.0, 1.0), places.shape), axis=1)
        found.append(values)
    return found
