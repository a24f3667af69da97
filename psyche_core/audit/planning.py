"""Which journal gives which step: orders journals, finds gaps, and where two of them contradict each other. Pure.

Several members may publish, so journals overlap. A run that went back (protocol F18) has another generation from then on, and a
member's journal may begin before the step that the run went back to. So the journal of the newest generation that has a step
gives it; of several, the one that leads furthest. After a step of a generation nothing of an earlier one is used: the run has
left it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psyche_core.audit.segments import Segment
from psyche_core.errors import InputError
from psyche_core.training.checkpoints.journal_records import NO_DIGEST, AppliedRound


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps that are applied from one journal, first_step to last_step, both included."""

    segment: Segment
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is applied, in order. start: the step of the masters to begin with. until: the last step."""

    start: int
    until: int
    stretches: tuple[Stretch, ...]

    def stretch_of(self, step: int) -> Stretch | None:
        """The stretch that applies a step; None if none does."""
        return next((each for each in self.stretches if each.first_step <= step <= each.last_step), None)

    def generation_after(self, step: int) -> int:
        """Generation of the journal that the masters after a step come from; at the start, of the one that is used first."""
        if not self.stretches:
            return 0

        stretch = self.stretch_of(max(step, self.start + 1))
        return self.stretches[-1].segment.header.generation if stretch is None else stretch.segment.header.generation


@dataclass(frozen=True, slots=True)
class Anchor:
    """The full digest (32 bytes) that the masters must have after some step. source: who says so, for people."""

    digest: bytes
    source: str


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two journals have different rounds for a step. what: in which way, for people."""

    ours: Segment
    theirs: Segment
    what: str


def of_one_run(segments: Sequence[Segment], instance: bytes | None) -> tuple[Segment, ...]:
    """Return the segments of one run. instance: of the run (32 bytes); None if the segments themselves must agree on it.

    Raises InputError if there are none, or if they are of several runs.
    """
    instances = sorted({segment.header.instance for segment in segments})
    if instance is None:
        if len(instances) > 1:
            files = [next(str(each.path) for each in segments if each.header.instance == one) for one in instances[:2]]
            message = (
                f"the journals are of {len(instances)} runs, for instance {files[0]} of instance {instances[0].hex()[:16]}… and "
                f"{files[1]} of {instances[1].hex()[:16]}…; give those of one run, or a --checkpoint that says which"
            )
            raise InputError(message)
        return tuple(segments)

    ours = tuple(each for each in segments if each.header.instance == instance)
    if not ours:
        message = (
            f"no journal is of the run with the instance {instance.hex()[:16]}…, which was expected; {segments[0].path} is of "
            f"{instances[0].hex()[:16]}…, another run or an earlier one of the same name"
        )
        raise InputError(message)
    return ours


def plan(segments: Sequence[Segment], *, start: int, until: int | None = None) -> Plan:
    """Decide which segment gives each step after `start`, up to `until`, or as far as they lead without it.

    segments: of one run. Raises InputError for a gap, naming its steps, and if nothing can be applied.
    """
    newest = max(each.header.generation for each in segments)
    furthest = max(each.last_step for each in segments if each.header.generation == newest)
    if until is not None and until > furthest:
        message = f"the journals end with step {furthest}{_damage_at(segments, furthest)}, so step {until} cannot be reached"
        raise InputError(message)
    if until is not None and until < start:
        message = f"the audit starts with the model of step {start}, so step {until} is behind it; give an earlier checkpoint"
        raise InputError(message)
    if until is None and _damage_at(segments, furthest):
        message = (
            f"the journals end with step {furthest}{_damage_at(segments, furthest)}; audit up to there with --until {furthest}"
        )
        raise InputError(message)
    if until is None and furthest <= start:
        message = f"the journals end with step {furthest}, so there is nothing to apply to the model of step {start}"
        raise InputError(message)

    last = furthest if until is None else until
    found: list[Stretch] = []
    at, generation = start, 0
    while at < last:
        usable = [each for each in segments if each.covers(at + 1) and each.header.generation >= generation]
        if not usable:
            raise InputError(_gap(segments, at, start=start))

        chosen = max(usable, key=lambda each: (each.header.generation, each.last_step))
        newer = [
            each.base_step
            for each in segments
            if each.header.generation > chosen.header.generation and at < each.base_step < each.last_step
        ]
        end = min(chosen.last_step, last, *newer)
        found.append(Stretch(chosen, at + 1, end))
        at, generation = end, chosen.header.generation
    return Plan(start, last, tuple(found))


def _gap(segments: Sequence[Segment], at: int, *, start: int) -> str:
    following = min(each.base_step for each in segments if each.base_step > at)
    missing = f"no journal has the steps {at + 1} to {following}{_damage_at(segments, at)}"
    if at == start:
        return (
            f"{missing}, and the audit starts with the model of step {start}; give the journal of these steps, or with "
            f"--checkpoint a model of step {following} or later"
        )
    return (
        f"{missing}: a journal is missing; give it, or audit up to step {at} with --until {at}, or from step {following} on with "
        "a --checkpoint of that step"
    )


def _damage_at(segments: Sequence[Segment], step: int) -> str:
    """What to say if a journal is damaged just there."""
    damaged = [each for each in segments if each.last_step == step and each.damage]
    return f" ({damaged[0].path} is damaged after step {step}: {damaged[0].damage})" if damaged else ""


def anchors(plan: Plan, segments: Sequence[Segment]) -> dict[int, list[Anchor]]:
    """Return what the first masters of each journal must be, by step, for journals of the history that is applied.

    A journal of an earlier generation that begins later than the run went back to is of a history that the run has left.
    """
    used = {stretch.segment.path for stretch in plan.stretches}
    found: dict[int, list[Anchor]] = {}
    for each in segments:
        step = each.base_step
        if not plan.start <= step <= plan.until:
            continue
        if each.path in used or each.header.generation == plan.generation_after(step):
            found.setdefault(step, []).append(Anchor(each.header.base_digest, f"the journal {each.path}"))
    return found


def disagreements(plan: Plan, segments: Sequence[Segment]) -> Mapping[int, Disagreement]:
    """Return, by step, where a journal of the same generation has another round than the one that is applied."""
    found: dict[int, Disagreement] = {}
    for stretch in plan.stretches:
        ours = stretch.segment
        for theirs in segments:
            if theirs is ours or theirs.header.generation != ours.header.generation:
                continue
            first = max(stretch.first_step, theirs.base_step + 1)
            for step in range(first, min(stretch.last_step, theirs.last_step) + 1):
                what = _different(ours.round_of(step), theirs.round_of(step))
                if what:
                    found.setdefault(step, Disagreement(ours, theirs, what))
                    break
    return found


def _different(ours: AppliedRound, theirs: AppliedRound) -> str:
    """In which way two rounds of a step differ; empty if they do not."""
    if (ours.epoch, ours.height) != (theirs.epoch, theirs.height):
        return f"epoch {ours.epoch}, round {ours.height}, and epoch {theirs.epoch}, round {theirs.height}"
    if set(ours.results) != set(theirs.results):
        return f"{len(ours.results)} and {len(theirs.results)} accepted results, not the same ones"
    if ours.learning_rate != theirs.learning_rate:
        return f"learning rates {ours.learning_rate!r} and {theirs.learning_rate!r}"
    if ours.statements != theirs.statements and NO_DIGEST not in (ours.statements, theirs.statements):
        return "different statements of witnesses"
    return ""
