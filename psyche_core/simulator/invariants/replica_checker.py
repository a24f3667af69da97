"""Checks the honest members' invariants: their replicas are equal, the run makes progress, and memory is bounded.

It looks into no machine, except at the sizes it reports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from psyche_core.coordinator.state import CoordinatorState
from psyche_core.simulator.replicas.replica import Payload
from psyche_core.simulator.run_result import InvariantViolation, NoGuarantee
from psyche_core.simulator.sample_tracker import SampleTracker
from psyche_core.types import RunState

SIZE_LIMITS: Mapping[str, int] = {
    "records": 12,
    "candidates": 48,
    "payloads": 64,
    "early_messages": 24,
    "offers": 8,
    "wanted_snapshots": 8,
}
"""Most entries of each kind in a machine's `size_report`, for each member of the run."""

DEFAULT_SIZE_LIMIT = 64
"""The same limit for kinds not listed."""

PACKETS_LIMIT = 1_000
"""Most live messages in one simulated transport, for each member; more means that a machine does not expire them."""


Place = tuple[int, int, int]
"""Lineage, height and step: a history of the coordinator, and a round in it."""


class ReplicaChecker:
    """Compares what each honest member applies, fetches and closes with what the first one did.

    initial: the run's first masters. liars: indexes of members that lie. applies, fetches: number of comparisons. lineage: of the
    coordinator's state; it grows when the coordinator goes back. Work for an older lineage is compared only within that lineage.
    """

    def __init__(self, tracker: Callable[[], SampleTracker], *, initial: object, liars: Collection[int] = ()) -> None:
        self.applies: int = 0
        self.fetches: int = 0
        self.lineage: int = 0
        self._tracker = tracker
        self._masters_after: dict[tuple[int, int], object] = {(0, 0): initial}
        self._taken: dict[tuple[int, int], int] = {}
        self._samples_in: dict[object, int] = {initial: 0}
        self._first: dict[tuple[Place, bool], tuple[object, str, tuple[Payload, ...]]] = {}
        self._liars: Collection[int] = liars
        self._undecided: list[tuple[str, Place, int]] = []

    def went_back(self, lineage: int, step: int, *, of: int) -> None:
        """The coordinator continues from the masters after `step` in lineage `of`; what came after them is forgotten.

        `of` need not be the current lineage: a coordinator that was restored twice may be back on the branch that the first
        restore left. It then knows the rounds of that branch again, and members apply those, not those played since. So what
        holds in the new lineage is what was found in the one that the state comes from, and nothing found in any other.
        """
        self.lineage = lineage
        self._masters_after |= {
            (lineage, at): known for (was, at), known in self._masters_after.items() if was == of and at <= step
        }
        self._taken |= {(lineage, at): taken for (was, at), taken in self._taken.items() if was == of and at <= step}
        self._first.update(
            {((lineage, height, at), full): first
             for ((was, height, at), full), first in list(self._first.items()) if was == of and at <= step}
        )  # fmt: skip

    def applied(self, name: str, place: Place, *, payloads: tuple[Payload, ...], before: object, masters: object) -> None:
        """A member applied these results.

        before, masters: its masters without them and with them.
        """
        self.applies += 1
        lineage, _, step = place
        key = (place, bool(payloads))
        first = self._first.get(key)
        if first is not None:
            if first[0] != masters:
                self._check_divided(name, first[1], place, payloads=(payloads, first[2]))
                raise InvariantViolation(
                    "replicas-are-equal", f"{name} and {first[1]} have different masters after applying step {step}"
                )
            return

        self._first[key] = (masters, name, payloads)
        missing = self._tracker().of_honest_before(step) & ~self._samples_in.get(before, 0) if lineage == self.lineage else 0
        if missing:
            lacking = f"{missing.bit_count()} samples accepted before it"
            sentence = f"{name} applied step {step} to masters without {lacking}, and nobody said that training goes back"
            raise InvariantViolation("training-never-goes-back-unsaid", sentence)

        taken = ever = 0
        for (of, _), samples in self._taken.items():
            ever |= samples if of == lineage else 0
        for payload in payloads:
            if (taken | ever) & payload.samples:
                sentence = f"{name} applied samples of member {payload.trainer} twice, in step {step}"
                raise InvariantViolation("no-sample-applied-twice", sentence)
            taken |= payload.samples
        self._taken[(lineage, step)] = self._taken.get((lineage, step), 0) | taken
        if lineage == self.lineage:
            self._compare(name, place, taken, final=False)
        if payloads or (lineage, step) not in self._masters_after:
            self._masters_after[(lineage, step)] = masters

    def trained_again(self, samples: int) -> None:
        """Applied samples of a convicted member's share are assigned again: they may be applied once more."""
        self._taken = {
            place: taken & ~samples if place[0] == self.lineage else taken for place, taken in self._taken.items()
        }  # fmt: skip

    def _check_divided(
        self, name: str, other: str, place: Place, *, payloads: tuple[tuple[Payload, ...], tuple[Payload, ...]]
    ) -> None:
        """Two members applied different results. Raises NoGuarantee if they differ in two results of a liar, and may do so.

        A result needs the votes of all statements about its share but as many as there may be liars. Where few members stated,
        two results that a liar signed can both have votes enough, and a member that knows one of them only chooses it (protocol
        section 5, "Not yet covered").
        """
        ours, theirs = map(frozenset, payloads)
        trainers = {payload.trainer for payload in ours ^ theirs}
        if place[1:] not in self._tracker().divisible or not trainers or not trainers <= set(self._liars):
            return
        if {payload.trainer for payload in ours - theirs} == trainers == {payload.trainer for payload in theirs - ours}:
            sentence = f"{name} and {other} applied different results of a liar in step {place[2]}, and both had votes enough"
            raise NoGuarantee(sentence)

    def record_masters(self, before: object, payloads: Callable[[], tuple[Payload, ...]], masters: object) -> None:
        """A member, honest or not, turned `before` into `masters`: record which samples are in them."""
        if masters not in self._samples_in:
            samples = self._samples_in.get(before, 0)
            for payload in payloads():
                samples |= payload.samples
            self._samples_in[masters] = samples

    def _compare(self, name: str, place: Place, taken: int, *, final: bool) -> None:
        """What was applied must be what was accepted; only liars' shares may turn out void later.

        If liars have a veto among the witnesses, less may be applied, but all members must omit the same.
        """
        tracker, key = self._tracker(), place[1:]
        accepted = tracker.accepted.get(key, [])
        if taken in accepted:
            return
        if key in tracker.without_honest_quorum and any(not taken & ~samples for samples in accepted):
            return

        if not final and any(not (samples ^ taken) & ~tracker.of_liars[key] for samples in accepted):
            self._undecided.append((name, place, taken))
            return

        rightly = " or ".join(str(samples.bit_count()) for samples in accepted) or "nothing yet"
        sentence = f"{name} applied {taken.bit_count()} samples of step {key[1]}, the coordinator accepted {rightly}"
        raise InvariantViolation("accepted-is-applied", sentence)

    def over(self) -> None:
        """The run is over: undecided cases must be settled now.

        Exceptions: liars' shares of an epoch's last round, which a liar can reveal as void after the cooldown, and of rounds
        stored when all members died, or when a cooldown ended in which nobody reached the coordinator. All members omitted them
        alike, and nobody can tell it any more (docs/explanation/simulator.md).
        """
        tracker = self._tracker()
        for name, place, taken in self._undecided:
            if place[0] == self.lineage and place[1:] not in tracker.last | tracker.evidence_lost:
                self._compare(name, place, taken, final=True)

    def fetched(self, name: str, *, lineage: int, step: int, masters: object, held: Callable[[object], bool]) -> None:
        """A member will replace its masters with others'. held: whether any running honest member holds these.

        If all honest members with the run's masters are gone, another model becomes the run's: that of its checkpoint, or one
        that few members offer, that nobody signed and that nobody contradicts (protocol section 5, "Not yet covered").
        """
        self.fetches += 1
        expected = self._masters_after.get((lineage, step))
        if expected == masters:
            return
        if expected is not None:
            if held(expected):
                raise InvariantViolation(
                    "fetched-masters-are-the-runs", f"{name} took masters for those after step {step} that are not"
                )
            self._masters_after[(lineage, step)] = masters
        if lineage == self.lineage:  # whatever it is, it stands for what was accepted
            self._samples_in.setdefault(masters, self._tracker().of_honest_before(step + 1))

    def has_more(self, masters: object, step: int, *, than: int, stored: bool = False) -> bool:
        """Whether these are the masters after `step`, in the current lineage, with more samples than those after `than`.

        Where nobody has applied `than` in this lineage yet, but the steps up to it had no results since one that somebody has
        applied, the masters are those after that one. stored: whether `than` names a stored model, which anybody may have stored.
        """
        known = max((at for lineage, at in self._masters_after if lineage == self.lineage and at <= than), default=0)
        accepted = self._tracker().accepted.items()
        followed = any(any(samples) for (_, at), samples in accepted if known < at <= than)
        at = than if followed or stored else known
        earlier = self._samples_in.get(self._masters_after.get((self.lineage, at)), 0)
        after = step > 0 and self._masters_after.get((self.lineage, step)) == masters
        return after and bool(self._samples_in.get(masters, 0) & ~earlier)

    def closed(self, name: str, *, lineage: int, step: int, masters: object) -> None:
        """A member reports that its masters are those after the last step of an epoch."""
        if self._masters_after.get((lineage, step), masters) != masters:
            sentence = f"{name} closed an epoch with masters that are not those after step {step}"
            raise InvariantViolation("every-round-is-applied-by-all", sentence)

    def finished(self, name: str, *, step: int, masters: object) -> None:
        """A member ended with success after the end of the run."""
        if self._masters_after.get((self.lineage, step)) != masters:
            sentence = f"{name} ended the run with masters that are not those after its last step, {step}"
            raise InvariantViolation("every-round-is-applied-by-all", sentence)


