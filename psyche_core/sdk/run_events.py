"""The events of a coordinator: those of its rules, and the changes of members and phases between states.

The classes are those of `coordinator.commands` and `telemetry`, unchanged, and two new ones for members. Slots in them are
indices into the state's `epoch.clients`, fixed for an epoch; a member is named by its signer in hex. A client's events are those
of `telemetry.events`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from psyche_core.coordinator.commands import ChallengeClosed as ChallengeClosed
from psyche_core.coordinator.commands import ChallengesDrawn as ChallengesDrawn
from psyche_core.coordinator.commands import ClientsExited as ClientsExited
from psyche_core.coordinator.commands import ClientsReturned as ClientsReturned
from psyche_core.coordinator.commands import CooldownStarted as CooldownStarted
from psyche_core.coordinator.commands import EpochEnded as EpochEnded
from psyche_core.coordinator.commands import EpochSigned as EpochSigned
from psyche_core.coordinator.commands import EpochStarted as EpochStarted
from psyche_core.coordinator.commands import Event as RuleEvent
from psyche_core.coordinator.commands import ModelLost as ModelLost
from psyche_core.coordinator.commands import RewardsShared as RewardsShared
from psyche_core.coordinator.commands import RoundSettled as RoundSettled
from psyche_core.coordinator.commands import RoundStarted as RoundStarted
from psyche_core.coordinator.commands import RunFinished as RunFinished
from psyche_core.coordinator.commands import ShareVoided as ShareVoided
from psyche_core.coordinator.commands import StatementVoided as StatementVoided
from psyche_core.coordinator.commands import WentBack as WentBack
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry.events import PhaseChanged as PhaseChanged
from psyche_core.types import ClientState, RunState


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """The coordinator accepted a member, which takes part from the next epoch on.

    Attributes:
        member: its signer, 64 hex digits.
    """

    member: str


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A member no longer takes part, unless it joins again.

    Attributes:
        member: its signer, 64 hex digits.
        reason: name of the ClientState: `Withdrawn` (it left, or the server withdrew it, see `why`), `Dropped` (it was not ready
            in time, or missed its duties), `Ejected` (it broke a rule).
        why: why the server withdrew it: `lost` (its connection was lost, and it did not reconnect in time), `not back` (since
            the server was started again), `not allowed`. Empty if it left by itself, and for all who took no part in the
            present epoch.
    """

    member: str
    reason: str
    why: str = ""


RunEvent = RuleEvent | PhaseChanged | MemberJoined | MemberLeft
"""Any event of a coordinator."""


def run_events_between(
    before: CoordinatorState | None,
    after: CoordinatorState,
    events: Iterable[RuleEvent],
    *,
    withdrawn: Mapping[bytes, str] = MappingProxyType({}),
) -> Iterator[RunEvent]:
    """Yield all events of one change: members first, then the rules' events, then the phase if it changed.

    before: None for a coordinator's first state, whose members and phase are then reported. withdrawn: why the server withdrew
    members without their request, by signer; see `ServerContext.on_withdrawn`.
    """
    ours, theirs = (frozenset(member.signer for member in state.pending) if state else frozenset() for state in (before, after))
    for member in after.pending:
        if member.signer not in ours:
            yield MemberJoined(member.signer.hex())
    for member in before.pending if before else ():
        if member.signer not in theirs:
            reason = _reason(after, member.signer)
            why = withdrawn.get(member.signer, "") if reason == ClientState.Withdrawn.name else ""
            yield MemberLeft(member.signer.hex(), reason, why)
    yield from events
    phase = phase_of(after)
    if before is None or phase != phase_of(before):
        yield phase


def phase_of(state: CoordinatorState) -> PhaseChanged:
    """Return the phase of a state, with its round's height and, if the run waits for members, how many it needs."""
    progress, played = state.progress, state.current_round
    if state.run_state is RunState.WaitingForMembers:
        needed = state.config.init_min_clients
        return PhaseChanged(state.run_state.name, progress.epoch, progress.step, len(state.pending), None, needed)
    height = None if played is None else played.height
    return PhaseChanged(state.run_state.name, progress.epoch, progress.step, len(state.healthy_slots), height)


def _reason(state: CoordinatorState, signer: bytes) -> str:
    found = [client.state for client in state.epoch.clients if client.id.signer == signer]
    return (found[0] if found and found[0] is not ClientState.Healthy else ClientState.Withdrawn).name
