"""How many compute units a transaction asks for, and what is paid for each. No I/O.

The limit is what the simulation used, and a margin: a transaction with a low limit gets into a block sooner. Each transaction
gets a different small number of units more, so that no two have the same bytes: the chain processes the same bytes only once, and
a member may send the same command twice. The limit is never above what a transaction can have.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator

from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.instruction import Instruction

MAX_UNITS = 1_400_000
"""Most units of one transaction."""
MARGIN = 1.15
"""Factor on the simulated units: the state may have changed since the simulation."""
FLAT = 5_000
"""Units added to that: short simulations vary more."""
DISTINCT = 4_096
"""Units added to make transactions different are fewer than this."""


def distinct_numbers() -> Iterator[int]:
    """Numbers below DISTINCT, each once before any comes again; two programs begin at different places."""
    start = secrets.randbelow(DISTINCT)
    return ((start + number) % DISTINCT for number in itertools.count())


def unit_limit(used: int, *, distinct: int, attempt: int = 0) -> int:
    """The limit for a transaction whose simulation used so much. attempt: how often it ran out already; each doubles it."""
    wanted = (int(used * MARGIN) + FLAT) << attempt
    return min(MAX_UNITS - DISTINCT, wanted) + distinct


def priority_fee(price: int, *, units: int) -> int:
    """Lamports paid on top. price: millionths of a lamport for a unit."""
    return -(-price * units // 1_000_000)


def prices(units: int, price: int) -> tuple[Instruction, ...]:
    """The instructions that ask for units, and pay for them when price is not 0."""
    limit = set_compute_unit_limit(units)
    return (limit, set_compute_unit_price(price)) if price else (limit,)
