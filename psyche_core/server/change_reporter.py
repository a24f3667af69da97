"""Reports changes of a server's coordinator: phases, checked shares, and members that left, were dropped or were ejected."""

from __future__ import annotations

from collections.abc import Callable

from psyche_core.config.options.server import ServerSettings
from psyche_core.coordinator.commands import (
    ChallengeClosed,
    ClientsExited,
    EpochSigned,
    Event,
    ModelLost,
    StatementVoided,
    WentBack,
)
from psyche_core.coordinator.membership.missed_duties import MAX_MISSED
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import Account, Client, CoordinatorState
from psyche_core.hookspecs import LaterKnown
from psyche_core.sdk.run_events import phase_of
from psyche_core.server.restarting import TrainedMembers, lost_model
from psyche_core.state_events import share_checked
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.types import ClientState, WitnessStatement

Follow = Callable[[CoordinatorState], None]
"""Called with each state of the coordinator."""


class ChangeReporter:
    """Reports phase changes, and members that left, were dropped or were ejected."""

    def __init__(
        self,
        report: EventBus,
        *,
        follow: Follow | None = None,
        settings: ServerSettings,
        trained: TrainedMembers,
    ) -> None:
        self._report = report
        self._follow = follow
        self._settings = settings
        self._trained = trained
        self._beginning: CoordinatorState | None = None
        self._continued = False
        self._later: dict[tuple[int, int], telemetry.StateIsOlder] = {}
        self._seen: tuple[object, ...] | None = None
        self._first_explained = False
        self._withdrawn: dict[bytes, str] = {}
        self._repeats = 0
        self._accounts: tuple[Account, ...] = ()

    def note_withdrawn(self, signer: bytes, why: str) -> None:
        """Handle `on_withdrawn`: remember that the server withdraws this member without its request."""
        self._withdrawn[signer] = why

    def continue_from(self, state: CoordinatorState, settings: ServerSettings | None = None, *, continued: bool = False) -> None:
        """Note the state with which the server begins, and the settings with which its owner can start it again.

        continued: whether that state was saved by an earlier server.
        """
        self._beginning = state
        self._continued = continued
        self._settings = settings or self._settings

    def report_beginning(self) -> None:
        """Report the phase in which the server begins, because it may last until a member joins."""
        if self._beginning is not None:
            self._report_phase(self._beginning)
            self._report_points(self._beginning)

    def report_later_state(self, known: LaterKnown) -> None:
        """Handle `on_later_state`: report each later state once, however many members know it."""
        if self._beginning is None or (known.epoch, known.step) in self._later:
            return

        progress = self._beginning.progress
        member = None if known.member is None else known.member.hex()[:8]
        later = None if known.later_path is None else str(known.later_path)
        path = str(known.path)
        older = telemetry.StateIsOlder(progress.epoch, progress.step, known.epoch, known.step, path, member, later)
        self._later[known.epoch, known.step] = older
        self._report(older)

    def report_lost_model(self, state: CoordinatorState) -> None:
        """Report that the run has lost its model, with what its owner can do."""
        # a file on this machine is better than a later state that must be found elsewhere
        later = max(self._later.items(), key=lambda each: (each[1].later_path is not None, each[0]), default=None)
        latest = None if later is None else later[1]
        self._report(lost_model(state, self._settings, self._trained, continued=self._continued, later=latest))

    def report_change(self, state: CoordinatorState, events: tuple[Event, ...]) -> None:
        """Handle `on_event`."""
        self._trained.see(state)
        if self._follow is not None:
            self._follow(state)
        self._report_phase(state)
        self._report_points(state)
        if state.epoch.repeats > self._repeats:
            self._report(telemetry.Problem("warning", _repeated(state)))
        self._repeats = state.epoch.repeats
        for event in events:
            match event:
                case ClientsExited():
                    for slot in event.slots:
                        if slot < len(state.epoch.clients):
                            self._report(self._exit(state, event.epoch, slot))
                case EpochSigned():
                    self._report(telemetry.EpochSigned(event.step, event.digest.hex()))
                case WentBack():
                    self._report(_went_back(state, event))
                case ModelLost():
                    self.report_lost_model(state)
                case StatementVoided():
                    member = state.epoch.clients[event.slot].id.short
                    self._report(telemetry.StatementVoided(event.epoch, event.height, member))
                case ChallengeClosed():
                    self._report(share_checked(state, event))

    def _report_points(self, state: CoordinatorState) -> None:
        if state.accounts is self._accounts:
            return

        known = {account.signer: account for account in self._accounts}
        changed = [account for account in state.accounts if known.get(account.signer, Account(account.signer)) != account]
        self._accounts = state.accounts
        if changed:
            told = tuple((account.signer.hex()[:8], account.earned, account.slashed) for account in changed)
            self._report(telemetry.PointsCounted(state.progress.epoch, told))

    def _report_phase(self, state: CoordinatorState) -> None:
        changed = phase_of(state)
        phase = (changed.phase, changed.epoch, changed.height, changed.clients if changed.needed else None)
        if self._seen != phase:
            self._seen = phase
            self._report(changed)
            self._explain_first(changed)

    def _explain_first(self, phase: telemetry.PhaseChanged) -> None:
        """Report once why a run that has begun with fewer members waits for more now."""
        first, needed = self._settings.init_min_clients, phase.needed
        if self._first_explained or first is None or needed is None or needed <= max(first, phase.clients):
            return

        self._first_explained = True
        why = f"--init-min-clients {first} was for the first epoch only"
        self._report(
            telemetry.Problem("warning", f"epoch {phase.epoch} needs {needed} clients, the run's init_min_clients: {why}")
        )

    def _exit(self, state: CoordinatorState, epoch: int, slot: int) -> telemetry.Event:
        """Return the event for a member that stopped being healthy."""
        client = state.epoch.clients[slot]
        member = client.id.short
        withdrawn = self._withdrawn.pop(client.id.signer, None)
        if client.state is ClientState.Withdrawn and withdrawn is None:
            return telemetry.MemberWithdrew(epoch, member)
        if client.state is ClientState.Ejected:
            return telemetry.MemberExited(epoch, member, "struck" if client.standing.ejected else "ejected")
        if withdrawn is not None:
            return telemetry.MemberExited(epoch, member, withdrawn)

        if slot not in state.epoch.ready:
            return telemetry.MemberExited(epoch, member, "unready")

        return telemetry.MemberExited(epoch, member, "interrupted" if self._interrupted(state, client) else _missing(state, slot))

    def _interrupted(self, state: CoordinatorState, client: Client) -> bool:
        """Return whether the round without this member's result was interrupted by the server's restart.

        A member is dropped two rounds later. Members restart from their disks if the server's state does not continue theirs.
        """
        begun = self._beginning
        if begun is None or not self._continued or begun.current_round is None:
            return False

        same_epoch = (begun.generation, begun.progress.epoch) == (state.generation, state.progress.epoch)
        return same_epoch and client.exited_height <= begun.current_round.height + telemetry.Dropped.ROUNDS_AFTER


