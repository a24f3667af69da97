"""Which journal gives which step: every order, overlap and gap, and runs that went back."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.audit.planning import Plan, anchors, disagreements, of_one_run, plan
from psyche_core.audit.segments import Segment
from psyche_core.errors import InputError
from psyche_core.training.checkpoints.journal_records import AppliedRound, Header

INSTANCE = bytes(range(32))


def round_of(step: int, *, results: int = 1) -> AppliedRound:
    pairs = tuple((bytes((slot,)) * 32, bytes((slot,)) * 32) for slot in range(results))
    return AppliedRound(epoch=0, height=step - 1, step=step, learning_rate=0.1, results=pairs, statements=b"s" * 32)


def segment(base: int, last: int, *, generation: int = 0, name: str = "", damage: str = "") -> Segment:
    header = Header(instance=INSTANCE, generation=generation, base_step=base, base_digest=b"%032d" % base)
    rounds = tuple(round_of(step) for step in range(base + 1, last + 1))
    path = Path(name or f"g{generation}-{base}-{last}")
    return Segment(path=path, header=header, rounds=rounds, size=1, damage=damage)


def steps_of(planned: Plan) -> list[tuple[str, int, int]]:
    return [(str(each.segment.path), each.first_step, each.last_step) for each in planned.stretches]


_spans = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)


@given(st.lists(_spans, min_size=1, max_size=8), st.integers(0, 12), st.none() | st.integers(0, 12))
def test_a_plan_has_every_step_once_or_there_is_a_sentence(spans: list[list[int]], start: int, until: int | None) -> None:
    segments = [segment(base, last, name=f"{number}") for number, (base, last) in enumerate(spans)]
    covered = {step for base, last in spans for step in range(base + 1, last + 1)}
    last = max(last for _, last in spans) if until is None else until
    wanted = range(start + 1, last + 1)
    possible = covered.issuperset(wanted) and (bool(wanted) or (until == start and until <= max(last for _, last in spans)))
    if not possible:
        with pytest.raises(InputError):
            plan(segments, start=start, until=until)
        return

    planned = plan(segments, start=start, until=until)
    played = [step for each in planned.stretches for step in range(each.first_step, each.last_step + 1)]
    assert played == list(wanted)
    for each in planned.stretches:
        assert each.segment.covers(each.first_step)
        assert each.segment.covers(each.last_step)


def test_journals_come_in_any_order_and_the_one_that_leads_furthest_is_used() -> None:
    segments = [segment(40, 60), segment(0, 25), segment(0, 40), segment(60, 60)]
    assert steps_of(plan(segments, start=0)) == [("g0-0-40", 1, 40), ("g0-40-60", 41, 60)]
    assert steps_of(plan(segments, start=10, until=30)) == [("g0-0-40", 11, 30)]
    assert steps_of(plan(segments, start=40, until=40)) == []


@pytest.mark.parametrize(
    ("segments", "start", "until", "sentence"),
    [
        ([segment(0, 20), segment(40, 60)], 0, None, "no journal has the steps 21 to 40: a journal is missing; give it, or"),
        ([segment(0, 20), segment(40, 60)], 0, None, "audit up to step 20 with --until 20, or from step 40 on with a"),
        ([segment(0, 20), segment(40, 40)], 0, None, "no journal has the steps 21 to 40"),
        ([segment(40, 60)], 0, None, "no journal has the steps 1 to 40, and the audit starts with the model of step 0"),
        ([segment(0, 20, damage="torn"), segment(40, 60)], 0, None, r"steps 21 to 40 \(g0-0-20 is damaged after step 20: torn\)"),
        ([segment(0, 20, damage="torn")], 0, None, r"end with step 20 \(g0-0-20 is damaged after step 20: torn\); audit up to"),
        ([segment(0, 20)], 0, 21, "the journals end with step 20, so step 21 cannot be reached"),
        ([segment(0, 20)], 10, 9, "the audit starts with the model of step 10, so step 9 is behind it"),
        ([segment(0, 20)], 20, None, "there is nothing to apply to the model of step 20"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_told_in_a_sentence(
    segments: list[Segment], start: int, until: int | None, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        plan(segments, start=start, until=until)


def test_a_run_that_went_back_is_played_from_its_newest_generation() -> None:
    """Generation 0 came to step 50; the run went back to 45, and one journal begins before that."""
    segments = [segment(0, 30), segment(30, 50), segment(30, 70, generation=1), segment(70, 80, generation=1)]
    planned = plan(segments, start=0)
    assert steps_of(planned) == [("g0-0-30", 1, 30), ("g1-30-70", 31, 70), ("g1-70-80", 71, 80)]
    assert planned.generation_after(30) == 0
    assert planned.generation_after(31) == 1


def test_what_a_run_has_left_is_not_used_though_it_leads_further() -> None:
    segments = [segment(0, 30), segment(30, 50), segment(30, 40, generation=1)]
    assert steps_of(plan(segments, start=0)) == [("g0-0-30", 1, 30), ("g1-30-40", 31, 40)]
    with pytest.raises(InputError, match="the journals end with step 40, so step 45 cannot be reached"):
        plan(segments, start=0, until=45)
    segments.append(segment(60, 70, generation=1))
    with pytest.raises(InputError, match="no journal has the steps 41 to 60"):
        plan(segments, start=0)


def test_a_newer_generation_is_entered_where_it_begins() -> None:
    segments = [segment(0, 50), segment(40, 60, generation=1)]
    planned = plan(segments, start=0)
    assert steps_of(planned) == [("g0-0-50", 1, 40), ("g1-40-60", 41, 60)]
    found = anchors(planned, [*segments, segment(45, 55, name="left")])
    assert sorted(found) == [0, 40], "a journal of the history that was left says nothing about step 45"


def test_every_journal_of_the_history_says_what_the_model_must_be() -> None:
    segments = [segment(0, 40), segment(40, 60), segment(20, 50, name="of another member"), segment(90, 95)]
    found = anchors(plan(segments, start=0, until=60), segments)
    assert {step: [each.source for each in said] for step, said in found.items()} == {
        0: ["the journal g0-0-40"],
        20: ["the journal of another member"],
        40: ["the journal g0-40-60"],
    }
    assert found[20][0].digest == b"%032d" % 20


def test_journals_that_contradict_each_other_are_found_at_the_first_step_of_each() -> None:
    ours = segment(0, 40)

    def other(step: int, **changes: object) -> Segment:
        theirs = segment(10, 30, name=f"other {step} {changes}")
        rounds = list(theirs.rounds)
        for number in range(step, 31):
            rounds[number - 11] = replace(rounds[number - 11], **changes)  # type: ignore[arg-type]
        return replace(theirs, rounds=tuple(rounds))

    segments = [ours, other(25, results=()), other(12, learning_rate=0.2), other(20, statements=b"t" * 32), other(14, epoch=3)]
    found = disagreements(plan(segments, start=0), segments)
    assert {step: each.what for step, each in found.items()} == {
        12: "learning rates 0.1 and 0.2",
        14: "epoch 0, round 13, and epoch 3, round 13",
        20: "different statements of witnesses",
        25: "1 and 0 accepted results, not the same ones",
    }
    assert disagreements(plan(segments, start=0), [ours, other(20, statements=bytes(32))]) == {}, "unknown statements"
    assert disagreements(plan([ours], start=0), [ours, replace(segment(10, 30, generation=1), rounds=segments[1].rounds)]) == {}


def test_journals_of_several_runs_are_told_apart() -> None:
    other = segment(0, 9, name="foreign")
    other = replace(other, header=replace(other.header, instance=bytes(32)))
    segments = [segment(0, 9), other]
    assert of_one_run(segments, INSTANCE) == (segments[0],)
    with pytest.raises(InputError, match="the journals are of 2 runs, for instance foreign of instance 0000000000000000"):
        of_one_run(segments, None)
    with pytest.raises(InputError, match=re.escape("no journal is of the run with the instance ffffffffffffffff")):
        of_one_run(segments, b"\xff" * 32)
