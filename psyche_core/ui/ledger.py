"""What the events of a run's members say about the run, and which guarantees were broken.

Pure: events in, figures out; no processes, files or clock, so that the display, the report and the checks all use the same
figures. A broken guarantee (replicas that differ, accepted work lost) is recorded when its event arrives and never removed.

Masters are followed step by step. A client applies one step after the other, or takes over the others' masters, and must hold an
epoch's last step when it closes it; so nothing accepted can be left out or applied twice unnoticed. A share that was not accepted
is a broken guarantee too, until a member is known to have been disturbed. From then on such shares are only counted, since their
samples are assigned again (protocol F14). A disturbed member need not close every epoch, but each one it closes must be equal to
the others'.
"""

from __future__ import annotations

import statistics

from psyche_core.telemetry.events import (
    CheckpointSaved,
    Ended,
    EpochDigest,
    Event,
    ModelLoaded,
    NetworkTotals,
    PhaseChanged,
    Problem,
    ReplicasDiffer,
    Resynced,
    Started,
    StepApplied,
    StepTrained,
    Validated,
)
from psyche_core.ui.ledger_page import ClientPage


class RunLedger:
    """All members' pages, and the run's.

    violations: sentences about broken promises, in the order they were seen. problems: what members complained about.
    requeued: by epoch and step, shares that were not accepted. resyncs: how often masters were taken over, late starts included.
    """

    def __init__(self, *, run_id: str, total_steps: int | None = None) -> None:
        self.run_id = run_id
        self.total_steps = total_steps
        self.clients: dict[str, ClientPage] = {}
        self.phase: PhaseChanged | None = None
        self.validation: list[tuple[int, float]] = []
        self.epoch_ends: dict[int, int] = {}
        self.checkpoints: list[CheckpointSaved] = []
        self.problems: list[tuple[str, Problem]] = []
        self.violations: list[str] = []
        self.requeued: dict[tuple[int, int], int] = {}
        self.server_ended: Ended | None = None
        self.train_started: float | None = None
        self.train_ended: float | None = None
        self._server: str | None = None
        self._accepted: dict[tuple[int, int], int] = {}
        self._first_step: int | None = None
        self._steps: set[int] = set()
        self._meddled = False

    def expect(self, source: str) -> None:
        """Count on a client from the beginning, so that one that stays silent is missed and rows keep their order."""
        self._page(source)

    def disturb(self, source: str) -> None:
        """Somebody meddled with a client, for instance cut it off for a while: it may miss epochs and leave shares undone."""
        self._page(source).disturbed = self._meddled = True

    def asked_to_leave(self, source: str) -> None:
        """Somebody asked a client to leave in order: it owes nothing from now on but a good end."""
        self.disturb(source)
        self._page(source).leaving = True

    def killed(self, source: str) -> None:
        """A client's process was killed: it owes nothing any more, and starts from nothing when it is started again.

        What it had said and we had not read yet is not entered: nobody can tell what became of it.
        """
        self.disturb(source)
        self._page(source).die()

    def handle(self, source: str, time: float, event: Event) -> None:
        """Enter an event. source: name of the member's process; time: unix seconds, as its process saw it."""
        if source in self.clients and self.clients[source].dead and not isinstance(event, Started):
            return

        match event:
            case Started(role="server"):
                self._server = source
            case Started():
                self._page(source).start(event, late=self._first_step is not None)
            case PhaseChanged():
                if self._server is None or source == self._server:
                    self.phase = event
            case ModelLoaded():
                self._page(source).note_loaded(event)
            case StepTrained():
                self._page(source).note_trained(time, event)
                started = time - event.seconds
                self.train_started = started if self.train_started is None else min(started, self.train_started)
            case StepApplied():
                self._note_applied(self._page(source), time, event)
            case NetworkTotals():
                self._page(source).note_network(event)
            case EpochDigest():
                self._note_digest(self._page(source), event)
            case ReplicasDiffer():
                self.violations.append(
                    f"replicas differ at the end of epoch {event.epoch}: {source} has {event.ours[:16]}…, "
                    f"{event.peer} told it {event.theirs[:16]}…"
                )
            case Resynced():
                self._page(source).note_resynced(event, excused=self._meddled)
            case Validated():
                self.validation.append((event.step, event.loss))
            case CheckpointSaved():
                self.checkpoints.append(event)
            case Problem():
                self.problems.append((source, event))
            case Ended():
                self._note_ended(source, event)

    @property
    def last_step(self) -> int:
        """The newest step that any client applied; 0 before the first."""
        return max(self._steps, default=0)

    @property
    def steps(self) -> int:
        """Steps that anybody applied."""
        return len(self._steps)

    @property
    def epochs(self) -> int:
        """Epochs whose end every client reached that nobody disturbed."""
        return sum(self._closed_by_all(epoch) for epoch in self.epoch_ends)

    @property
    def identical(self) -> bool:
        """Whether all undisturbed clients, and two at least, closed every epoch with one digest; and there was an epoch."""
        return bool(self.epoch_ends) and all(
            self._closed_by_all(epoch) and len(set(self._digests(epoch))) == 1 for epoch in self.epoch_ends
        )

    @property
    def kills(self) -> int:
        """Processes of clients that were killed."""
        return sum(page.kills for page in self.clients.values())

    @property
    def resyncs(self) -> int:
        """Times a client took over the others' masters."""
        return sum(page.resyncs for page in self.clients.values())

    @property
    def train_seconds(self) -> float:
        """From the beginning of the first step trained to the last one applied, by anybody."""
        if self.train_started is None or self.train_ended is None:
            return 0.0

        return max(0.0, self.train_ended - self.train_started)

    @property
    def mean_losses(self) -> list[tuple[int, float]]:
        """(step, mean loss of the clients that trained it), by step."""
        by_step: dict[int, list[float]] = {}
        for page in self.clients.values():
            for step, loss in page.losses:
                by_step.setdefault(step, []).append(loss)
        return [(step, statistics.fmean(losses)) for step, losses in sorted(by_step.items())]

    def remaining_seconds(self, now: float) -> float | None:
        """To the last step at the pace so far, None before there is a pace. now: unix seconds."""
        if not self.total_steps or not self.steps or self.train_started is None:
            return None

        return max(0.0, now - self.train_started) / self.steps * max(0, self.total_steps - self.steps)

    def unfinished(self) -> list[str]:
        """Promises that can only be judged when everybody has ended: sentences, none when all were kept."""
        found = []
        if not self.clients:
            found.append("no client reported anything")
        if self._server is not None and self.server_ended is None:
            found.append("the server never said that the run finished")
        for page in self.clients.values():
            if page.ended is None and page.whole:
                found.append(f"{page.name} never said that it ended")
            left = page.unapplied()
            if left:
                found.append(f"{page.name} trained {_steps(left)} that it never applied")
            missing = page.missing(self.epoch_ends)
            if missing:
                found.append(f"{page.name} gave no digest for epoch {', '.join(map(str, missing))}")
        if not found:
            found += [f"too few clients closed epoch {epoch}" for epoch in self.epoch_ends if not self._closed_by_all(epoch)]
        return found

    def _page(self, source: str) -> ClientPage:
        return self.clients.setdefault(source, ClientPage(source))

    def _digests(self, epoch: int) -> list[str]:
        return [page.digests[epoch] for page in self.clients.values() if epoch in page.digests]

    def _closed_by_all(self, epoch: int) -> bool:
        enough = len(self._digests(epoch)) >= min(2, len(self.clients))
        return enough and all(page.disturbed or epoch in page.digests for page in self.clients.values())

    def _note_applied(self, page: ClientPage, time: float, event: StepApplied) -> None:
        if event.trained == 0:
            return  # a drain round has nothing to lose

        self.train_ended = time if self.train_ended is None else max(time, self.train_ended)
        self._steps.add(event.step)
        self._first_step = event.step if self._first_step is None else min(event.step, self._first_step)
        short = event.trained - event.accepted
        if short and not self._meddled:
            self.violations.append(
                f"a trained round was lost: of step {event.step}, {page.name} applied {event.accepted} of {event.trained} shares"
            )
        elif short:
            self.requeued[event.epoch, event.step] = short
        if event.accepted:
            theirs = self._accepted.setdefault((event.epoch, event.step), event.accepted)
            if theirs != event.accepted:
                self.violations.append(
                    f"accepted work was lost: of step {event.step}, {page.name} applied {event.accepted} shares, "
                    f"another client {theirs}"
                )
        complaint = page.apply(event, first_step=self._first_step)
        if complaint is not None:
            self.violations.append(complaint)

    def _note_digest(self, page: ClientPage, event: EpochDigest) -> None:
        end = self.epoch_ends.setdefault(event.epoch, event.step)
        if end != event.step:
            self.violations.append(
                f"{page.name} ended epoch {event.epoch} after step {event.step}, another client after step {end}"
            )
        left = page.close(event)
        if left:
            self.violations.append(f"{page.name} ended epoch {event.epoch} without applying {_steps(left)}, which it trained")
        elif not page.holds(event.step):
            self.violations.append(
                f"{page.name} ended epoch {event.epoch} after step {event.step}, but its masters are {page.standing}"
            )
        for other in self.clients.values():
            theirs = other.digests.get(event.epoch, event.sha256)
            if theirs != event.sha256:
                self.violations.append(
                    f"replicas differ at the end of epoch {event.epoch}: {page.name} has {event.sha256[:16]}…, "
                    f"{other.name} has {theirs[:16]}…"
                )

    def _note_ended(self, source: str, event: Ended) -> None:
        if source == self._server:
            self.server_ended = event
        else:
            page = self._page(source)
            page.ended = event
            if not page.whole:
                return  # killed, and the run was over before it was back
        if not event.success:
            self.violations.append(f"{source} ended without success: {event.reason}")


def _steps(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps ({steps[0]} … {steps[-1]})"
