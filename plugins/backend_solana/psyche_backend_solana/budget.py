"""How many compute units a transaction asks for, and what is paid for each. Pure.

Decided: the limit is what the simulation used and a margin, since blocks are packed by limits and a tight one gets in sooner. A
few units more, another number for each transaction, make it differ from all others: a chain takes in the same bytes only once,
and a member may well say the same thing twice. Refuses to ask for more than a transaction can have.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator

from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.instruction import Instruction

MAX_UNITS = 1_400_000
"""What one transaction can have."""
MARGIN = 1.15
"""The real run meets another state than the simulation did."""
FLAT = 5_000
"""Units for a little: short simulations vary more."""
DISTINCT = 4_096
"""Most units added to tell transactions apart."""


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
