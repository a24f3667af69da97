"""How an overlay of bounded degree grows with its members: how messages spread, who uploads how much, and what survives.

Virtual time; the real choices of `psyche_core.p2p`. `overlay_messages` and `overlay_results` say what is simulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.growth.curves import Curve, curve
from benchmarks.growth.overlay_messages import keys, spread, survival, ways
from benchmarks.growth.overlay_results import CASES, direct, swarm
from psyche_core.p2p.overlay import Overlay
from psyche_core.p2p.spread import SENDERS, Spread

CHOSEN = f"{SENDERS} senders"
AUTHORS = 64
"""Most members that send a message where ways of spreading are compared with the chosen one, for which all do."""

DROPPING = 0.1
DEAD = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8)
TRIALS = 100
FEW = 8
"""One of so many members has a result where few have one."""


def measure(counts: Sequence[int], *, say: Callable[[str], None]) -> dict[str, Any]:
    """Figures of each number of members.

    graph: see `_graph`. messages, messages_dropped: by way of spreading, see `overlay_messages.spread`; the latter with
    DROPPING of the members passing nothing on. dead: see `overlay_messages.survival`. results: by case, see
    `overlay_results.swarm` and `direct`; results_of_few: the same where one of FEW members has a result.
    """
    found = {}
    for count in counts:
        figures: dict[str, Any] = {"graph": _graph(count)}
        for part, dropping in (("messages", 0.0), ("messages_dropped", DROPPING)):
            figures[part] = {}
            for name, way in ways().items():
                say(f"overlay: {count} members, {part}, {name}")
                authors = None if name == CHOSEN else AUTHORS
                figures[part][name] = spread(count, way, dropping=dropping, authors=authors)
        figures["dead"] = survival(count, DEAD, trials=TRIALS)
        for part, results in (("results", count), ("results_of_few", max(count // FEW, 2))):
            say(f"overlay: {count} members, {part}")
            figures[part] = {"direct": direct(count, results=results)}
            for case in CASES:
                say(f"overlay: {count} members, {part}, {case}")
                figures[part][case] = swarm(count, results=results, case=case)
        found[str(count)] = figures
    return found


def curves(found: dict[str, Any]) -> list[Curve]:
    """What a member has to do, over the number of members."""

    def over_members(title: str, unit: str, cost: Callable[[dict[str, Any]], float]) -> Curve:
        return curve(title, unit, "members", [(int(count), cost(figures)) for count, figures in found.items()])

    def of(part: str, name: str, figure: str, figures: dict[str, Any]) -> float:
        value: float = figures[part][name][figure]
        return value

    spreads = (
        ("hops", "hops to the last member", "hops"),
        ("copies", "copies that a member gets", "copies"),
        ("bytes", "sent by a member", "bytes"),
        ("sent_over_mean", "busiest member over the mean", "times"),
    )
    spreading = [
        over_members(f"a message{when}: {title}", unit, partial(of, part, CHOSEN, figure))
        for part, when in (("messages", ""), ("messages_dropped", ", a tenth pass nothing on"))
        for figure, title, unit in spreads
    ]
    fetching = [
        over_members(f"{who}: {title}, {way}", "times", partial(of, part, case, figure))
        for part, who in (("results", "all have a result"), ("results_of_few", f"one of {FEW} has one"))
        for figure, title in (
            ("upload_over_mean", "busiest upload over the mean"),
            ("time_over_ideal", "time over a full line's"),
        )
        for case, way in (("direct", "from the author"), (CASES[0], "overlay"))
    ]
    return [
        over_members("connections of a member", "connections", lambda figures: figures["graph"]["neighbours_mean"]),
        over_members("connections in a full mesh", "connections", lambda figures: figures["graph"]["full_mesh"]),
        over_members("computing the graph and who sends what", "CPU ms", lambda figures: figures["graph"]["cpu_ms"]),
        *spreading,
        *fetching,
    ]


def _graph(count: int) -> dict[str, float]:
    """neighbours_most, neighbours_mean, neighbours_least: of a member. full_mesh: what each had otherwise. diameter: in hops.

    cpu_ms: of one member and epoch, for the graph and the receivers of a message of every author.
    """
    names = keys(count)
    began = time.thread_time()
    overlay = Overlay(names, 0)
    ours = Spread(overlay, names[0])
    for origin in names:
        ours.receivers(origin, origin)
    cpu = time.thread_time() - began
    degrees = [len(overlay.neighbours(key)) for key in names]
    return {
        "neighbours_most": max(degrees),
        "neighbours_mean": round(sum(degrees) / count, 2),
        "neighbours_least": min(degrees),
        "full_mesh": count - 1,
        "diameter": overlay.diameter(),
        "cpu_ms": round(1e3 * cpu, 2),
    }
