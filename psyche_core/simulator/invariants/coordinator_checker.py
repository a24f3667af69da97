"""Checks the coordinator's invariants after every command: reference 2.16 in our terms, and decisions F1-F10.

Each check names its invariant. What the coordinator computes is computed here again in another way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from psyche_core.coordinator import commands
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.committee import drawn_order, witness_slots
from psyche_core.coordinator.state import MAX_REJOINS, STORED_ROUNDS, Client, CoordinatorState, Round
from psyche_core.simulator.run_result import InvariantViolation
from psyche_core.simulator.sample_tracker import SampleTracker, bits
from psyche_core.types import MAX_WITNESSES, ClientState, RunState

_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)


class CoordinatorChecker:
    """honest: signers of members that never lie. end_reasons: why epochs ended, in order.

    ejected_for_strikes: signers that verdicts about shares ejected, with the round; honest ones among them are counted, because
    no check promises that there is none. trained_again: told of samples of convicted shares, as bits. counts: of the run.

    announced: whether a signer announced a result of the round with this height and step, with its own key. no_excuse: honest
    members suffer nothing but the lies of others, so all their work must count. is_straggler: whether the member with this
    signer was so much slower than all others that F16 gives it no more time.
    """

    def __init__(
        self,
        *,
        honest: frozenset[bytes],
        announced: Callable[[bytes, tuple[int, int]], bool],
        is_straggler: Callable[[bytes], bool],
        no_excuse: bool = False,
    ) -> None:
        self.sample_tracker: SampleTracker = SampleTracker(honest=honest)
        self.end_reasons: list[str] = []
        self._honest = honest
        self._announced = announced
        self._is_straggler = is_straggler
        self._no_excuse = no_excuse
        self.ejected_for_strikes: dict[bytes, int] = {}
        self.trained_again: Callable[[int], None] = lambda _samples: None
        self.counts: Counter[str] = Counter()
        self._worked: Counter[int] = Counter()

    def restored(self, state: CoordinatorState, tracker: SampleTracker) -> None:
        """The coordinator continues from an older state and forgets what came after it. tracker: of that moment."""
        self.sample_tracker = tracker.copy()
        self.sample_tracker.balance(state)

    def changed(
        self,
        old: CoordinatorState,
        new: CoordinatorState,
        command: commands.Command,
        *,
        events: tuple[commands.Event, ...],
        now: int,
    ) -> None:
        """Check one change of the state by a command. now: unix seconds."""
        if not old.since <= new.since <= now:
            raise InvariantViolation("since-follows-time", f"since went {old.since} -> {new.since} at {now}")
        if new.pending_pause and not new.run_state.active:
            raise InvariantViolation("pauses-wait-in-active-phases-only", f"a pause is pending in {new.run_state.name}")

        _check_rights(old, command)
        _progress(old, new, events)
        if isinstance(command, commands.Equivocation):
            self.sample_tracker.evidence(old, new, command)
        if new.epoch is not old.epoch:
            self._epoch(old, new, command)
        for event in events:
            self._event(event, new)
            if isinstance(event, commands.ChallengeClosed):
                self._judged(event, old)
        if events or new.progress is not old.progress or new.requeue is not old.requeue:
            self.sample_tracker.balance(new)
        if new.accounts is not old.accounts:
            _accounts(old, new, events)

    def _epoch(self, old: CoordinatorState, new: CoordinatorState, command: commands.Command) -> None:
        before, after = old.epoch, new.epoch
        if new.run_state is RunState.Warmup and old.run_state is RunState.WaitingForMembers:
            if len({client.id.signer for client in after.clients}) != len(after.clients):
                raise InvariantViolation("slots-hold-distinct-members", "a member has two slots")
            return

        if after.clients is not before.clients:
            evidence = isinstance(command, commands.Equivocation)
            self._slots(before.clients, after.clients, evidence=evidence, verified=len(before.challenges))
        if after.rounds is not before.rounds:
            _rounds(new, () if before.unplayed else before.rounds)
            self._voided(before.rounds, new)

    def _voided(self, before: tuple[Round, ...], new: CoordinatorState) -> None:
        """Only liars' shares may be voided."""
        known = {stored.height: stored.voided for stored in before}
        for stored in new.epoch.rounds:
            for slot in stored.voided if stored.voided != known.get(stored.height) else ():
                if new.epoch.clients[slot].id.signer in self._honest and not new.epoch.clients[slot].standing.ejected:
                    raise InvariantViolation(
                        "no-honest-share-voided", f"the share of the honest member of slot {slot} was made void"
                    )

    def _judged(self, event: commands.ChallengeClosed, old: CoordinatorState) -> None:
        """A verdict: count it, and expect the samples of a convicted share again."""
        self.counts[f"challenges {event.outcome}"] += 1
        for slot in event.strikes:
            honest = old.epoch.clients[slot].id.signer in self._honest
            self.counts["strikes of honest members" if honest else "strikes of cheats"] += 1
        if event.requeued:
            place = (event.height, event.trainer)
            samples = bits(
                batch for one in old.epoch.challenges if (one.height, one.trainer) == place for batch in one.share
            )  # fmt: skip
            self.sample_tracker.trained_again(samples)
            self.trained_again(samples)

    def _ejected_for_strikes(self, client: Client) -> None:
        signer = client.id.signer
        if signer not in self.ejected_for_strikes:
            self.ejected_for_strikes[signer] = client.exited_height
            honest = signer in self._honest
            self.counts["honest members ejected for strikes" if honest else "cheats ejected for strikes"] += 1
            if not honest:
                self.counts["round in which a cheat was ejected"] = client.exited_height

    def _slots(self, before: tuple[Client, ...], after: tuple[Client, ...], *, evidence: bool, verified: int) -> None:
        if [client.id.signer for client in before] != [client.id.signer for client in after]:
            sentence = f"slots were {[str(c.id) for c in before]} and are {[str(c.id) for c in after]}"
            raise InvariantViolation("slots-never-move", sentence)

        for slot, (was, now) in enumerate(zip(before, after, strict=True)):
            if was is now:
                continue

            if was.state is ClientState.Ejected and now.state is not ClientState.Ejected:
                raise InvariantViolation("ejected-stays-ejected", f"slot {slot} was ejected and is {now.state.name}")
            change = now.accepted_rounds - was.accepted_rounds
            if now.state is ClientState.Ejected and now.standing.ejected:
                self._ejected_for_strikes(now)
            if change not in ((-1, 0) if evidence else range(-verified, 2 + verified)) or now.rejoins > MAX_REJOINS:
                raise InvariantViolation("slots-count-soundly", f"slot {slot} went {was} -> {now}")
            if now.state is ClientState.Ejected and now.id.signer in self._honest and not now.standing.ejected:
                raise InvariantViolation("no-honest-member-ejected", f"the honest member of slot {slot} was ejected")
            dropped = now.state is ClientState.Dropped and was.state is not ClientState.Dropped
            if dropped and self._no_excuse and now.id.signer in self._honest and not self._is_straggler(now.id.signer):
                reason = "it suffered nothing but lies of others, nor was it much slower than all others"
                sentence = f"the honest member of slot {slot} was dropped, and {reason}"
                raise InvariantViolation("no-honest-member-dropped", sentence)

    def _event(self, event: commands.Event, new: CoordinatorState) -> None:
        match event:
            case commands.RoundSettled():
                self.sample_tracker.settled(event, new)
                self._credited(event, new)
            case commands.EpochStarted():
                self._worked.clear()
            case commands.EpochEnded() if event.success:
                self.sample_tracker.epoch_ended(new)
                if self._no_excuse:
                    self._paid(new)
            case commands.WentBack():
                self.sample_tracker.went_back(new)
            case commands.EpochSigned():
                self._signed(event, new)
            case commands.CooldownStarted():
                self.end_reasons.append(event.reason)
                last = new.current_round
                if last is not None and not last.drain and last.statements and new.healthy_slots:
                    sentence = f"the cooldown began after round {last.height}, to whose results nobody attested"
                    raise InvariantViolation("epochs-end-with-a-drain-round", sentence)
            case commands.RunFinished():
                if event.steps != new.config.total_steps:
                    sentence = f"the run finished after {event.steps} of {new.config.total_steps} steps"
                    raise InvariantViolation("every-step-is-trained", sentence)

    def _signed(self, event: commands.EpochSigned, state: CoordinatorState) -> None:
        """Where honest members played in the epoch, liars alone sign no end."""
        began = {slot for stored in state.epoch.rounds for slot in stored.slots}
        honest = [
            client
            for slot, client in enumerate(state.epoch.clients)
            if client.id.signer in self._honest and (client.accepted_rounds or slot in began)
        ]
        if honest and all(client.end_digest != event.digest for client in honest):
            sentence = f"liars alone signed the end of step {event.step}; {len(honest)} honest members played in that epoch"
            raise InvariantViolation("liars-sign-no-end", sentence)

    def _credited(self, event: commands.RoundSettled, state: CoordinatorState) -> None:
        """Only a member that announced a result with its own key is credited with one."""
        place = (event.height, event.step)
        round_ = state.round_at(event.height)
        clients = state.epoch.clients
        worked = {slot for slot in shares(state, round_) if self._announced(clients[slot].id.signer, place)} if round_ else set()
        self._worked.update(worked)
        unearned = set(event.accepted) - worked
        if unearned and place not in self.sample_tracker.without_honest_quorum:
            sentence = f"slots {sorted(unearned)} were credited with results of step {event.step} that their keys never signed"
            raise InvariantViolation("points-go-to-who-signed", sentence)

    def _paid(self, state: CoordinatorState) -> None:
        """A member that did its work in an epoch is paid for some of it."""
        for slot, rounds in self._worked.items():
            client = state.epoch.clients[slot]
            if rounds >= 2 and not client.accepted_rounds and client.id.signer in self._honest:
                sentence = f"the honest member of slot {slot} gave results of {rounds} rounds and is paid for none"
                raise InvariantViolation("honest-work-is-paid", sentence)


