"""Interprets measured scores of replays: tables, a threshold, and how often that threshold would be wrong.

The threshold is the geometric mean of three times the largest honest score and the lowest score of a full cheat, over every
second share. The error rates are measured on the other shares, which did not influence it. Scores of one share are not
independent, so bounds count shares, not draws.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psyche_core.experiments.replayed_training import ALL_BUT_ONE, FULL_CHEATS, LAZY, MeasuredShare
from psyche_core.verification.chances import ejected_within, upper_bound
from psyche_core.verification.replay import Rule, Scores

ROUNDS, RATE = 100, 0.1
"""For probabilities of ejection: number of rounds, and the fraction of a member's shares that is challenged."""

HONEST_ROUNDS = 500
"""Number of rounds for the probability that an honest member is ejected."""

_MARGIN = 3.0
"""Honest scores are assumed to reach this many times the largest one seen, because more shares have larger extremes."""

_LEAST_HONEST, _LEAST_HONEST_MEDIAN = 1e-3, 1e-4
"""Honest scores, and medians of them, are assumed to reach at least this: a machine that was not tested may differ more."""

_GROUPS = 2000
"""Number of random groups of challenges whose medians are computed."""


ENOUGH_SHARES = 80
"""With fewer shares a report states that they are too few: half of them choose the threshold, the other half test it."""


@dataclass(frozen=True, slots=True)
class Row:
    """Scores of one kind in one phase. shares: number measured.

    least, median, high (99 % are below it), largest: of all draws.
    """

    title: str
    phase: str
    shares: int
    least: float
    median: float
    high: float
    largest: float

    def as_table(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "title": self.title,
            "phase": self.phase,
            "shares": self.shares,
            "min": self.least,
            "median": self.median,
            "p99": self.high,
            "max": self.largest,
        }


@dataclass(frozen=True, slots=True)
class Proposal:
    """A threshold and how often it is wrong.

    threshold: None if no number lies between honest work and full cheats. honest_max, cheat_min: of the shares with which it was
    chosen. false_positives: fraction of honest draws above it, of the other shares. false_positive_bound: 95 % upper bound of the
    probability that a share has such a draw. false_negatives: by kind, fraction of draws that pass. ejected: by kind, probability
    within 100 rounds at 10 %.
    honest_ejected: of an honest member within 500 rounds, if nobody broke ties.
    """

    threshold: float | None
    honest_max: float
    cheat_min: float
    false_positives: float
    false_positive_bound: float
    false_negatives: Mapping[str, float]
    ejected: Mapping[str, float]
    honest_ejected: float


@dataclass(frozen=True, slots=True)
class MedianProposal:
    """A threshold for the median of a member's last challenges, see `Proposal`: honest work against all samples but one."""

    threshold: float | None
    false_positives: float
    false_negatives: float


def honest_rows(shares: Sequence[MeasuredShare]) -> list[Row]:
    """Return scores of honest work by phase and pair of kinds of arithmetic."""
    pairs = list(dict.fromkeys(pair for share in shares for pair in share.honest))
    return [
        _row(f"{trainer} | {verifier}", phase, [share.honest[trainer, verifier] for share in own])
        for trainer, verifier in pairs
        for phase, own in _by_phase(shares)
    ]


def lazy_rows(shares: Sequence[MeasuredShare]) -> list[Row]:
    """Return scores of lazy work by kind and phase."""
    rows = []
    for kind in LAZY:
        for phase, own in _by_phase(shares):
            found = [share.lazy[kind] for share in own if kind in share.lazy]
            rows += [_row(kind, phase, found)] if found else []
    return rows


def proposal(shares: Sequence[MeasuredShare], rule: Rule) -> Proposal:
    """Return a threshold for single challenges."""
    choosing, testing = _halves(shares)
    honest_max = max((float(found.max()) for share in choosing for found in share.honest.values()), default=math.nan)
    cheats = [float(found.min()) for share in choosing for kind, found in share.lazy.items() if kind in FULL_CHEATS]
    cheat_min = min(cheats, default=math.nan)
    threshold = _between(honest_max, cheat_min, at_least=_LEAST_HONEST)
    used = rule.threshold if threshold is None else threshold
    above = _share(found > used for share in testing for found in share.honest.values())
    wrong = sum(any((found > used).any() for found in share.honest.values()) for share in testing)
    kinds = [kind for kind in LAZY if any(kind in share.lazy for share in testing)]
    passed = {kind: _share(share.lazy[kind] <= used for share in testing if kind in share.lazy) for kind in kinds}
    return Proposal(
        threshold,
        honest_max,
        cheat_min,
        above,
        upper_bound(wrong, len(testing)),
        passed,
        {kind: ejected_within(ROUNDS, rate=RATE, strike=1 - passed[kind]) for kind in kinds},
        ejected_within(HONEST_ROUNDS, rate=RATE, strike=above) if testing else math.nan,
    )