class ProgressChecker:
    """A run with a quorum of honest, connected members must progress. bound: longest pause in virtual seconds without faults.

    excused_until: end of the last temporary fault. longest: longest pause so far.
    """

    def __init__(self, *, bound: float, excused_until: float) -> None:
        self.longest: float = 0.0
        self._bound = bound
        self._excused_until = excused_until
        self._step = -1
        self._since = 0.0

    def check(self, state: CoordinatorState, now: float) -> None:
        """Check the time since the last step."""
        if state.progress.step != self._step:
            self._step, self._since = state.progress.step, now
        still = now - max(self._since, self._excused_until)
        self.longest = max(self.longest, still)
        if still > self._bound and state.run_state is not RunState.Finished:
            sentence = (
                f"nothing was trained for {still:.0f} s with all faults over, in {state.run_state.name} of epoch "
                f"{state.progress.epoch}, step {state.progress.step}, {len(state.healthy_slots)} healthy, "
                f"{len(state.pending)} pending"
            )
            raise InvariantViolation("the-run-goes-on", sentence)


def check_sizes(name: str, sizes: Mapping[str, int], *, packets: int, members: int) -> None:
    """Memory must be bounded. sizes: a machine's `size_report`; packets: live messages in its transport; members: of the run."""
    for kind, size in sizes.items():
        limit = members * SIZE_LIMITS.get(kind, DEFAULT_SIZE_LIMIT)
        if size > limit:
            raise InvariantViolation("memory-is-bounded", f"{name} keeps {size} {kind}, at most {limit} are allowed")
    if packets > members * PACKETS_LIMIT:
        raise InvariantViolation("memory-is-bounded", f"{name} has {packets} live messages")