def _check_rights(old: CoordinatorState, command: commands.Command) -> None:
    """Nobody sends for another member (F8), and only the elected member reports where the model is (F9)."""
    if isinstance(command, commands.Witness | commands.WarmupWitness):
        index = command.statement.index if isinstance(command, commands.Witness) else command.index
        clients = old.epoch.clients
        if index >= len(clients) or clients[index].id.signer != command.sender.signer:
            raise InvariantViolation("members-speak-for-themselves", f"{command.sender} spoke for slot {index}")
    elif isinstance(command, commands.Checkpoint):
        order = drawn_order(tuple(range(len(old.epoch.clients))), old.epoch.seed)
        elected = next((slot for slot in order if slot in old.healthy_slots and slot not in old.epoch.ceded), None)
        if elected is None or old.epoch.clients[elected].id.signer != command.sender.signer:
            raise InvariantViolation(
                "checkpointers-are-elected", f"{command.sender} moved the checkpoint, elected is slot {elected}"
            )


def _progress(old: CoordinatorState, new: CoordinatorState, events: tuple[commands.Event, ...]) -> None:
    before, after = old.progress, new.progress
    ended = sum(isinstance(event, commands.EpochEnded) and event.success for event in events)
    if after.epoch != before.epoch + ended:
        sentence = f"the epoch went {before.epoch} -> {after.epoch} with {ended} epochs ended"
        raise InvariantViolation("epoch-grows-by-one-per-ended-epoch", sentence)
    if after is before:
        return

    rollbacks = [event for event in events if isinstance(event, commands.WentBack)]
    if new.generation != old.generation:
        _went_back(old, new, rollbacks)
        return
    if rollbacks:
        raise InvariantViolation("training-never-goes-back-unsaid", "the run went back in the same generation")
    if after.data_index < before.data_index or after.step not in (before.step, before.step + 1):
        raise InvariantViolation("step-and-data-go-forward-only", f"progress went {before} -> {after}")
    if after.step > before.step:
        current = old.current_round
        attested = new.round_at(current.height) if current is not None else None
        if old.run_state not in _PLAYING or attested is None or attested.drain or not attested.statements:
            sentence = f"step {before.step} was counted though its round was a drain round or nobody attested in it"
            raise InvariantViolation("step-advances-with-trained-rounds-only", sentence)