def median_proposal(shares: Sequence[MeasuredShare], rule: Rule) -> MedianProposal | None:
    """Return a threshold for the median of a member's last challenges; None without shares of all samples but one."""
    choosing, testing = _halves([share for share in shares if ALL_BUT_ONE in share.lazy])
    if not choosing or not testing:
        return None

    honest, lazy = _medians(choosing, rule.median_of)
    threshold = _between(float(honest.max()), float(lazy.min()), at_least=_LEAST_HONEST_MEDIAN)
    used = rule.median_threshold if threshold is None else threshold
    honest, lazy = _medians(testing, rule.median_of)
    return MedianProposal(threshold, float((honest > used).mean()), float((lazy <= used).mean()))


def as_table(shares: Sequence[MeasuredShare], rule: Rule) -> dict[str, Any]:
    """Return the whole report for JSON. Scores are dimensionless, 0 to 2; probabilities are 0 to 1."""
    found, median = proposal(shares, rule), median_proposal(shares, rule)
    overlaps = [share.overlap for share in shares if share.overlap is not None]
    return {
        "shares": len(shares),
        "draws_per_share": len(next(iter(shares[0].honest.values()))) if shares else 0,
        "honest": [row.as_table() for row in honest_rows(shares)],
        "lazy": [row.as_table() for row in lazy_rows(shares)],
        "threshold": {
            "proposed": found.threshold,
            "honest_max": found.honest_max,
            "cheat_min": found.cheat_min,
            "false_positives": found.false_positives,
            "false_positive_bound": found.false_positive_bound,
            "false_negatives": dict(found.false_negatives),
            f"ejected_within_{ROUNDS}_rounds_at_{RATE:.0%}": dict(found.ejected),
            f"honest_ejected_within_{HONEST_ROUNDS}_rounds_at_{RATE:.0%}": found.honest_ejected,
        },
        "median_threshold": None
        if median is None
        else {
            "proposed": median.threshold,
            "false_positives": median.false_positives,
            "false_negatives": median.false_negatives,
        },
        "payload": {
            "jaccard_min": min((share.agreement for share in shares), default=None),
            "wrong_signs": sum(share.wrong_signs for share in shares),
        },
        "overlap": {"honest_max": max(overlaps, default=None), "payloads": len(overlaps)},
    }


def as_text(shares: Sequence[MeasuredShare], rule: Rule) -> str:
    """Return the whole report as text."""
    honest = [(row, (row.median, row.high, row.largest)) for row in honest_rows(shares)]
    lazy = [(row, (row.least, row.median, row.largest)) for row in lazy_rows(shares)]
    lines = _lines("T of honest work: trainer's arithmetic | verifier's", ("median", "99 %", "largest"), honest)
    lines += ["", *_lines("T of lazy work, at the scale that fits best", ("least", "median", "largest"), lazy)]
    lines += ["", *(part for line in _threshold_lines(shares, rule) for part in _wrapped(line))]
    lines += _for_the_run_file(shares, rule)
    overlaps = [share.overlap for share in shares if share.overlap is not None]
    if overlaps:
        lines.append(f"D of honest payloads: at most {max(overlaps):.3f} in {len(overlaps)}; of copies and old payloads 1.")
    agreement, wrong = min(share.agreement for share in shares), sum(share.wrong_signs for share in shares)
    lines.append(f"Payloads against opened deltas: Jaccard index at least {agreement:.4f}, {wrong} wrong signs.")
    return "\n".join(lines)


def _for_the_run_file(shares: Sequence[MeasuredShare], rule: Rule) -> list[str]:
    """Return the table of a run file with the proposed thresholds; no lines if none is proposed."""
    found, median = proposal(shares, rule), median_proposal(shares, rule)
    if found.threshold is None:
        return []

    own = rule.median_threshold if median is None or median.threshold is None else median.threshold
    numbers = [f"  threshold = {found.threshold:.2g}", f"  median_threshold = {min(own, found.threshold):.2g}"]
    return ["", "For the run file:", "  [model.verification]", *numbers, ""]


