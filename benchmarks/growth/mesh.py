"""How a full mesh of QUIC endpoints grows with its members: connecting, resting, talking, and exchanging a round's results.

Each endpoint is a process without torch (`mesh_member`), all on this machine, so CPU seconds are the figure that counts for
members with machines of their own; seconds are those of all members on these cores.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.children import Child
from benchmarks.growth.curves import Curve, curve

IDLE_SECONDS = 5.0
TALK_SECONDS = 5.0
MESSAGES_PER_SECOND = 2.0
"""Of each member: more than a client sends in rounds of three seconds."""

RESULT_BYTES = 54_000
"""A result of DisTrO with k = 8 for a model of 5 million parameters."""

ROUNDS = 3


def measure(counts: Sequence[int], *, say: Callable[[str], None], degree: int | None = None) -> dict[str, Any]:
    """Figures of each number of members, as `_measured` describes them. degree: most neighbours of each; None connects all."""
    found = {}
    for count in counts:
        say(f"mesh: {count} members" + ("" if degree is None else f", at most {degree} neighbours"))
        with _members(count, degree) as members:
            found[str(count)] = _measured(members)
    return found


def curves(found: dict[str, Any]) -> list[Curve]:
    """Each cost of a member over the number of members."""
    costs = (
        ("connect_cpu_s", "connecting with all", "CPU seconds"),
        ("idle_cpu_share", "at rest", "share of a core"),
        ("cpu_ms_per_message", "one message received", "CPU ms"),
        ("message_p99_ms", "a message until everybody has it, 99 %", "ms"),
        ("round_cpu_s", "a round of results", "CPU seconds"),
        ("round_s", "a round of results, until the last member has all", "s"),
        ("sent_mb_per_round", "sent in a round of results", "MB"),
        ("resident_mb", "memory", "MB"),
    )
    return [
        curve(title, unit, "members", [(int(count), figures[name]) for count, figures in found.items()])
        for name, title, unit in costs
    ]


def _measured(members: list[Child]) -> dict[str, Any]:
    """Means over members unless said otherwise.

    connect_s: until the last one is connected with all, or with all its neighbours. connect_cpu_s: of each until it is.
    idle_cpu_share: CPU seconds in a second without messages. cpu_ms_per_message: to receive (and pass on) one. message_p50_ms,
    message_p99_ms: from broadcast to receive; the worst member's. round_s: until the last member has all results, the median of
    rounds. round_cpu_s: of it. sent_mb_per_round; most_sent_over_mean: of the member that sends most. resident_mb: at the end.
    """
    addresses = [(member.hello["key"], member.hello["address"]) for member in members]
    connected = _all(members, members=addresses)
    idle = statistics.mean(each["cpu_seconds"] for each in _all(members, idle=IDLE_SECONDS)) / IDLE_SECONDS
    talk = _all(members, talk=TALK_SECONDS, per_second=MESSAGES_PER_SECOND)
    rounds, sent, most = [], [], []
    for number in range(ROUNDS):
        before = [each["bytes_sent"] for each in _all(members, figures=True)]
        _all(members, publish=RESULT_BYTES, round=number)
        rounds.append(_all(members, results=RESULT_BYTES, round=number))
        after = [each["bytes_sent"] for each in _all(members, figures=True)]  # once nobody fetches any more
        uploads = [late - early for early, late in zip(before, after, strict=True)]
        sent.append(statistics.mean(uploads))
        most.append(max(uploads) / statistics.mean(uploads))
    talking = [each["cpu_seconds"] - idle * each["seconds"] for each in talk]
    figures = {
        "connections": statistics.mean(each["connections"] for each in connected),
        "connect_s": max(each["seconds"] for each in connected),
        "connect_cpu_s": statistics.mean(each["cpu_seconds"] for each in connected),
        "idle_cpu_share": idle,
        "cpu_ms_per_message": 1e3 * sum(talking) / sum(each["received"] for each in talk),
        "message_p50_ms": max(each["p50_ms"] for each in talk),
        "message_p99_ms": max(each["p99_ms"] for each in talk),
        "round_s": statistics.median(max(each["seconds"] for each in answers) for answers in rounds),
        "round_cpu_s": statistics.median(statistics.mean(each["cpu_seconds"] for each in answers) for answers in rounds),
        "sent_mb_per_round": statistics.median(sent) / 1e6,
        "most_sent_over_mean": statistics.median(most),
        "resident_mb": statistics.mean(each["resident_mb"] for each in _all(members, figures=True)),
    }
    return {name: round(value, 4) for name, value in figures.items()}


def _all(children: list[Child], /, **order: Any) -> list[dict[str, Any]]:
    """Tell all members the same at the same time."""
    for child in children:
        child.tell(**order)
    return [child.listen() for child in children]


@contextmanager
def _members(count: int, degree: int | None) -> Iterator[list[Child]]:
    found: list[Child] = []
    command = ["benchmarks.growth.mesh_member", *([] if degree is None else [str(degree)])]
    try:
        for _ in range(count):
            found.append(Child(command))  # noqa: PERF401 - those begun must end when one fails
        yield found
    finally:
        for child in found:
            child.end()
        time.sleep(1)  # so that the next ones do not begin beside the last of these