def _missing(state: CoordinatorState, slot: int) -> str:
    """Return which duties a dropped member missed, see `telemetry.MemberExited`.

    The statements about its result also tell whether it sent anything: who states as a witness takes part, and so does who has a
    result that some witnesses saw.
    """
    client = state.epoch.clients[slot]
    if client.missed >= MAX_MISSED:
        return "unstated"

    attesting = state.round_at(client.exited_height - telemetry.Dropped.ROUNDS_AFTER + 1)
    if attesting is None:
        return "late"
    if any(statement.index == slot or _saw(statement, slot) for statement in attesting.statements):
        return "slow"
    return "silent" if slot in witness_slots(state, attesting) else "late"


def _saw(statement: WitnessStatement, slot: int) -> bool:
    return bool(statement.participants[slot // 8] >> slot % 8 & 1)


def _repeated(state: CoordinatorState) -> str:
    """Return why a warmup begins again instead of the run going back."""
    others = len(state.pending) - len(state.healthy_slots)
    why = "some have not reported" if others <= 0 else "1 member has joined meanwhile"
    if others > 1:
        why = f"{others} members have joined meanwhile"
    return (
        f"no member of this warmup has the model after step {state.progress.step - 1}, but {why}: the warmup begins again "
        "with all of them, before the run goes back"
    )


def _went_back(state: CoordinatorState, event: WentBack) -> telemetry.WentBack:
    checkpoint = state.model.LLM.checkpoint.describe() if event.from_checkpoint else ""
    return telemetry.WentBack(event.from_step, event.to_step, event.from_checkpoint, checkpoint=checkpoint)