def _threshold_lines(shares: Sequence[MeasuredShare], rule: Rule) -> Iterable[str]:
    found = proposal(shares, rule)
    if found.threshold is None:
        yield (
            f"No threshold: honest work reaches {found.honest_max:.2g}, a full cheat only {found.cheat_min:.2g}. Leave out the "
            f"arithmetic with the largest scores. Figures below are for {rule.threshold:g}."
        )
    else:
        yield (
            f"Threshold: {found.threshold:.2g}. In the {len(_halves(shares)[0])} shares by which it was chosen honest work "
            f"reaches {found.honest_max:.2g}, and full cheats (all but half of the samples, and all but one) at least "
            f"{found.cheat_min:.2g}."
        )
    tested = len(shares) - len(_halves(shares)[0])
    if len(shares) < ENOUGH_SHARES:
        yield (
            f"{len(shares)} shares are too few to rely on these numbers: measure {ENOUGH_SHARES} or more (--shares, --seeds, "
            "--budget)."
        )
    yield (
        f"In the {tested} shares that had no part in it: {found.false_positives:.2%} of honest challenges fail; of shares "
        f"at most {found.false_positive_bound:.1%} have one that does (95 % bound). An honest member would be ejected within "
        f"{HONEST_ROUNDS} rounds with probability {found.honest_ejected:.1e} if nobody broke ties."
    )
    yield f"{'':28} passes a challenge; ejected within {ROUNDS} rounds at {RATE:.0%}"
    for kind in found.false_negatives:
        passes, gone = found.false_negatives[kind], found.ejected[kind]
        yield f"  {kind:26} {passes:18.2%} {gone:29.2%}"
    median = median_proposal(shares, rule)
    if median is not None and median.threshold is not None:
        yield (
            f"Median of {rule.median_of} challenges: above {median.threshold:.2g} is {median.false_positives:.2%} of honest "
            f"medians; {median.false_negatives:.2%} of those with all samples but one are below."
        )
    elif median is not None:
        yield f"Median of {rule.median_of} challenges: no threshold tells all samples but one from honest work."


def _wrapped(line: str) -> list[str]:
    """Return sentences in lines of at most 110 characters; a row of a table, which begins with a space, is not changed."""
    return [line] if line.startswith(" ") else textwrap.wrap(line, 110)


def _lines(title: str, heads: Sequence[str], rows: Sequence[tuple[Row, Sequence[float]]]) -> list[str]:
    """Return a table with its head."""
    width = max([len(title) - 7, *(len(row.title) for row, _ in rows)])
    lines = [f"{title:{width + 9}} shares " + " ".join(f"{head:>8}" for head in heads)]
    for row, numbers in rows:
        lines.append(f"  {row.phase:6} {row.title:{width}} {row.shares:6} " + " ".join(f"{number:8.2g}" for number in numbers))
    return lines


def _by_phase(shares: Sequence[MeasuredShare]) -> list[tuple[str, list[MeasuredShare]]]:
    phases = dict.fromkeys(share.phase for share in shares)
    return [(phase, [share for share in shares if share.phase == phase]) for phase in phases]


def _row(title: str, phase: str, found: Sequence[Scores]) -> Row:
    draws = np.concatenate(found)
    high = float(np.quantile(draws, 0.99))
    return Row(title, phase, len(found), float(draws.min()), float(np.median(draws)), high, float(draws.max()))


def _halves(shares: Sequence[MeasuredShare]) -> tuple[list[MeasuredShare], list[MeasuredShare]]:
    """Return every second share of each phase, and the others."""
    phases = [own for _, own in _by_phase(shares)]
    return [share for own in phases for share in own[::2]], [share for own in phases for share in own[1::2]]


def _between(low: float, high: float, *, at_least: float) -> float | None:
    """Return the geometric mean, to two digits; None unless low < high. at_least: honest work is assumed to reach this."""
    low = max(_MARGIN * low, at_least)
    return float(f"{math.sqrt(low * high):.2g}") if low < high else None


def _share(found: Iterable[Any]) -> float:
    parts = [np.ravel(part) for part in found]
    return float(np.concatenate(parts).mean()) if parts else math.nan


def _medians(shares: Sequence[MeasuredShare], count: int) -> tuple[Scores, Scores]:
    """Return medians of random groups of draws: of honest work, each group with one pair, and of all samples but one."""
    generator = np.random.default_rng(0)
    pairs = list(shares[0].honest)
    honest = [
        _group_medians([share.honest[pair] for share in shares if pair in share.honest], count, generator) for pair in pairs
    ]
    return np.concatenate(honest), _group_medians([share.lazy[ALL_BUT_ONE] for share in shares], count, generator)


def _group_medians(found: Sequence[Scores], count: int, generator: np.random.Generator) -> Scores:
    draws = np.concatenate(found)
    medians: Scores = np.median(draws[generator.integers(0, draws.size, (_GROUPS, count))], axis=1)
    return medians
