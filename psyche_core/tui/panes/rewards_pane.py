"""The tab Rewards: what an epoch pays, and what each member earned, lost and was paid."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from psyche_core.tui.panes import facts
from psyche_core.tui.panes.members_pane import name_of
from psyche_core.tui.panes.pane import Pane, Row, Table
from psyche_core.tui.watched import Watched

_COLUMNS = ("member", "state", ">earned", ">slashed", ">paid out", ">accepted rounds")


class RewardsPane(Pane):
    """Shows points and payments."""

    def compose(self) -> ComposeResult:
        """Make the rates, and the table."""
        yield Static(id="rates")
        yield Table(id="rewards")

    def show(self, watched: Watched, now: float) -> None:
        """Show the present content."""
        del now
        self.query_one("#rates", Static).update(rates_text(watched))
        state = watched.state
        accepted = {} if state is None else {client.id.signer.hex(): client.accepted_rounds for client in state.epoch.clients}
        rows: list[Row] = [
            (
                member.key,
                [
                    name_of(watched, member),
                    facts.state_text(member.state),
                    "–" if member.earned is None else f"{member.earned:,}",
                    "–" if member.slashed is None else f"{member.slashed:,}",
                    f"{member.paid:,}" if member.paid else "",
                    str(accepted.get(member.id, "")),
                ],
            )
            for member in sorted(watched.view.roster, key=lambda member: -(member.earned or 0))
        ]
        self.query_one("#rewards", Table).fill(_COLUMNS, rows)


def rates_text(watched: Watched) -> Text:
    """Return what an epoch pays."""
    state = watched.state
    if state is None:
        if any(member.earned for member in watched.view.roster):
            return Text("points over the whole run, as its server tells them at the end of each epoch", style="dim")
        paid = sum(member.paid for member in watched.view.roster)
        return Text(f"{paid:,} units were paid out" if paid else "points are in the coordinator's state, which is not known here")

    rates, later = state.epoch.rates, state.future_rates
    if not (rates.earning_total_shared or later.earning_total_shared or any(account.earned for account in state.accounts)):
        return Text("this run pays no points", style="dim")

    text = Text(f"this epoch shares {rates.earning_total_shared:,} points among its members by their accepted rounds")
    if rates.slashing_per_client:
        text.append(f"; who is ejected loses {rates.slashing_per_client:,}")
    if later != rates:
        text.append(f"\nthe next epoch shares {later.earning_total_shared:,}, and takes {later.slashing_per_client:,}")
    return text
