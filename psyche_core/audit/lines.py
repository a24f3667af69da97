"""Which rounds are of the run's history, where journals have several: a restored coordinator decides steps again. Pure.

Histories chain: where two journals have the same history for a step, they have the same rounds up to it. A line is one such
history, back from its newest step. The newest rounds (by generation, then step) begin it, or what a coordinator says; a journal
is on it up to the last step whose history the line has, too. What follows is of a history that the run has left. A journal whose
histories say neither counts, and the digests of models show whether it fits, unless another one contradicts it: that is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from psyche_core.audit.segments import Segment
from psyche_core.errors import InputError
from psyche_core.training.checkpoints.journal_records import NO_DIGEST

Histories = Mapping[int, bytes]
"""The history (32 bytes) after each step for which it is known."""

_ByModel = Mapping[tuple[int, bytes], bytes]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model whose digest and history (32 bytes each) are known, as a checkpoint has them."""

    step: int
    digest: bytes
    history: bytes


@dataclass(frozen=True, slots=True)
class Line:
    """What counts. histories: of the line. notes: a sentence without a full stop for each journal that does not count whole."""

    segments: tuple[Segment, ...]
    histories: Histories
    notes: tuple[str, ...]

    def has_left(self, step: int, history: bytes) -> bool:
        """Whether this history of a step (32 bytes) is known to be another than the line's."""
        return NO_DIGEST not in (history, self.histories.get(step, history)) and self.histories.get(step, history) != history


def line_of(
    segments: Sequence[Segment],
    *,
    start: int = 0,
    until: int | None = None,
    models: Iterable[KnownModel] = (),
    known: Histories | None = None,
) -> Line:
    """Return the line that the newest rounds continue, for the steps after `start` up to `until`.

    segments: of one run. models: what checkpoints say. known: what the run's coordinator says. Raises InputError where two lines
    are equally new, or where nothing says which of two a journal continues, if it matters up to `until`.
    """
    told = _bases(segments, models)
    own = [_histories(each, told) for each in segments]
    line = {step: history for step, history in (known or {}).items() if history != NO_DIGEST}
    by_coordinator = bool(line)
    tip = max(range(len(segments)), key=lambda place: _age(segments[place]))
    newest = None if own[tip] else segments[tip]
    notes: list[str] = []
    while True:
        _follow(own, line)
        open_ = [place for place, mine in enumerate(own) if _is_open(mine, line)]
        if not open_:
            break

        chosen = max(open_, key=lambda place: _age(segments[place]))
        for other in open_:
            if newest is None and _age(segments[other]) != _age(segments[chosen]):
                continue  # the older one
            parting = _parting(segments, own, chosen, other)
            matters = start < max(segments[chosen].last_step, segments[other].last_step)
            if parting is not None and matters and (until is None or until > parting):
                raise InputError(_undecided(segments[chosen], segments[other], parting, newest))
        if newest is not None and until is not None and _unproven(segments[chosen], own[chosen], line, until):
            notes.append(
                f"no history says that the newest rounds, in {newest.path}, continue {segments[chosen].path}; an audit further "
                f"than --until {until} compares the models"
            )
        newest = newest or segments[chosen]
        line |= {step: history for step, history in own[chosen].items() if step not in line}

    reference = f"in {newest.path}" if newest is not None and not by_coordinator else "which the coordinator has"
    counted: list[Segment] = []
    for each, mine in zip(segments, own, strict=True):
        conflict = any(line.get(step, history) != history for step, history in mine.items())
        if not conflict:
            counted.append(each)
            continue
        last = max((step for step, history in mine.items() if line.get(step) == history), default=None)
        first = each.base_step + 1 if last is None else last + 1
        notes.append(
            f"{each.path}: steps {first} to {each.last_step} are of another history than the newest rounds, {reference}: left by "
            "a restore of the coordinator or a return, not counted"
        )
        if last is not None and last > each.base_step:
            counted.append(replace(each, counted=last - each.base_step, damage=""))
    if not counted:
        message = f"no journal is of the run's history: {'; '.join(notes)}"
        raise InputError(message)
    return Line(tuple(counted), line, tuple(notes))


def _bases(segments: Sequence[Segment], models: Iterable[KnownModel]) -> _ByModel:
    """The history of each model (by step and digest) for which exactly one is known."""
    found: defaultdict[tuple[int, bytes], set[bytes]] = defaultdict(set)
    for model in models:
        found[model.step, model.digest].add(model.history)
    for each in segments:
        found[each.base_step, each.header.base_digest].add(each.header.base_history)
    sets = {key: histories - {NO_DIGEST} for key, histories in found.items()}
    return {key: next(iter(histories)) for key, histories in sets.items() if len(histories) == 1}


def _histories(segment: Segment, told: _ByModel) -> dict[int, bytes]:
    base = segment.base_step
    found = {step: segment.history_after(step) for step in range(base, segment.last_step + 1)}
    if found[base] == NO_DIGEST:
        found[base] = told.get((base, segment.header.base_digest), NO_DIGEST)
    return {step: history for step, history in found.items() if history != NO_DIGEST}


def _follow(own: Sequence[dict[int, bytes]], line: dict[int, bytes]) -> None:
    """Add to a line what journals have of before the last step whose history it has."""
    before = -1
    newest_first = sorted((mine for mine in own if mine), key=max, reverse=True)  # one pass leads back through all
    while len(line) != before:
        before = len(line)
        for mine in newest_first:
            last = max((step for step, history in mine.items() if line.get(step) == history), default=-1)
            line.update({step: history for step, history in mine.items() if step <= last and step not in line})


def _is_open(mine: Histories, line: Histories) -> bool:
    """Whether a journal has steps of which the line says nothing, and none that contradicts it."""
    return any(step not in line for step in mine) and all(line.get(step, history) == history for step, history in mine.items())


def _unproven(segment: Segment, mine: Histories, line: Histories, until: int) -> bool:
    """Whether an audit ends in steps of an open journal, before the line goes on."""
    last = max((step for step in mine if step in line), default=-1)
    return last < until < segment.last_step and segment.base_step < until and any(step >= segment.last_step for step in line)


def _age(segment: Segment) -> tuple[int, int]:
    return segment.header.generation, segment.last_step


def _parting(segments: Sequence[Segment], own: Sequence[Histories], one: int, other: int) -> int | None:
    """The last step that two journals surely have in common (0 if there is none), None if they do not contradict each other."""
    ours, theirs = own[one], own[other]
    both = ours.keys() & theirs.keys()
    if all(ours[step] == theirs[step] for step in both):
        return None

    common = [step for step in both if ours[step] == theirs[step]]
    first, second = segments[one].header, segments[other].header
    if (first.base_step, first.base_digest) == (second.base_step, second.base_digest):
        common.append(first.base_step)
    return max(common, default=0)


def _undecided(one: Segment, other: Segment, parting: int, newest: Segment | None) -> str:
    if newest is None:
        what = f"{one.path} and {other.path} are of two histories of the run, and equally new (step {one.last_step})"
    else:
        what = (
            f"{one.path} and {other.path} are of two histories of the run, and nothing says which of them {newest.path} continues"
        )
    return (
        f"{what}; ask the run's server with --server-addr, give a checkpoint that members have, leave one of the two away, or "
        f"audit what they have in common with --until {parting}"
    )
