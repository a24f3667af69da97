"""Computes how many compute units a transaction requests, and the price for each. No I/O.

The limit is the simulated usage plus a margin: a transaction with a low limit gets into a block sooner. Each transaction gets a
different small number of units more, so that no two have the same bytes: the chain processes the same bytes only once, and a
member may send the same command twice. The limit never exceeds the maximum for a transaction.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator

from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.instruction import Instruction

MAX_UNITS = 1_400_000
"""Maximum units of one transaction."""
MARGIN = 1.15
"""Factor on the simulated units: the state may have changed since the simulation."""
FLAT = 5_000
"""Units added to that: short simulations vary more."""
DISTINCT = 4_096
"""The number of units added to make transactions different is below this."""


def distinct_numbers() -> Iterator[int]:
    """Numbers below DISTINCT, each once before any is repeated; each program starts at another number."""
    start = secrets.randbelow(DISTINCT)
    return ((start + number) % DISTINCT for number in itertools.count())


def unit_limit(used: int, *, distinct: int, attempt: int = 0) -> int:
    """The limit for a transaction whose simulation used `used` units. attempt: how often it ran out already; each doubles it."""
    wanted = (int(used * MARGIN) + FLAT) << attempt
    return min(MAX_UNITS - DISTINCT, wanted) + distinct


def priority_fee(price: int, *, units: int) -> int:
    """Priority fee in lamports. price: millionths of a lamport per unit."""
    return -(-price * units // 1_000_000)


def prices(units: int, price: int) -> tuple[Instruction, ...]:
    """The instructions that request units, and pay for them if price is not 0."""
    limit = set_compute_unit_limit(units)
    return (limit, set_compute_unit_price(price)) if price else (limit,)
