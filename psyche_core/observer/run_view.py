"""Turns the events of a run's members into what people watch: curves, members, epochs, checkpoints, pay, and news.

`handle` takes events of several members in any mixture, about in the order of their times; `follow` takes states of a
coordinator. Both only collect: no I/O, no clock. Memory is limited however long the run is. Every change has a version, so that a
reader who has a version can be sent only what changed since (`documents`). `member_reports` adds what members report about
themselves; `news` decides which events are news.
"""

from __future__ import annotations

import math
from collections import deque

from psyche_core.coordinator.state import CoordinatorState
from psyche_core.observer.buckets import BucketSeries
from psyche_core.observer.member_reports import MEMBER_REPORTS, enter_report
from psyche_core.observer.member_view import MemberView
from psyche_core.observer.news import TRAINING_PHASES, news_level
from psyche_core.observer.records import Answer, Entry, EpochView, News, Stage
from psyche_core.observer.rhythm import Rhythm
from psyche_core.observer.roster import Roster
from psyche_core.sdk.run_events import phase_of
from psyche_core.state_events import checks_between
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.events import Event
from psyche_core.text_safety import printable
from psyche_core.types import ClientState, RunState
from psyche_core.ui.event_text import describe
from psyche_core.ui.told_checks import ToldChecks

CURVE_BUCKETS = 4096
SMALL_BUCKETS = 1024
MAX_NEWS = 300
NAME_CHARACTERS = 64
"""Longest name of a member or an event file that is kept."""

MAX_EPOCHS = 256
MAX_SCORES = 64
"""Curves of benchmarks that are kept."""

SCORE_BUCKETS = 128
MAX_PROMPTS = 16
MAX_ANSWERS = 12
"""Most answers to a prompt that are kept: the first, and the newest ones."""

MAX_LISTED = 200
REPORT_REACH = 8
"""A witness's figures are used if their step is at most this far from the run's step."""

MAX_REPORTED_SCORE = 1e6
"""Largest score of a benchmark that is accepted from a witness. It is large because a perplexity may be large."""

MAX_REPORTED_SCORES = 16
"""Witnesses can add benchmarks only up to this number, so that they cannot keep out benchmarks that were measured here."""

MAX_REPORTED_LOSS = 50.0
"""Largest loss that is accepted from a witness, in nats per token; far more than any model has."""


_STATES = {
    ClientState.Healthy: "healthy",
    ClientState.Dropped: "dropped",
    ClientState.Withdrawn: "left",
    ClientState.Ejected: "ejected",
}
_OVER = ("finished", "failed", "ejected")
_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)
COORDINATOR = "coordinator"
"""Source of news that come from the coordinator's states and not from a program's events."""


