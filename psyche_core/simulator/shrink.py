"""Makes a failing script smaller: the fewest, shortest faults in the shortest run that still break the same invariant.

The search is greedy and bounded. Random streams are derived by name, so removing one fault leaves the rest of the run mostly
unchanged. If it changes the run too much, the smaller script does not fail and is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from psyche_core.simulator.run_result import SimFailure
from psyche_core.simulator.script import Fault, Script, Shape
from psyche_core.simulator.world import run_script

ATTEMPTS = 120
"""Most runs of one search."""


def shrunk(
    failure: SimFailure, *, attempts: int = ATTEMPTS, play: Callable[[Script], SimFailure | None] | None = None
) -> SimFailure:
    """A failure of the same invariant with the smallest script found. play: runs a script; None for the real simulator."""
    play = play or _play
    best = failure
    left = attempts
    improved = True
    while improved and left > 0:
        improved = False
        for smaller in _smaller(best.script):
            if left <= 0:
                break

            left -= 1
            found = play(smaller)
            if found is not None and found.invariant == failure.invariant:
                best = found
                improved = True
                break

    return best


def _play(script: Script) -> SimFailure | None:
    return run_script(script).failure


def _smaller(script: Script) -> Iterator[Script]:
    """Scripts a little smaller than this one, the largest reductions first."""
    faults = script.faults
    if len(faults) > 3:
        half = len(faults) // 2
        yield replace(script, faults=faults[half:])
        yield replace(script, faults=faults[:half])
    for place in range(len(faults)):
        yield replace(script, faults=faults[:place] + faults[place + 1 :])
    for rounds in {script.rounds // 2, script.rounds - 2} - {script.rounds}:
        if rounds >= 1:
            yield replace(script, rounds=rounds)
    yield from _fewer_members(script)
    if script.sealed:
        yield replace(script, sealed=False)
    yield from _with_defaults(script)
    for place, fault in enumerate(faults):
        for smaller in _smaller_fault(fault):
            yield replace(script, faults=(*faults[:place], smaller, *faults[place + 1 :]))


def _fewer_members(script: Script) -> Iterator[Script]:
    """Without the last member, if no fault needs it and the run can still begin."""
    last = script.clients - 1
    gone = sum(fault.kind in ("crash", "leave") for fault in script.faults)
    honest = last - len(script.liars) - gone
    if honest < 1 or any(last in fault.nodes for fault in script.faults):
        return

    shape = script.shape
    most = replace(
        shape,
        min_clients=min(shape.min_clients, honest),
        init_min_clients=min(shape.init_min_clients, honest),
        witness_nodes=min(shape.witness_nodes, min(shape.min_clients, honest)),
    )
    yield replace(script, clients=last, shape=most)


def _with_defaults(script: Script) -> Iterator[Script]:
    """With one setting of the run changed to its default."""
    usual = Shape()
    shape = script.shape
    for change in (
        {"batch_start": usual.batch_start, "batch_end": usual.batch_end, "batch_warmup_tokens": 0},
        {"epoch_time": usual.epoch_time},
        {"withdraw_after": usual.withdraw_after},
    ):
        plain = replace(shape, **change)
        if plain != shape:
            yield replace(script, shape=plain)


def _smaller_fault(fault: Fault) -> Iterator[Fault]:
    if fault.duration > 1.0:
        yield replace(fault, duration=round(fault.duration / 2, 2))
    if len(fault.nodes) > 1:
        for node in fault.nodes:
            yield replace(fault, nodes=tuple(other for other in fault.nodes if other != node))
