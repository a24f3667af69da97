"""Computes a run's figures, and broken guarantees, from the events of its members.

It only turns events into figures and uses no processes, files or clock, so that the display, the report and the checks all use
the same figures. A broken guarantee (replicas that differ, accepted work lost) is recorded when its event arrives and never
removed.

`RunMetrics` follows each client's master weights step by step. A client applies one step after the other, or downloads the
others' master weights, and must have an epoch's last step when it closes the epoch. So an accepted result that is left out or
applied twice is always noticed. A share that was not accepted also breaks a guarantee, unless that is allowed, or a member is
known to have been disturbed: such shares are only counted (`lost_shares`), since their samples are assigned again (protocol F14).
A disturbed member need not close every epoch, but the digest of each epoch that it closes must equal that of the others.
"""

from __future__ import annotations

import statistics
from collections import Counter

from psyche_core.telemetry import events
from psyche_core.ui.client_metrics import ClientMetrics
from psyche_core.ui.lost_shares import LostShares
from psyche_core.ui.told_checks import ToldChecks


class RunMetrics:
    """The clients of all members, and the figures of the run.

    violations: sentences about broken guarantees, in the order of their detection. problems: problems that members reported.
    requeued: number of shares that were not accepted, by epoch and step. lost_shares: the same as a sentence for people. resyncs:
    how often clients downloaded the others' master weights, including late starts. allow_lost_shares: a share that was not
    accepted is only counted, because the machine may be too busy for the times of the run. of_member: these are the figures of
    one member for itself: a lost share is only counted, and its own failure is no broken guarantee but its last sentence.
    """

    def __init__(
        self, *, run_id: str, total_steps: int | None = None, allow_lost_shares: bool = False, of_member: bool = False
    ) -> None:
        self.run_id = run_id
        self.total_steps = total_steps
        self.clients: dict[str, ClientMetrics] = {}
        self.phase: events.PhaseChanged | None = None
        self.validation: list[tuple[int, float]] = []
        self.epoch_ends: dict[int, int] = {}
        self.checkpoints: list[events.CheckpointSaved] = []
        self.problems: list[tuple[str, events.Problem]] = []
        self.violations: list[str] = []
        self.requeued: dict[tuple[int, int], int] = {}
        self.server_ended: events.Ended | None = None
        self.train_started: float | None = None
        self.train_ended: float | None = None
        self.texts: dict[int, tuple[events.PromptAnswered, events.PromptAnswered]] = {}
        self.checks: Counter[str] = Counter()
        self.strikes: Counter[str] = Counter()
        self._told_checks = ToldChecks()
        self._server: str | None = None
        self._accepted: dict[tuple[int, int], int] = {}
        self._first_step: int | None = None
        self._steps: set[int] = set()
        self.lost_shares: LostShares = LostShares()
        self._of_member = of_member
        self._allow_lost_shares = allow_lost_shares or of_member
        self._disturbed = False

    def expect(self, source: str) -> None:
        """Register an expected client, so that its silence is noticed and the order of rows is fixed."""
        self._client(source)

    def disturb(self, source: str) -> None:
        """Mark a client as disturbed, for instance disconnected for a while: it may miss epochs and not train its shares."""
        self._client(source).disturbed = self._disturbed = True

    def asked_to_leave(self, source: str) -> None:
        """Mark a client as asked to leave: from now on it only has to end successfully."""
        self.disturb(source)
        self._client(source).leaving = True

    def killed(self, source: str) -> None:
        """Note that a client's process was killed: it has no obligations any more, and a new process starts without them.

        Its events that were not read before the kill are ignored, because their effect is unknown.
        """
        self.disturb(source)
        self._client(source).mark_killed()

    def handle(self, source: str, time: float, event: events.Event) -> None:
        """Add an event. source: name of the member's process. time: unix seconds, from the clock of that process."""
        if source in self.clients and self.clients[source].killed and not isinstance(event, events.Started):
            return

        new_check = self._told_checks.is_new(event)
        match event:
            case events.Started(role="server"):
                self._server = source
            case events.Started():
                self._client(source).start(event, late=self._first_step is not None)
            case events.PhaseChanged():
                if self._server is None or source == self._server:
                    self.phase = event
            case events.RunDescribed() if self._of_member:
                self.total_steps = event.total_steps
            case events.ModelLoaded():
                self._client(source).note_loaded(event)
            case events.StepTrained():
                self._client(source).note_trained(time, event)
                started = time - event.seconds
                self.train_started = started if self.train_started is None else min(started, self.train_started)
            case events.StepApplied():
                self._note_applied(self._client(source), time, event)
            case events.NetworkTotals():
                self._client(source).note_network(event)
            case events.PeerPaths():
                client = self._client(source)
                client.paths, client.over_others = event.peers, event.over_others
            case events.EpochDigest():
                self._note_digest(self._client(source), event)
            case events.ReplicasDiffer():
                self.violations.append(
                    f"replicas differ at the end of epoch {event.epoch}: {source} has {event.ours[:16]}…, {event.peer} "
                    f"reported {event.theirs[:16]}…"
                )
            case events.Resynced():
                self._client(source).note_resynced(event, excused=self._disturbed)
            case events.Validated():
                self.validation.append((event.step, event.loss))
            case events.PromptAnswered():
                self.note_text(event)
            case events.ShareChecked() if new_check:
                self.checks[event.outcome] += 1
                self.strikes.update(event.strikes)
            case events.CheckpointSaved():
                self.checkpoints.append(event)
            case events.Problem():
                self.problems.append((source, event))
            case events.Leaving():
                self._client(source).told_leaving = True
            case events.Ended():
                self._note_ended(source, event)

    def note_text(self, event: events.PromptAnswered) -> None:
        """Keep the first and the newest answer to each prompt."""
        first, _ = self.texts.get(event.number, (event, event))
        self.texts[event.number] = (first, event)

    @property
    def last_step(self) -> int:
        """The newest step that any client applied; 0 before the first."""
        return max(self._steps, default=0)

    @property
    def run_step(self) -> int:
        """The last step that the run has trained, as its coordinator says: also before clients here have applied one, or many."""
        return self.last_step if self.phase is None else max(0, self.phase.step - 1)

    @property
    def steps(self) -> int:
        """Number of steps that at least one client applied."""
        return len(self._steps)

    @property
    def leaving(self) -> list[str]:
        """Names of clients that a signal asked to leave, and that have not ended."""
        return [client.name for client in self.clients.values() if client.told_leaving and client.ended is None]

    @property
    def all_ended(self) -> bool:
        """Whether every client has ended."""
        return bool(self.clients) and all(client.ended is not None for client in self.clients.values())

    @property
    def epochs(self) -> int:
        """Number of epochs whose end was reached by every client that was not disturbed."""
        return sum(self._closed_by_all(epoch) for epoch in self.epoch_ends)

    @property
    def identical(self) -> bool:
        """Whether there was an epoch, and all undisturbed clients, at least two, closed every epoch with the same digest."""
        return bool(self.epoch_ends) and all(
            self._closed_by_all(epoch) and len(set(self._digests(epoch))) == 1 for epoch in self.epoch_ends
        )

    @property
    def kills(self) -> int:
        """Number of client processes that were killed."""
        return sum(client.kills for client in self.clients.values())

    @property
    def resyncs(self) -> int:
        """How often a client downloaded the others' master weights."""
        return sum(client.resyncs for client in self.clients.values())

    @property
    def train_seconds(self) -> float:
        """Seconds from the start of the first trained step to the last applied step, of any client."""
        if self.train_started is None or self.train_ended is None:
            return 0.0

        return max(0.0, self.train_ended - self.train_started)

    @property
    def mean_losses(self) -> list[tuple[int, float]]:
        """(step, mean loss of the clients that trained it), by step."""
        by_step: dict[int, list[float]] = {}
        for client in self.clients.values():
            for step, loss in client.losses:
                by_step.setdefault(step, []).append(loss)
        return [(step, statistics.fmean(losses)) for step, losses in sorted(by_step.items())]

    @property
    def settled_losses(self) -> list[tuple[int, float]]:
        """`mean_losses` without a newest step that some clients have not reported yet, for curves.

        While reports of a step arrive, its mean changes with each of them, and the end of the curve would jump.
        """
        counts: dict[int, int] = {}
        for client in self.clients.values():
            for step, _ in client.losses[-2:]:
                counts[step] = counts.get(step, 0) + 1
        means = self.mean_losses
        if len(means) > 1 and counts.get(means[-1][0], 0) < counts.get(means[-2][0], 0) and self.server_ended is None:
            means.pop()
        return means

    def remaining_seconds(self, now: float) -> float | None:
        """Estimated seconds until the last step at the speed so far; None before the speed is known. now: unix seconds."""
        if not self.total_steps or not self.steps or self.train_started is None:
            return None

        return max(0.0, now - self.train_started) / self.steps * max(0, self.total_steps - self.run_step)

    def unfinished(self) -> list[str]:
        """Return sentences about broken guarantees that can be checked only when all clients have ended; empty if none."""
        found = []
        if not self.clients:
            found.append("no client reported any event")
        if self._server is not None and self.server_ended is None:
            found.append("the server never reported that the run finished")
        for client in self.clients.values():
            if client.ended is None and client.whole:
                found.append(f"{client.name} never reported its end")
            left = client.unapplied()
            if left:
                found.append(f"{client.name} trained {_steps(left)} that it never applied")
            missing = client.missing(self.epoch_ends)
            if missing:
                found.append(f"{client.name} reported no digest for epoch {', '.join(map(str, missing))}")
        if not found:
            found += [f"too few clients closed epoch {epoch}" for epoch in self.epoch_ends if not self._closed_by_all(epoch)]
        return found

    def _client(self, source: str) -> ClientMetrics:
        return self.clients.setdefault(source, ClientMetrics(source))

    def _digests(self, epoch: int) -> list[str]:
        return [client.digests[epoch] for client in self.clients.values() if epoch in client.digests]

    def _closed_by_all(self, epoch: int) -> bool:
        enough = len(self._digests(epoch)) >= min(2, len(self.clients))
        return enough and all(client.disturbed or epoch in client.digests for client in self.clients.values())

    def _note_applied(self, client: ClientMetrics, time: float, event: events.StepApplied) -> None:
        if event.trained == 0:  # all members recomputed others' shares, so no work can be lost
            client.pass_over(event.step)
            return

        self.train_ended = time if self.train_ended is None else max(time, self.train_ended)
        self._steps.add(event.step)
        self.lost_shares.note(event)
        self._first_step = event.step if self._first_step is None else min(event.step, self._first_step)
        short = event.trained - event.accepted
        if short and not (self._disturbed or self._allow_lost_shares):
            self.violations.append(
                f"a trained round was lost: of step {event.step}, {client.name} applied {event.accepted} "
                f"of {event.trained} shares; a machine with much other work is too slow for some: try again when it has less"
            )
        elif short:
            self.requeued[event.epoch, event.step] = short
        if event.accepted:
            theirs = self._accepted.setdefault((event.epoch, event.step), event.accepted)
            if theirs != event.accepted:
                self.violations.append(
                    f"accepted work was lost: of step {event.step}, {client.name} applied {event.accepted} shares, another "
                    f"client {theirs}"
                )
        complaint = client.apply(event, first_step=self._first_step)
        if complaint is not None:
            self.violations.append(complaint)

    def _note_digest(self, client: ClientMetrics, event: events.EpochDigest) -> None:
        end = self.epoch_ends.setdefault(event.epoch, event.step)
        if end != event.step:
            self.violations.append(
                f"{client.name} ended epoch {event.epoch} after step {event.step}, another client after step {end}"
            )
        left = client.close(event)
        if left:
            self.violations.append(f"{client.name} ended epoch {event.epoch} without applying {_steps(left)}, which it trained")
        elif not client.holds(event.step):
            self.violations.append(
                f"{client.name} ended epoch {event.epoch} after step {event.step}, but its masters are {client.masters_text}"
            )
        for other in self.clients.values():
            theirs = other.digests.get(event.epoch, event.sha256)
            if theirs != event.sha256:
                self.violations.append(
                    f"replicas differ at the end of epoch {event.epoch}: {client.name} has {event.sha256[:16]}…, "
                    f"{other.name} has {theirs[:16]}…"
                )

    def _note_ended(self, source: str, event: events.Ended) -> None:
        if source == self._server:
            self.server_ended = event
        else:
            client = self._client(source)
            client.ended = event
            if not client.whole:
                return  # killed, and the run ended before its restart
        if not event.success and not self._of_member:
            self.violations.append(f"{source} ended without success: {event.reason}")


def _steps(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps ({steps[0]} … {steps[-1]})"
