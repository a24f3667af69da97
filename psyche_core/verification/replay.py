"""Score T of a replay: does what a member added to its delta equal the gradient that a verifier recomputed?

A member opens a chunk b of its delta D before and after round h, and the coefficients that it took off in between. They say what
it added, whatever it computed:

    c_b = D_h - decay (D_{h-1} - taken)                         the claimed contribution
    G_b = lr min(1, clip / |g|) g_b                             the recomputed one
    d_b = |c_b - G_b|^2 / (|c_b|^2 + |G_b|^2 + (floor |D_{h-1,b}|)^2)          T = mean of d_b over the drawn chunks

d_b is 0 for equal contributions, 1 for unrelated ones and 2 for opposite ones. The third term is what rounding of delta may
amount to where the gradient is almost zero: float32 keeps D to 6e-8 of its largest elements, and c_b is a difference of such
numbers. floor = 1e-4 makes chunks count whose contribution is above a ten-thousandth of delta.

That term must not be the cheat's to choose: with a delta a million times too large everything would pass. Clipped contributions
bound delta, see `largest_delta`. A chunk above the bound fails, and for rounding no more than a mean chunk's part of the bound
counts (`most`).

The payload must follow from the opened delta as well: its positions in a chunk are those of the largest coefficients of D_h.
Rules: T > threshold fails; so does a Jaccard index below 0.9 of positions, or a common position with another sign. A member is
guilty only after a tie-break, and a median above `median_threshold` over a member's last five challenges is a strike of its own.

Everything is float64, with the shapes [chunks, size]; chunks of other sizes are scored apart and `mean_score` joins them. Numbers
that are not finite never pass.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Chunks = NDArray[np.floating[Any]]
Scores = NDArray[np.float64]

WORST = 2.0
"""The largest possible score: what is not finite gets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The thresholds of a run. Owners measure theirs with `psyche bench verification`.

    threshold: largest T that passes. floor: share of delta that rounding may amount to. median_threshold, median_of: a median
    above it over so many challenges is a strike. payload_jaccard: smallest Jaccard index of a payload's positions and those of
    the opened delta.
    """

    threshold: float = 0.05
    floor: float = 1e-4
    median_threshold: float = 0.005
    median_of: int = 5
    payload_jaccard: float = 0.9

    def passes(self, score: float) -> bool:
        """Whether a check passes, also in a tie-break."""
        return score <= self.threshold

    def too_high_for_long(self, scores: Sequence[float]) -> bool:
        """Whether the median of a member's last challenges is a strike. scores: oldest first; fewer than `median_of` are not."""
        return len(scores) >= self.median_of and not statistics.median(scores[-self.median_of :]) <= self.median_threshold


def claimed(after: Chunks, before: Chunks, taken: Chunks, *, decay: float) -> Scores:
    """What a member added to its delta: after - decay (before - taken), in float64.

    All [chunks, size]. taken: the inverse transform of the coefficients taken off, in the elements' own order.
    """
    contribution: Scores = after.astype(np.float64) - decay * (before.astype(np.float64) - taken)
    return contribution


def chunk_scores(
    contribution: Chunks, recomputed: Chunks, *, before: Chunks, floor: float = 1e-4, most: float = math.inf
) -> Scores:
    """The scores d_b, float64 [chunks], each 0 to 2.

    contribution, recomputed, before: [chunks, size]; before: D_{h-1}. floor: see the module. most: largest norm of a chunk of
    delta that counts for rounding, see `rounding_limit`.
    """
    with np.errstate(all="ignore"):
        one, other = contribution.astype(np.float64), recomputed.astype(np.float64)
        sizes = _squares(before.astype(np.float64))
        rounding = floor**2 * np.minimum(sizes, most**2)
        together = _squares(one) + _squares(other) + rounding
        difference = _squares(one - other)
        scores = np.where(together > 0, difference / np.where(together > 0, together, 1.0), 0.0)
        finite = np.isfinite(together) & np.isfinite(difference) & np.isfinite(sizes)
    result: Scores = np.where(finite, np.minimum(scores, WORST), WORST)
    return result


def rounding_limit(usual: float, *, chunks: int, floor: float = 1e-4) -> float:
    """`most` of `chunk_scores`, for which rounding excuses a tenth of what a step usually adds to a chunk, and no more.

    usual: L2 norm of what a step usually adds to the whole delta at this learning rate. Delta itself says nothing about that: it
    is the sum of many steps, perhaps at a higher rate, and a cheat's to choose.
    """
    return 0.1 * usual / (floor * math.sqrt(max(1, chunks)))


