"""Sentences about bonds: what costs a bond, when it is free, what a token's issuer can do, what to be warned of. No I/O."""

from __future__ import annotations

from datetime import UTC, datetime

from psyche_backend_solana.layouts import bond, tokens
from psyche_core.coordinator.state import CoordinatorState

_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def duration(seconds: int) -> str:
    """Return seconds in words, exactly: `90 days`, `1 hour 30 minutes`."""
    parts = []
    rest = seconds
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(counted(count, unit))
    return " ".join(parts) or counted(0, "second")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 bond`, `2 bonds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def utc(unix: int) -> str:
    """Return a unix second as `2026-11-28 05:15:00 UTC`."""
    try:
        return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):  # an account may hold any number
        return f"the unix second {unix}"


def free_from(held: bond.Bond, terms: bond.Bonds) -> int:
    """The unix second in which the waiting time of a bond in state Leaving is over."""
    return held.since + terms.waiting


def names(grounds: bond.Ground) -> list[str]:
    """The grounds' names, as in JSON."""
    return [ground.name.lower() for ground in bond.Ground if ground in grounds and ground.name is not None]


def lost_for(grounds: bond.Ground) -> str:
    """What costs a member its bond, as a clause."""
    texts = {
        bond.Ground.Signatures: "two signed results for one share",
        bond.Ground.Strikes: "two failed checks in an epoch",
    }
    return f"it is burned for {' or '.join(texts[ground] for ground in bond.Ground if ground in grounds)}"


def issuer_can(mint: tokens.Mint) -> str:
    """What the issuer of a token can do to bonds in it, as a clause."""
    more = "nobody can create more of the token" if mint.authority is None else f"{mint.authority} can create more of the token"
    frozen = "nobody can freeze it" if mint.freeze_authority is None else f"{mint.freeze_authority} can freeze it, bonds too"
    return f"{more}; {frozen}"


def no_deposit(held: bond.Bond, run_id: str) -> str:
    """Why a wallet with this bond puts no other one down."""
    if held.state is bond.BondState.Active:
        return f"this wallet has a bond for {run_id!r} already, and may join"

    ended = "was forfeited" if held.state is bond.BondState.Forfeited else "is being withdrawn"
    return f"this wallet's bond for {run_id!r} {ended}; end that with `psyche solana bond withdraw`, then deposit again"


def warnings(state: CoordinatorState | None) -> list[str]:
    """What in a run's configuration is bad for its bonds. state: None if the run is closed, or has no configuration yet."""
    if state is None:
        return []

    found = []
    config = state.config
    if config.cooldown_time < bond.SHORTEST_COOLDOWN:
        found.append(
            f"the run's cooldown_time is {duration(config.cooldown_time)}: with less than {bond.SHORTEST_COOLDOWN} seconds, a "
            "member that is ejected late in an epoch may keep its bond, as nobody burns it in time"
        )
    for name, seconds in (("epoch_time", config.epoch_time), ("cooldown_time", config.cooldown_time)):
        if seconds > bond.LONGEST_EPOCH:
            found.append(
                f"the run's {name} is {duration(seconds)}: a bond is kept while an epoch is played, that of a member that has "
                f"left for at most {duration(bond.LONGEST_EPOCH)} beyond the waiting time"
            )
    return found


def warned(sentence: str, found: list[str]) -> str:
    """A sentence with its warnings, each in a line of its own."""
    return "\n".join([sentence, *(f"warning: {text}" for text in found)])
