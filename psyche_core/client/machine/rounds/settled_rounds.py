"""What a coordinator state says about rounds that an earlier process of ours had not applied. Pure.

A restarted client has verified results in its journal, and the state still stores the last rounds with their statements. Together
they say which results were accepted, as long as none is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.witness import accepted_slots, judge, statements_digest
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.types import Decision, RunState

if TYPE_CHECKING:
    from psyche_core.training.checkpoints.journal_records import StoredResult

_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)


class DecidedStep(Protocol):
    """A step with the round that played it. statements: digest of those that decided it, 32 bytes."""

    @property
    def epoch(self) -> int:
        """Number of the round's epoch."""

    @property
    def height(self) -> int:
        """Number of the round within its epoch."""

    @property
    def step(self) -> int:
        """The step."""

    @property
    def statements(self) -> bytes:
        """See the class."""

    @property
    def slots(self) -> tuple[int, ...]:
        """Of those whose results were applied."""

    @property
    def voided(self) -> tuple[int, ...]:
        """Of those whose shares were void."""


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


def _decision(view: CoordinatorState, played: Round, number: int, *, slots: Iterable[int] | None = None) -> Decision | None:
    """What decided a round, None if nothing did yet. slots: of those whose results count, None for all that were accepted."""
    attesting = _attesting(view, played.height)
    if attesting is None:
        return None

    counted = accepted_slots(view, played).intersection(shares(view, played)) if slots is None else slots
    statements = statements_digest(attesting.statements)
    return Decision(played.step, number, played.height, statements, tuple(sorted(counted)), played.voided)


def _attesting(view: CoordinatorState, height: int) -> Round | None:
    """The round whose statements decide the round at `height`, None while the state lacks it or it may get more of them."""
    attesting = view.round_at(height + 1)
    undecided = view.run_state in _PLAYING and height + 2 > view.epoch.rounds[-1].height
    return None if undecided else attesting


def first_conflicting_step(state: CoordinatorState, rounds: Iterable[DecidedStep]) -> int | None:
    """The first of these steps that the state has otherwise, None without one: its statements or its void shares
    differ from those that we applied, or it plays the step in another epoch or at another height.

    A coordinator restored from an older state may decide a round again, and end an epoch earlier than before. Statements of
    rounds that it no longer stores cannot be compared; steps of such rounds follow from those that it stores.
    """
    number, view = _played_rounds(state)
    played = next((known for known in view.epoch.rounds if not known.drain), None)
    first = None if played is None else played.step - played.height  # each round of an epoch has the next step
    for applied in rounds:
        if first is not None and not _has_position(applied, number, first):
            return applied.step
        if applied.epoch == number and _decided_otherwise(view, applied):
            return applied.step

    return None


def _decided_otherwise(view: CoordinatorState, applied: DecidedStep) -> bool:
    """Whether a round of a state's epoch has other statements, a void share that was applied, or a result that was void.

    A share that is void becomes void later only where nobody applied it (F7), and is never accepted again.
    """
    attesting, played = view.round_at(applied.height + 1), view.round_at(applied.height)
    if attesting is None:
        return False
    if statements_digest(attesting.statements) != applied.statements:
        return True
    if played is None:
        return False

    return not (set(applied.slots).isdisjoint(played.voided) and accepted_slots(view, played).isdisjoint(applied.voided))


def _has_position(applied: DecidedStep, number: int, first: int) -> bool:
    """Whether a round's epoch and height are those of a state whose epoch `number` plays step `first` at height 0."""
    if applied.step < first:
        return applied.epoch < number
    return (applied.epoch, applied.height) == (number, applied.step - first)


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
        for slot in sorted(accepted_slots(view, played).intersection(shares(view, played))):
            announced = candidates.get((played.height, slot), {})
            verdict = judge(view, played, slot, announced)
            if verdict.void:
                continue
            if verdict.chosen is None:
                return
            results[slot] = verdict.chosen, announced[verdict.chosen]
        after = played.step
        decision = _decision(view, played, number, slots=results)
        assert decision is not None
        yield SettledRound(decision, tuple(results.values()))