def _went_back(old: CoordinatorState, new: CoordinatorState, rollbacks: list[commands.WentBack]) -> None:
    """A run may go back only to a signed end, or to the stored checkpoint if the owner or the configuration allows that."""
    step = new.progress.step - 1
    rightly = commands.WentBack(from_step=old.progress.step - 1, to_step=step, from_checkpoint=new.from_checkpoint)
    if rollbacks != [rightly] or new.generation != old.generation + 1:
        sentence = f"progress went {old.progress} -> {new.progress} in generation {new.generation}, said was {rollbacks}"
        raise InvariantViolation("training-never-goes-back-unsaid", sentence)

    ends = {end.step: end.data_index for end in ([old.stored] if new.from_checkpoint else old.ends)}
    attested = {} if new.from_checkpoint else dict.fromkeys(attested_digests(old), old.progress.data_index)
    if (attested | ends).get(step) != new.progress.data_index:
        sentence = f"progress went {old.progress} -> {new.progress}, known ends are {ends}, attested steps {sorted(attested)}"
        raise InvariantViolation("runs-go-back-to-known-ends", sentence)
    if new.from_checkpoint and not (old.config.restart_from_checkpoint or old.model_lost):
        raise InvariantViolation("runs-go-back-to-known-ends", "the run went back to its stored checkpoint and nobody allowed it")


