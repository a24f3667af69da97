"""What a coordinator's state says about rounds that a process of ours had not applied when it ended. Pure.

A restarted client has, in its journal, results it had verified; the state still stores the last rounds with their statements.
Together they say what was accepted, as long as nothing is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from psyche_core.coordinator.assignment import shares
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.coordinator.witness import accepted_slots, judge, statements_digest
from psyche_core.training.journal_records import StoredResult
from psyche_core.types import RunState

_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)


@dataclass(frozen=True, slots=True)
class SettledRound:
    """A round whose accepted results are all at hand. results: commitment and payload hash of each, by slot.

    statements: digest of the statements that accepted them.
    """

    epoch: int
    height: int
    step: int
    results: tuple[tuple[bytes, bytes], ...]
    statements: bytes


def settled_rounds(state: CoordinatorState, known: Iterable[StoredResult], *, after: int) -> Iterator[SettledRound]:
    """The rounds after step `after` that are decided in a state, in order, as far as we know every accepted result of them."""
    playing = state.run_state in _PLAYING
    rounds = state.epoch.rounds
    number = state.progress.epoch
    if not playing and state.run_state is not RunState.Cooldown:
        number -= 1  # of the epoch that these rounds were played in
    view = replace(state, epoch=replace(state.epoch, unplayed=False))
    candidates: dict[tuple[int, int], dict[bytes, bytes]] = {}
    for result in known:
        if result.epoch == number:
            candidates.setdefault((result.height, result.slot), {})[result.commitment] = result.payload_hash
    for played in rounds:
        if played.drain or played.step <= after:
            continue

        attesting = view.round_at(played.height + 1)
        if played.step != after + 1 or attesting is None or (playing and played.height + 2 > rounds[-1].height):
            return

        results: list[tuple[bytes, bytes]] = []
        for slot in sorted(accepted_slots(view, played) & shares(view, played).keys()):
            announced = candidates.get((played.height, slot), {})
            verdict = judge(view, played, slot, announced)
            if verdict.void:
                continue
            if verdict.chosen is None:
                return
            results.append((verdict.chosen, announced[verdict.chosen]))
        after = played.step
        yield SettledRound(number, played.height, played.step, tuple(results), statements_digest(attesting.statements))
