"""The tab Coordinator: the members of the epoch, their health, the witnesses, and the votes so far."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from psyche_core.coordinator.round import committee, witness
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.errors import CoordinatorError
from psyche_core.tui.panes import facts
from psyche_core.tui.panes.pane import Pane, Row, Table
from psyche_core.tui.panes.run_pane import phase_line
from psyche_core.tui.watched import Watched
from psyche_core.types import RunState

_COLUMNS = ("slot", "member", "health", "role", "vote", ">seen by", ">accepted", ">missed")
_HEALTH = {"Healthy": "healthy", "Dropped": "dropped", "Withdrawn": "left", "Ejected": "ejected"}


class CoordinatorPane(Pane):
    """Shows the newest state of the coordinator."""

    def compose(self) -> ComposeResult:
        """Make the phase, the votes, and the table of slots."""
        yield Static(id="coordinator-phase")
        yield Static(id="votes")
        yield Table(id="slots")

    def show(self, watched: Watched, now: float) -> None:
        """Show the present content."""
        state = watched.state
        self.query_one("#coordinator-phase", Static).update(phase_line(watched, now))
        votes = self.query_one("#votes", Static)
        if state is None:
            votes.update(Text("no state of the coordinator has arrived yet", style="dim"))
            return

        votes.update(votes_text(state))
        self.query_one("#slots", Table).fill(_COLUMNS, slot_rows(state, own=watched.own))


def votes_text(state: CoordinatorState) -> Text:
    """Return the round, its witnesses, the statements that have arrived, and what they accepted so far."""
    now = state.current_round
    if now is None:
        waiting = len(state.pending)
        if state.run_state is RunState.Warmup:
            ready, slots = len(state.epoch.ready), len(state.epoch.clients)
            return Text(f"{ready} of {slots} members have said that they are ready")
        return Text(f"no round is played; {waiting} {'member waits' if waiting == 1 else 'members wait'} for the next epoch")

    elected = _witnesses(state, now)
    needed = witness.quorum(len(elected))
    text = Text(f"round {now.height} trains step {now.step}, {len(elected)} witnesses, {needed} make a quorum\n")
    before = state.round_at(now.height - 1)
    if before is None:
        return text.append("no earlier round of this epoch to vote on", style="dim")

    accepted = len(witness.accepted_slots(state, before))
    return text.append(
        f"votes on round {before.height}: {len(now.statements)} of {len(elected)} statements are here, "
        f"{accepted} of {len(shares(state, before))} results are accepted"
    )


def slot_rows(state: CoordinatorState, *, own: str) -> list[Row]:
    """Return a row for each slot of the epoch, then one for each member that waits for the next epoch."""
    now = None if state.run_state is RunState.WaitingForMembers else state.current_round
    before = None if now is None else state.round_at(now.height - 1)
    elected = () if now is None else _witnesses(state, now)
    trainers = () if now is None else committee.trainer_slots(now)
    stated = {} if now is None else {statement.index: statement for statement in now.statements}
    seen = [int.from_bytes(statement.participants, "little") for statement in stated.values()]
    shared = {} if before is None else shares(state, before)
    rows: list[Row] = []
    for slot, client in enumerate(state.epoch.clients):
        role = _role(slot, now, elected=elected, trainers=trainers)
        vote = "" if slot not in elected else ("sent" if slot in stated else "…")
        by = f"{sum(bits >> slot & 1 for bits in seen)}/{len(elected)}" if slot in shared else ""
        name = client.id.signer.hex()
        label = Text(f"{name[:8]} (you)", style="bold") if name == own else Text(name[:8])
        health = facts.state_text(_HEALTH[client.state.name])
        if client.standing.strikes:
            health.append(f" · {client.standing.strikes} strike{'s' if client.standing.strikes > 1 else ''}", style="red")
        missed = str(client.missed) if client.missed else ""
        rows.append((name, [str(slot), label, health, role, vote, by, str(client.accepted_rounds), missed]))
    in_epoch = {client.id.signer for client in state.epoch.clients}
    for waiting in state.pending:
        if waiting.signer not in in_epoch:
            name = waiting.signer.hex()
            label = Text(f"{name[:8]} (you)", style="bold") if name == own else Text(name[:8])
            rows.append((name, ["", label, Text("waiting"), "next epoch", "", "", "", ""]))
    return rows


def _role(slot: int, now: Round | None, *, elected: tuple[int, ...], trainers: tuple[int, ...]) -> str:
    """Return what a slot does in the round. A slot that recomputes another member's share gets no samples of its own."""
    if now is not None and slot in now.recomputing:
        return "verifier"

    return "witness" if slot in elected else "trainer" if slot in trainers else ""


def _witnesses(state: CoordinatorState, played: Round) -> tuple[int, ...]:
    try:
        return committee.witness_slots(state, played)
    except CoordinatorError:
        return ()