def attested_digests(state: CoordinatorState) -> dict[int, bytes]:
    """The digests attested by at least two thirds of all who played in one of the stored rounds (of at most 32), by step."""
    played = len(frozenset().union(*(stored.slots for stored in state.epoch.rounds)))
    found = {}
    for stored in state.epoch.rounds[1:]:
        applied = stored.step - 2
        for statement in stored.statements:
            equal = sum(other.model_digest == statement.model_digest for other in stored.statements)
            if applied > 0 and any(statement.model_digest) and 3 * equal >= 2 * min(played, MAX_WITNESSES):
                found[applied] = statement.model_digest
    return found


def _rounds(new: CoordinatorState, before: tuple[Round, ...]) -> None:
    rounds = new.epoch.rounds
    heights = [stored.height for stored in rounds]
    last = before[-1].height if before else -1
    consecutive = all(later == earlier + 1 for earlier, later in pairwise(heights))
    if not consecutive or len(rounds) > STORED_ROUNDS or (heights and heights[-1] not in (last, last + 1)):
        raise InvariantViolation("heights-are-consecutive", f"stored heights are {heights} after {last}")
    if not rounds:
        return

    current = rounds[-1]
    if current.height > last:
        if current.slots != new.healthy_slots:
            sentence = f"round {current.height} is played by {current.slots}, healthy are {new.healthy_slots}"
            raise InvariantViolation("rounds-are-played-by-the-healthy", sentence)
        return

    indices = [statement.index for statement in current.statements]
    elected = witness_slots(new, current)
    if len(set(indices)) != len(indices) or not set(indices) <= set(elected):
        sentence = f"round {current.height} has statements of {indices}, elected are {elected}"
        raise InvariantViolation("statements-are-of-distinct-elected-witnesses", sentence)


def _accounts(old: CoordinatorState, new: CoordinatorState, events: tuple[commands.Event, ...]) -> None:
    paid = sum(points for event in events if isinstance(event, commands.RewardsShared) for _, points in event.earned)
    before, after = (sum(account.earned for account in state.accounts) for state in (old, new))
    if after - before != paid:
        raise InvariantViolation("accounts-are-conserved", f"accounts grew by {after - before}, rewards of {paid} were announced")
    if paid > old.epoch.rates.earning_total_shared:
        raise InvariantViolation(
            "accounts-are-conserved", f"{paid} points were paid from a pool of {old.epoch.rates.earning_total_shared}"
        )

    _newcomers_have_passed(old, events)
    earned = {account.signer: account.earned for account in new.accounts}
    for was in old.accounts:
        if earned.get(was.signer, -1) < was.earned:
            raise InvariantViolation("accounts-are-conserved", f"the account of {was.signer[:4].hex()} shrank or vanished")


def _newcomers_have_passed(old: CoordinatorState, events: tuple[commands.Event, ...]) -> None:
    """Where shares are checked, whoever the run pays for the first time has passed a check in this epoch."""
    if not old.config.verification_percent:
        return

    known = {account.signer for account in old.accounts if account.earned}
    for event in events:
        for slot, points in event.earned if isinstance(event, commands.RewardsShared) else ():
            client = old.epoch.clients[slot]
            if client.id.signer not in known and not client.standing.high:
                sentence = f"{points} points for slot {slot}, which was never paid before and has passed no check"
                raise InvariantViolation("newcomers-are-paid-after-a-check", sentence)
