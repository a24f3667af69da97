"""The tab Members: one row for each member."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from psyche_core.observer.member_view import MemberView
from psyche_core.text_safety import printable
from psyche_core.tui.panes import facts
from psyche_core.tui.panes.pane import Pane, Row, Table
from psyche_core.tui.watched import Watched
from psyche_core.ui.formatting import bytes_text, count_text, duration_text

_NARROW = ("member", "state", ">step", ">loss", ">tokens/s", ">sent", ">received")
_WIDE = (
    *("member", "id", "state", ">for", ">step", ">loss", ">tokens/s", ">sent", ">received", ">peers"),
    *("model at epoch's end", "why"),
)
WIDE = 120


class MembersPane(Pane):
    """Shows each member's state and figures."""

    def compose(self) -> ComposeResult:
        """Make a line of counts, and the table."""
        yield Static(id="member-counts")
        yield Table(id="members")

    @property
    def chosen(self) -> str | None:
        """The key of the member under the cursor."""
        return self.query_one("#members", Table).cursor_key

    def show(self, watched: Watched, now: float) -> None:
        """Show the present content."""
        wide = self.content_size.width >= WIDE
        self.query_one("#member-counts", Static).update(counts(watched))
        rows: list[Row] = [(member.key, _cells(watched, member, now, wide=wide)) for member in watched.members]
        self.query_one("#members", Table).fill(_WIDE if wide else _NARROW, rows)


def counts(watched: Watched) -> Text:
    """Return how many members are in which state."""
    states: dict[str, int] = {}
    for member in watched.view.roster:
        states[member.state or "expected"] = states.get(member.state or "expected", 0) + 1
    if not states:
        return Text("no member yet", style="dim")

    text = Text(f"{len(watched.view.roster)} members: ")
    for place, (state, count) in enumerate(sorted(states.items(), key=lambda item: -item[1])):
        text.append(", " if place else "").append(f"{count} ").append(facts.state_text(state))
    return text


def name_of(watched: Watched, member: MemberView) -> Text:
    """Return a member's name, with a mark for the member whose screen this is."""
    label = facts.label(member)
    return Text(f"{label} (you)", style="bold") if member is watched.me else Text(label)


def _cells(watched: Watched, member: MemberView, now: float, *, wide: bool) -> list[str | Text]:
    step = "" if member.step is None else str(member.step)
    loss = "" if member.loss is None else facts.number(member.loss)
    speed = count_text(member.tokens_per_second)
    heard = member.sent or member.received  # a server does not know its members' traffic
    sent, received = (bytes_text(member.sent), bytes_text(member.received)) if heard else ("", "")
    name, state = name_of(watched, member), facts.state_text(member.state)
    if not wide:
        return [name, state, step, loss, speed, sent, received]

    lasted = duration_text(max(0.0, now - member.spans[-1].since)) if member.spans else ""
    why = printable(member.spans[-1].why, at_most=80) if member.spans else ""
    identity = printable(member.id[:8], at_most=8)
    return [name, identity, state, lasted, step, loss, speed, sent, received, str(member.peers), _digest(watched, member), why]


def _digest(watched: Watched, member: MemberView) -> Text:
    if member.digest is None:
        return Text("")

    epoch, digest = member.digest
    others = {other.digest[1] for other in watched.view.roster if other.digest is not None and other.digest[0] == epoch}
    sign, style = ("=", "green") if len(others) == 1 else ("≠ DIFFERENT", "bold red")
    return Text(f"{epoch}: {printable(digest[:8], at_most=8)} {sign}", style=style)
