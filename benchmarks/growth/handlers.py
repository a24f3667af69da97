"""How long the pure parts hold up a program's event loop: the client's machine and the coordinator, by number of members.

Real machines and the real coordinator play a run of a few rounds in the simulator's virtual time, in this process, and each call
is timed by the CPU time of its thread. Nothing is encoded, sent, trained or applied; `mesh` and `coordinator` measure that.
Garbage is not collected meanwhile: the objects of all members together would be searched in one member's call.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.growth.curves import Curve, curve
from psyche_core import coordinator
from psyche_core.client.machine.machine import ClientMachine
from psyche_core.simulator import server as simulated_server
from psyche_core.simulator.script import Script, Shape
from psyche_core.simulator.world import run_script

STEPS = 3
LONG_MS = 10.0
"""Longer than this no call should hold up an event loop."""

Times = dict[str, list[float]]
"""CPU seconds of each call by kind of event or command."""


def measure(counts: Sequence[int], *, say: Callable[[str], None]) -> dict[str, Any]:
    """Figures of each number of members, as `_figures` describes them, of the client's machine and of the coordinator."""
    found = {}
    for count in counts:
        say(f"handlers: {count} members")
        with _timed() as (events, commands):
            result = run_script(_script(count))
        if result.failure is not None:
            message = f"a run of {count} honest members broke: {result.failure}"
            raise RuntimeError(message)
        per_member = sum(map(len, events.values())) / count / STEPS
        cpu = sum(map(sum, events.values())) / count / STEPS
        found[str(count)] = {
            "client": _figures(events),
            "coordinator": _figures(commands),
            "events_per_member_and_round": round(per_member, 1),
            "cpu_ms_per_member_and_round": round(1e3 * cpu, 2),
        }
    return found


def curves(found: dict[str, Any]) -> list[Curve]:
    """A member's cost of a round, and the slow end of what takes longest."""

    def over_members(title: str, unit: str, cost: Callable[[dict[str, Any]], float]) -> Curve:
        return curve(title, unit, "members", [(int(count), cost(figures)) for count, figures in found.items()])

    def slowest(part: str, name: str) -> Curve:
        which = {"p99_ms": "99 % of calls are shorter", "max_ms": "longest call"}[name]
        return over_members(f"{part}, {which}", "CPU ms", lambda figures: figures[part]["all"][name])

    return [
        over_members("events of a member and round", "events", lambda figures: figures["events_per_member_and_round"]),
        over_members("CPU of a member and round", "CPU ms", lambda figures: figures["cpu_ms_per_member_and_round"]),
        *(slowest(part, name) for part in ("client", "coordinator") for name in ("p99_ms", "max_ms")),
    ]


def _script(count: int) -> Script:
    shape = Shape(
        min_clients=count,
        init_min_clients=count,
        batch_start=count,
        batch_end=count,
        rounds_per_epoch=STEPS,
        epoch_time=36_000,
        warmup_time=60,
        max_round_train_time=30,
        round_witness_time=5,
        train_seconds=2.0,
    )
    return Script(seed=1, clients=count, rounds=STEPS, shape=shape)


@contextmanager
def _timed() -> Iterator[tuple[Times, Times]]:
    """Time each call of a client's machine and of the coordinator while this lasts; gives both lists of times."""
    events: Times = defaultdict(list)
    commands: Times = defaultdict(list)
    handle, apply = ClientMachine.handle, coordinator.apply

    def timed_handle(machine: ClientMachine, event: Any, now: float) -> Any:
        began = time.thread_time()
        try:
            return handle(machine, event, now)
        finally:
            events[type(event).__name__].append(time.thread_time() - began)

    def timed_apply(state: Any, command: Any, now: int, seed: int) -> Any:
        began = time.thread_time()
        try:
            return apply(state, command, now, seed)
        finally:
            commands[type(command).__name__].append(time.thread_time() - began)

    setattr(ClientMachine, "handle", timed_handle)  # noqa: B010  # how long a call takes is nobody's business but this benchmark's
    setattr(simulated_server, "apply", timed_apply)  # noqa: B010
    gc.collect()
    gc.disable()
    try:
        yield events, commands
    finally:
        gc.enable()
        setattr(ClientMachine, "handle", handle)  # noqa: B010
        setattr(simulated_server, "apply", apply)  # noqa: B010


def _figures(times: Times) -> dict[str, dict[str, float]]:
    """Of each kind and of all: calls; milliseconds in the median, of one in a hundred and of the longest; share over LONG_MS."""
    every = {**times, "all": [each for kind in times.values() for each in kind]}
    return {kind: _summary(sorted(values)) for kind, values in sorted(every.items())}


def _summary(ordered: list[float]) -> dict[str, float]:
    def at(share: float) -> float:
        return round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    long = sum(1e3 * each > LONG_MS for each in ordered)
    return {"calls": len(ordered), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0), "long_share": long / len(ordered)}
