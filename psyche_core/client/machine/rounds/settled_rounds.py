"""What a coordinator state says about rounds that an earlier process of ours had not applied. Pure.

A restarted client has verified results in its journal, and the state still stores the last rounds with their statements. Together
they say which results were accepted, as long as none is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from psyche_core.coordinator.history import histories
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.witness import accepted_slots, ballots, statements_digest
from psyche_core.coordinator.state import NO_DIGEST, CoordinatorState, Round
from psyche_core.types import Decision, RunState

if TYPE_CHECKING:
    from psyche_core.training.checkpoints.journal_records import StoredResult

_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)


class DecidedStep(Protocol):
    """A step that was applied, and the history that led to it."""

    @property
    def step(self) -> int:
        """The step."""

    @property
    def history(self) -> bytes:
        """Digest of the run's decisions up to this step, 32 bytes; NO_DIGEST if unknown."""


@dataclass(frozen=True, slots=True)
class SettledRound:
    """A round whose accepted results are all here. results: commitment and payload hash of each, by slot."""

    decision: Decision
    results: tuple[tuple[bytes, bytes], ...]


def epoch_of_rounds(state: CoordinatorState) -> int:
    """The number of the epoch whose rounds a state stores."""
    playing = state.run_state in _PLAYING or state.run_state is RunState.Cooldown
    return state.progress.epoch if playing else state.progress.epoch - 1


def _played_rounds(state: CoordinatorState) -> tuple[int, CoordinatorState]:
    """The number of the epoch whose rounds a state stores, and the state as if that epoch were still the current one."""
    return epoch_of_rounds(state), replace(state, epoch=replace(state.epoch, unplayed=False))


def decision_of(state: CoordinatorState, step: int) -> Decision | None:
    """What decided a step; None while a state still collects statements about it, or stores its round no longer."""
    number, view = _played_rounds(state)
    for played in view.epoch.rounds:
        if played.step == step and not played.drain:
            return _decision(view, played, number)
    return None


def _decision(view: CoordinatorState, played: Round, number: int) -> Decision | None:
    """What decided a round, None if nothing did yet."""
    attesting = _attesting(view, played.height)
    if attesting is None:
        return None

    history = histories(view).get(played.step, NO_DIGEST)
    return Decision(played.step, number, played.height, statements_digest(attesting.statements), history)


def _attesting(view: CoordinatorState, height: int) -> Round | None:
    """The round whose statements decide the round at `height`, None while the state lacks it or it may get more of them."""
    attesting = view.round_at(height + 1)
    undecided = view.run_state in _PLAYING and height + 2 > view.epoch.rounds[-1].height
    return None if undecided else attesting


def first_conflicting_step(state: CoordinatorState, rounds: Iterable[DecidedStep]) -> int | None:
    """The first of these steps, which ascend, that may be of another history than the state's; None if none is known to be.

    A coordinator restored from an older state may decide a round again, and end an epoch earlier than before. A step with the
    state's history is right, and so is every step before it, also where the state stores these rounds no more. Where the
    histories differ, any step since the last one that is known to be right may be another.
    """
    known, applied = histories(state), tuple(rounds)
    conflict: int | None = None
    for place in reversed(range(len(applied))):
        one = applied[place]
        if one.step in known and one.history != NO_DIGEST:
            if one.history == known[one.step]:
                return None if conflict is None else applied[place + 1].step
            conflict = one.step
    return None if conflict is None else applied[0].step


def settled_rounds(state: CoordinatorState, known: Iterable[StoredResult], *, after: int) -> Iterator[SettledRound]:
    """The rounds after step `after` that are decided in a state, in order, while we have all their accepted results."""
    rounds = state.epoch.rounds
    number, view = _played_rounds(state)
    candidates: dict[tuple[int, int], dict[bytes, bytes]] = {}
    for result in known:
        if result.epoch == number:
            candidates.setdefault((result.height, result.slot), {})[result.commitment] = result.payload_hash
    for played in rounds:
        if played.drain or played.step <= after:
            continue

        if played.step != after + 1 or _attesting(view, played.height) is None:
            return

        results: dict[int, tuple[bytes, bytes]] = {}
        counted = ballots(view, played)
        assert counted is not None
        for slot in sorted(accepted_slots(view, played).intersection(shares(view, played))):
            announced = candidates.get((played.height, slot), {})
            verdict = counted.judge(slot, announced)
            if verdict.void:
                continue
            if verdict.chosen is None:
                return
            results[slot] = verdict.chosen, announced[verdict.chosen]
        after = played.step
        decision = _decision(view, played, number)
        assert decision is not None
        yield SettledRound(decision, tuple(results.values()))