class RunView:
    """Everything that is shown of one run.

    version: number of changes so far. newest: unix seconds of the newest event. silent: whether no event has come for so long
    that the run's programs have probably ended, see `look`. trained: whether members' own losses are known; if not, the losses
    that witnesses report may be known.
    """

    def __init__(self, *, run_id: str = "", total_steps: int | None = None) -> None:
        self.run_id: str = run_id
        self.total_steps = total_steps
        self.version: int = 0
        self.first: float | None = None
        self.newest: float = 0.0
        self.silent: bool = False
        self._rhythm = Rhythm()
        self.phase: telemetry.PhaseChanged | None = None
        self.phase_since: float | None = None
        self.loss: BucketSeries = BucketSeries(CURVE_BUCKETS)
        self.reported: BucketSeries = BucketSeries(CURVE_BUCKETS)
        self.validation: BucketSeries = BucketSeries(SMALL_BUCKETS)
        self.accepted: BucketSeries = BucketSeries(SMALL_BUCKETS)
        self.healthy: BucketSeries = BucketSeries(SMALL_BUCKETS)
        self.sent: BucketSeries = BucketSeries(SMALL_BUCKETS)
        self.received: BucketSeries = BucketSeries(SMALL_BUCKETS)
        self.roster: Roster = Roster()
        self.news: deque[News] = deque(maxlen=MAX_NEWS)
        self.epochs: dict[int, EpochView] = {}
        self.epochs_changed: int = 0
        self.stages: deque[Stage] = deque(maxlen=MAX_LISTED)
        self.stages_changed: int = 0
        self.entries: deque[Entry] = deque(maxlen=MAX_LISTED)
        self.entries_changed: int = 0
        self.scores: dict[tuple[str, str], BucketSeries] = {}
        self._measured: set[tuple[str, str]] = set()
        self.scores_changed: int = 0
        self.answers: dict[str, list[Answer]] = {}
        self.answers_changed: int = 0
        self.trained: bool = False
        self.last_step: int = 0
        self.tokens: int = 0
        self.parameters: int | None = None
        self.newest_validation: tuple[int, float] | None = None
        self.differ: int = 0
        self.ended: telemetry.Ended | None = None
        self._server: str | None = None
        self._signed: deque[int] = deque(maxlen=MAX_EPOCHS)
        self._sent = self._received = 0
        self._checks = ToldChecks()
        self._followed: CoordinatorState | None = None

    def handle(self, source: str, time: float, event: Event) -> None:
        """Add an event. source: name of the member's file or process. time: unix seconds, from the clock of that process."""
        if not self._checks.is_new(event):
            return

        source = printable(source, at_most=NAME_CHARACTERS)
        self.version += 1
        self.first = time if self.first is None else min(self.first, time)
        self._note_time(time)
        match event:
            case telemetry.Started(role="server"):
                self._server = source
                self.run_id = self.run_id or event.run_id
                self.total_steps = event.total_steps or self.total_steps
            case telemetry.Started():
                self.run_id = self.run_id or event.run_id
                self._note_start(source, time, event)
            case telemetry.RunDescribed():
                self.total_steps = self.total_steps or event.total_steps
            case telemetry.PhaseChanged():
                if self._server in (None, source):
                    self._note_phase(time, event)
            case telemetry.StepTrained():
                self._note_trained(source, time, event)
            case telemetry.StepApplied():
                self._note_applied(source, time, event)
            case telemetry.ResultOverlaps():
                self._note_overlaps(time, event)
            case telemetry.WitnessReported():
                self._note_reported(time, event)
            case telemetry.NetworkTotals():
                self._note_network(source, time, event)
            case telemetry.PeerPaths():
                self._note_paths(source, time, event)
            case telemetry.Validated():
                self.validation.add(event.step, event.loss, time=time, changed=self.version)
                self.newest_validation = (event.step, event.loss)
            case telemetry.Evaluated():
                self._measured.add((event.task, event.metric))
                self._note_score(time, event)
            case telemetry.ScoreReported():
                self._note_reported_score(time, event)
            case telemetry.PromptAnswered():
                self._note_answer(time, event)
            case telemetry.EpochDigest():
                self._note_digest(source, time, event)
            case telemetry.EpochSigned():
                self._note_signed(event)
            case telemetry.ReplicasDiffer():
                self.differ += 1
            case telemetry.WentBack():
                self._go_back(source, time, event)
            case telemetry.CheckpointSaved():
                self._list(Entry(time, "saved", event.step, event.path))
            case telemetry.CheckpointStored():
                self._list(Entry(time, "stored", event.step, event.location))
            case telemetry.PointsCounted():
                self._note_points(time, event)
            case telemetry.RewardPaid():
                member = self._of_id(event.member)
                if member is not None:
                    member.paid += event.units
                    self._touch(member, time)
                self._list(Entry(time, "paid", event.units, event.member))
            case telemetry.ShareChecked():
                self._note_checked(time, event)
            case telemetry.Ended() if source == self._server:
                self.ended = event
            case _:
                self._note_member_report(source, time, event)
        level = news_level(event)
        if level is not None:
            self.news.append(News(self.version, time, source, level, describe(event)))

    def follow(self, time: float, state: CoordinatorState) -> None:
        """Add a state of the coordinator: phase, members, what they earned, and how checks of their shares ended.

        time: unix seconds when it was seen.
        """
        self.version += 1
        self.first = time if self.first is None else self.first
        self._note_time(time)
        self._rhythm.know(state.config)
        self.run_id = state.run_id
        self.total_steps = state.config.total_steps
        phase = phase_of(state)
        if phase != self.phase:
            self._note_phase(time, phase)
        states: dict[str, tuple[str, str]] = {}
        if state.run_state is not RunState.WaitingForMembers:
            for client in state.epoch.clients:
                states[client.id.signer.hex()] = (_STATES[client.state], "")
        for waiting in state.pending:
            states.setdefault(waiting.signer.hex(), ("waiting", "for the next epoch"))
        for key, (where, why) in states.items():
            self._enter(self._of_id(key), time, where, why)
        for member in self.roster:
            if member.id and member.id not in states and member.state in ("healthy", "waiting", "dropped"):
                self._enter(member, time, "left")
        for account in state.accounts:
            known = self._of_id(account.signer.hex())
            if known is not None and (known.earned, known.slashed) != (account.earned, account.slashed):
                known.earned, known.slashed = account.earned, account.slashed
                self._touch(known, time)
        self._follow_checks(time, state)
        if state.run_state is RunState.Finished and self.ended is None:
            self.ended = telemetry.Ended(f"the run finished after {state.progress.step - 1} steps", success=True)

    def look(self, now: float) -> bool:
        """Check whether the run has become silent. Return whether that changed. now: unix seconds.

        For programs that watch a run of other programs; a replay and the run's own programs need not call it.
        """
        phase = "" if self.phase is None else self.phase.phase
        silent = self.ended is None and self._rhythm.silent(now, phase=phase)
        if silent == self.silent:
            return False

        self.silent = silent
        self.version += 1
        return True

    def _note_time(self, time: float) -> None:
        self._rhythm.note(time)
        self.newest, self.silent = max(self.newest, time), False

    def _follow_checks(self, time: float, state: CoordinatorState) -> None:
        """Add the checks that a state shows compared with the one before it. A check that also came as an event counts once."""
        before, self._followed = self._followed, state
        if before is not None:
            if (before.instance, before.generation) != (state.instance, state.generation):
                self._checks.forget()
            for event in checks_between(before, state):
                self.handle(COORDINATOR, time, event)
        if state.run_state in _PLAYING:
            for client in state.epoch.clients:
                member = self._of_id(client.id.signer.hex()) if client.standing.strikes else None
                if member is not None and member.show_strikes(state.progress.epoch, client.standing.strikes):
                    self._touch(member, time)

    # ---- parts of handle

    def _note_points(self, time: float, event: telemetry.PointsCounted) -> None:
        for key, earned, slashed in event.accounts:
            member = self._of_id(key)
            if member is not None and (member.earned, member.slashed) != (earned, slashed):
                member.earned, member.slashed = earned, slashed
                self._touch(member, time)

    def _note_start(self, source: str, time: float, event: telemetry.Started) -> None:
        member = self.roster.introduce(source, printable(event.id, at_most=NAME_CHARACTERS), version=self.version)
        if member is None:
            return

        member.start()
        member.enter("starting", time, "" if member.starts == 1 else "started again")
        self._touch(member, time)

    def _note_phase(self, time: float, event: telemetry.PhaseChanged) -> None:
        self.phase, self.phase_since = event, time
        self.last_step = max(self.last_step, event.step - 1)
        stage = "Training" if event.phase in TRAINING_PHASES else event.phase
        if not self.stages or self.stages[-1].name != stage:
            self.stages.append(Stage(time, stage))
            self.stages_changed = self.version
        if event.needed is None:
            self.healthy.add(event.step, event.clients, time=time, changed=self.version)
        if event.phase in (*TRAINING_PHASES, "Cooldown"):
            epoch = self._epoch(event.epoch, event.step, time)
            if event.clients > epoch.clients:
                epoch.clients, self.epochs_changed = event.clients, self.version
        if event.phase == "Cooldown" and epoch.last_step is None:  # several members report the same phase
            epoch.last_step, epoch.ended, self.epochs_changed = event.step - 1, time, self.version

    def _note_trained(self, source: str, time: float, event: telemetry.StepTrained) -> None:
        member = self._of_source(source)
        weight = max(1, event.tokens)
        if not self.trained:
            self.trained, self.loss.reshaped = True, self.version  # it replaces the losses that witnesses report
        self.loss.add(event.step, event.loss, time=time, changed=self.version, weight=weight)
        self.tokens += max(0, event.tokens)
        if member is not None:
            member.note_trained(time, event, version=self.version)
            self._works(member, time, event.epoch)

    def _note_applied(self, source: str, time: float, event: telemetry.StepApplied) -> None:
        if event.trained <= 0:
            return

        self.last_step = max(self.last_step, event.step)
        self.accepted.add(event.step, event.accepted / event.trained, time=time, changed=self.version)
        member = self._of_source(source)
        if member is not None:
            self._works(member, time, event.epoch)

    def _works(self, member: MemberView, time: float, epoch: int) -> None:
        """Note that it trains or applies. A dropped or ejected member may still finish older work; that does not readmit it."""
        if member.out_epoch is None or epoch > member.out_epoch:
            member.out_epoch = None
            member.enter("healthy", time)
        self._touch(member, time)

    def _note_checked(self, time: float, event: telemetry.ShareChecked) -> None:
        member = self._of_id(event.member)
        if member is not None:
            member.checks += event.outcome == "passed"
            self._touch(member, time)
        for name in event.strikes:
            struck = self._of_id(name)
            if struck is not None:
                struck.note_strike(event.epoch)
                self._touch(struck, time)

    def _note_overlaps(self, time: float, event: telemetry.ResultOverlaps) -> None:
        """Add overlaps of all members' results, from a program whose events are read here. Adds no members."""
        for each in event.results[:MAX_LISTED]:
            member = self.roster.known(printable(each.member, at_most=NAME_CHARACTERS))
            if member is not None and math.isfinite(each.score) and member.note_overlap(event.step, each.score):
                self._touch(member, time)

    def _note_reported(self, time: float, event: telemetry.WitnessReported) -> None:
        """Add what a witness reports about its training: enough for a curve if no member's event file can be read."""
        if not (abs(event.step - self.last_step) <= REPORT_REACH and 0 <= event.loss <= MAX_REPORTED_LOSS):
            return  # a witness may report anything, and nothing here is verified

        member = self._of_id(event.member)
        self.reported.add(event.step, event.loss, time=time, changed=self.version)
        if member is not None and not member.tokens:
            member.step, member.loss = event.step, event.loss
            member.reported_rate = event.tokens_per_second if math.isfinite(event.tokens_per_second) else None
            member.losses.add(event.step, event.loss, time=time, changed=self.version)
            member.enter("healthy", time)
            self._touch(member, time)

    def _note_network(self, source: str, time: float, event: telemetry.NetworkTotals) -> None:
        member = self._of_source(source)
        if member is None:
            return

        sent, received = member.sent, member.received
        member.note_network(event)
        self._sent += member.sent - sent
        self._received += member.received - received
        self.sent.add(int(time), self._sent, time=time, changed=self.version)
        self.received.add(int(time), self._received, time=time, changed=self.version)
        self._touch(member, time)

    def _note_paths(self, source: str, time: float, event: telemetry.PeerPaths) -> None:
        member = self._of_source(source)
        if member is not None:
            member.over_others = max(0, event.over_others)
            self._touch(member, time)

    def _note_reported_score(self, time: float, event: telemetry.ScoreReported) -> None:
        """Add a score that a witness reports. A score of an event file that is read here has priority."""
        plausible = event.step <= self.last_step + REPORT_REACH and abs(event.value) <= MAX_REPORTED_SCORE
        known = (printable(event.task, at_most=NAME_CHARACTERS), printable(event.metric, at_most=NAME_CHARACTERS)) in self.scores
        room = known or len(self.scores) < MAX_REPORTED_SCORES
        if plausible and room and (event.task, event.metric) not in self._measured:
            self._note_score(time, event)

    def _note_score(self, time: float, event: telemetry.Evaluated | telemetry.ScoreReported) -> None:
        name = printable(event.task, at_most=NAME_CHARACTERS), printable(event.metric, at_most=NAME_CHARACTERS)
        if name not in self.scores and len(self.scores) >= MAX_SCORES:
            return

        series = self.scores.setdefault(name, BucketSeries(SCORE_BUCKETS))
        series.add(event.step, event.value, time=time, changed=self.version)
        self.scores_changed = self.version

    def _note_answer(self, time: float, event: telemetry.PromptAnswered) -> None:
        prompt = printable(event.prompt, at_most=MAX_NEWS)
        if prompt not in self.answers and len(self.answers) >= MAX_PROMPTS:
            return

        answers = self.answers.setdefault(prompt, [])
        answers.append(Answer(time, event.step, printable(event.text, at_most=MAX_NEWS)))
        if len(answers) > MAX_ANSWERS:
            del answers[1]  # the first one stays, for comparison
        self.answers_changed = self.version

    def _note_digest(self, source: str, time: float, event: telemetry.EpochDigest) -> None:
        epoch = self._epoch(event.epoch, event.step, time)
        epoch.last_step, epoch.ended = event.step, time if epoch.ended is None else epoch.ended
        epoch.signed = epoch.signed or event.step in self._signed
        epoch.digests = epoch.digests or {}
        if event.sha256 in epoch.digests or len(epoch.digests) < MAX_LISTED:
            epoch.digests[event.sha256] = epoch.digests.get(event.sha256, 0) + 1
        self.epochs_changed = self.version
        member = self._of_source(source)
        if member is not None:
            member.digest = (event.epoch, event.sha256)
            self._touch(member, time)

    def _note_signed(self, event: telemetry.EpochSigned) -> None:
        self._signed.append(event.step)
        for epoch in self.epochs.values():
            if epoch.last_step == event.step:
                epoch.signed, self.epochs_changed = True, self.version

    def _go_back(self, source: str, time: float, event: telemetry.WentBack) -> None:
        """Cut the curves. If the server reports it too, a member cuts only its own curve, because it may have been away."""
        if self._server not in (None, source):
            own = self._of_source(source)
            if own is not None:
                own.losses.cut(event.to_step, changed=self.version)
                self._touch(own, time)
            return

        curves = (self.loss, self.reported, self.validation, self.accepted, self.healthy, *self.scores.values())
        for series in curves:
            series.cut(event.to_step, changed=self.version)
        for member in self.roster:
            member.losses.cut(event.to_step, changed=self.version)
        self.last_step = min(self.last_step, event.to_step)

    def _note_member_report(self, source: str, time: float, event: Event) -> None:
        """Add an event about a member's state: the member's own, or the server's about another member."""
        if isinstance(event, telemetry.MemberExited | telemetry.MemberWithdrew):
            if isinstance(event, telemetry.MemberWithdrew):
                state, why = "left", ""
            else:
                state, why = ("ejected" if event.why in ("ejected", "struck") else "dropped"), event.why
            other = self._of_id(event.member)
            if other is not None and (state == "ejected" or other.state not in _OVER):
                self._enter(other, time, state, why)
                other.out_epoch = event.epoch
            return
        if source == self._server or not isinstance(event, MEMBER_REPORTS):
            return

        member = self._of_source(source)
        if member is None:
            return

        enter_report(member, time, event)
        if isinstance(event, telemetry.ModelLoaded):
            self.parameters = event.parameters
        self._touch(member, time)

    def _enter(self, member: MemberView | None, time: float, state: str, why: str = "") -> None:
        if member is not None and member.state != state:
            member.enter(state, time, why)
            self._touch(member, time)

    def _touch(self, member: MemberView, time: float) -> None:
        member.changed = self.version
        member.heard = max(member.heard, time)

    def _of_source(self, source: str) -> MemberView | None:
        return self.roster.of_source(source, version=self.version)

    def _of_id(self, id: str) -> MemberView | None:  # noqa: A002  # the events' word
        return self.roster.of_id(printable(id, at_most=NAME_CHARACTERS), version=self.version)

    # ---- lists

    def _epoch(self, number: int, step: int, time: float) -> EpochView:
        epoch = self.epochs.get(number)
        if epoch is None:
            epoch = self.epochs[number] = EpochView(number, step, time)
            self.epochs_changed = self.version
            while len(self.epochs) > MAX_EPOCHS:
                del self.epochs[min(self.epochs)]
        return epoch

    def _list(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.entries_changed = self.version
