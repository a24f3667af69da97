"""How soon strikes eject a member: exact, from the rate of challenges and the chance that one ends with a strike.

A member that is not watched is challenged with probability `rate` in each round. A challenge ends with a strike with
probability `strike`. After the first strike it is challenged in each of the next rounds in which it is watched, then again at
the rate. The second strike ejects. The same formula gives how soon a cheat goes, and how often an honest member does by bad
luck. Challenges are taken as independent; an honest member's are not quite, since large scores come in the same rounds.
"""

from __future__ import annotations

import math

from psyche_core.verification.standing import WATCHED_ROUNDS


def ejected_within(rounds: int, *, rate: float, strike: float, watched_rounds: int = WATCHED_ROUNDS) -> float:
    """The probability that a member is ejected within so many rounds of an epoch. rate, strike: 0 to 1. Raises ValueError."""
    return ejection_curve(rounds, rate=rate, strike=strike, watched_rounds=watched_rounds)[-1]


def ejection_curve(rounds: int, *, rate: float, strike: float, watched_rounds: int = WATCHED_ROUNDS) -> list[float]:
    """The probability of being ejected by the end of each round: `rounds` + 1 values, the first is 0."""
    if rounds < 0 or watched_rounds < 0 or not (0 <= rate <= 1 and 0 <= strike <= 1):
        message = f"expected rounds >= 0 and probabilities 0 to 1, got {rounds}, {rate}, {strike}"
        raise ValueError(message)

    usual = rate * strike
    clean, ejected = 1.0, 0.0
    watched = [0.0] * watched_rounds  # with one strike, by rounds that are left of being watched, fewest first
    struck = 0.0  # with one strike, not watched any more
    curve = [0.0]
    for _ in range(rounds):
        ejected += strike * sum(watched) + usual * struck
        left = [chance * (1 - strike) for chance in watched]
        struck = struck * (1 - usual) + (left[0] if left else 0.0)
        watched = [*left[1:], 0.0][:watched_rounds]
        if watched_rounds:
            watched[-1] = clean * usual
        else:
            struck += clean * usual
        clean *= 1 - usual
        curve.append(ejected)
    return curve


def median_round(*, rate: float, strike: float, limit: int = 10_000) -> int | None:
    """The round by whose end half of such members are ejected; None if it is beyond the limit."""
    curve = ejection_curve(limit, rate=rate, strike=strike)
    return next((number for number, chance in enumerate(curve) if chance >= 0.5), None)


def upper_bound(failures: int, trials: int, *, confidence: float = 0.95) -> float:
    """Largest probability of failure with which so few failures in so many trials are not yet a surprise (Clopper and Pearson).

    0 failures in n trials give 1 - (1 - confidence)^(1 / n), about 3 / n. 1 without trials. By bisection, to 1e-9.
    """
    if trials <= 0 or failures >= trials:
        return 1.0

    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if _at_most(failures, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(failures: int, trials: int, chance: float) -> float:
    """The probability of at most so many failures. 0 < chance < 1. In logarithms, so that nothing underflows."""
    log, other = math.log(chance), math.log1p(-chance)
    ways = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(ways - math.lgamma(number + 1) - math.lgamma(trials - number + 1) + number * log + (trials - number) * other)
        for number in range(failures + 1)
    )