def largest_delta(rounds: int, *, rate: float, clip: float, decay: float) -> float:
    """The largest norm that delta, and so any chunk of it, can have after so many rounds since it was zero.

    rate: the largest learning rate of these. clip: largest norm of a gradient, infinite without clipping. Each round adds at most
    rate times clip and keeps decay of the rest; what is taken off is a projection, which makes it no larger, and what comes back
    after a rejection was part of it before.
    """
    return rate * clip * (rounds if decay == 1 else (1 - decay**rounds) / (1 - decay))


def taken_agrees(coefficients: Chunks, taken: Chunks, *, fraction: float, tolerance: float = 0.02) -> bool:
    """Whether what was taken off a delta is what its coefficients say. Else it would be the trainer's to choose.

    coefficients, taken: [chunks, size]. fraction: of the coefficients that is taken off. tolerance: for values as they are sent.
    Which coefficients are taken is another question, see `payload_agreement`.
    """
    with np.errstate(all="ignore"):
        expected = np.where(taken != 0, fraction * coefficients, 0.0)
        wrong, whole = _squares(taken.astype(np.float64) - expected), _squares(expected)
        return bool((wrong <= tolerance**2 * whole).all())


def within(before: Chunks, bound: float, *, slack: float = 1.01) -> bool:
    """Whether all opened chunks of a delta [chunks, size] are within `largest_delta`. slack: for rounding of sent values."""
    with np.errstate(all="ignore"):
        norms = np.sqrt(_squares(before.astype(np.float64)))
    return bool((norms <= bound * slack).all())


def mean_score(parts: Iterable[Scores]) -> float:
    """T: the mean over all chunks of all parts. Raises ValueError if there is none, because nothing opened proves nothing."""
    scores = np.concatenate([*parts, np.zeros(0)])
    if scores.size == 0:
        message = "a replay score needs at least one opened chunk"
        raise ValueError(message)

    return float(scores.mean())


@dataclass(frozen=True, slots=True)
class PayloadAgreement:
    """How a payload's coefficients agree with those of an opened delta.

    common: positions that both have. either: positions that one of them has. wrong_signs: at common positions.
    """

    common: int
    either: int
    wrong_signs: int

    @property
    def jaccard(self) -> float:
        """Jaccard index of the positions; 1 where both have none."""
        return self.common / self.either if self.either else 1.0

    def passes(self, rule: Rule) -> bool:
        """Whether the payload follows from the opened delta."""
        return self.jaccard >= rule.payload_jaccard and self.wrong_signs == 0

    def __add__(self, other: PayloadAgreement) -> PayloadAgreement:
        """Of the chunks of both."""
        return PayloadAgreement(self.common + other.common, self.either + other.either, self.wrong_signs + other.wrong_signs)


NOTHING_OPENED = PayloadAgreement(0, 0, 0)
"""To add to."""


def payload_agreement(coefficients: Chunks, sent: Chunks, *, topk: int, noise: float = 2.0**-18) -> PayloadAgreement:
    """Compare a payload with the largest coefficients of an opened delta.

    coefficients: of D_h, [chunks, size]. sent: the payload's values at their positions, zero elsewhere, [chunks, size]. topk:
    most coefficients a chunk may send. noise: coefficients up to this fraction of their chunk's largest may be left out or
    sent.
    """
    if coefficients.shape != sent.shape or not np.isfinite(coefficients).all():
        return PayloadAgreement(0, max(1, sent.size), 0)

    there = sent != 0
    if (there.sum(axis=1) > topk).any():
        return PayloadAgreement(0, max(1, sent.size), 0)

    sizes = np.abs(coefficients)
    order = np.argsort(-sizes, axis=1, kind="stable")[:, :topk]
    largest = np.zeros(there.shape, dtype=bool)
    np.put_along_axis(largest, order, True, axis=1)
    counts = sizes > noise * sizes.max(axis=1, keepdims=True, initial=0.0)
    expected, sent_now = largest & counts, there & ~(largest & ~counts & (sizes > 0))  # what is zero may not be sent
    common = sent_now & expected
    either = int((sent_now | expected).sum())
    wrong = int((np.sign(coefficients) != np.sign(sent))[common].sum())
    return PayloadAgreement(int(common.sum()), either, wrong)


def _squares(values: Scores) -> Scores:
    result: Scores = np.einsum("ij,ij->i", values, values)
    return result
