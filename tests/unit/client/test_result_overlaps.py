"""What is told of accepted results: copies and old payloads show, whatever an optimizer does stops nothing, memory is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from psyche_core.client.machine.actions import Apply, KeptResult
from psyche_core.client.runtime.reports import result_overlaps
from psyche_core.client.runtime.reports.result_overlaps import ResultOverlapMeter
from psyche_core.telemetry.events import OverlapOfResult, ResultOverlaps
from psyche_core.telemetry.sinks import from_json, to_json
from psyche_core.types import BatchId
from psyche_core.wire.messages import Result

MEMBERS = [bytes([number]) * 32 for number in range(1, 5)]


class Positions:
    """Payloads are numbers of generators that draw positions."""

    def __init__(self, positions: Callable[[bytes], Any] | None = None) -> None:
        self.positions = positions or self.drawn

    @staticmethod
    def drawn(payload: bytes) -> Any:
        generator = np.random.default_rng(list(payload))
        return np.sort(generator.choice(1_000_000, 8000, replace=False)).astype(np.int64)


def kept(member: bytes, commitment: bytes) -> KeptResult:
    result = Result(0, 1, 1, 7, (BatchId(0, 0),), bytes(32), 4, commitment, bytes(64))
    return KeptResult(result, 0, 7, member, member)


def told(meter: ResultOverlapMeter, step: int, payloads: list[bytes], trainer: Any = None) -> ResultOverlaps | None:
    """Member by member, the results of a step are kept and applied."""
    commitments = tuple(bytes([step, place]) * 16 for place in range(len(payloads)))
    meter.note_results([kept(member, commitment) for member, commitment in zip(MEMBERS, commitments, strict=False)])
    work = Apply(step, step, (bytes(32),) * len(payloads), own_accepted=True, epoch=3, commitments=commitments)
    return meter.measure(work, payloads, trainer or Positions())


def test_copies_and_old_results_show_and_name_what_they_are_like() -> None:
    meter = ResultOverlapMeter()
    first = told(meter, 1, [b"a1", b"b1", b"c1", b"d1"])
    assert first is not None
    assert (first.epoch, first.step, len(first.results)) == (3, 1, 4)
    assert all(each.score < 0.05 for each in first.results)
    second = told(meter, 2, [b"a2", b"a2", b"c1", b"d2"])
    assert second is not None
    copied, copier, stale, honest = second.results
    assert (copied.score, copied.like, copied.like_step) == (1.0, MEMBERS[1].hex(), 2)
    assert (copier.score, copier.like, copier.like_step) == (1.0, MEMBERS[0].hex(), 2)
    assert (stale.score, stale.like, stale.like_step) == (1.0, MEMBERS[2].hex(), 1)
    assert honest.score < 0.05


def test_of_many_results_some_are_looked_at_and_not_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_overlaps, "MOST_RESULTS", 2)
    meter = ResultOverlapMeter()
    seen = set()
    for step in range(1, 41):
        found = told(meter, step, [bytes([step, place]) for place in range(4)])
        assert found is not None
        assert len(found.results) == 2
        seen |= {each.member for each in found.results}
    assert seen == {member.hex() for member in MEMBERS}  # all but once in 10**11 times


def test_results_of_unknown_trainers_are_left_out_and_those_for_which_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_overlaps, "MAX_BYTES", 5)
    meter = ResultOverlapMeter()
    sizes = dict(zip([member.hex() for member in MEMBERS], (2, 4, 2, 6), strict=True))
    seen = set()
    for step in range(1, 41):
        found = told(meter, step, [b"a1", b"long", b"c1", b"longer", b"from nobody that is known"])
        assert found is not None
        members = [each.member for each in found.results]
        assert sum(sizes[member] for member in members) <= 5
        assert members == [member for member in sizes if member in members], "in their order"
        seen |= set(members)
    assert seen == {member for member, size in sizes.items() if size <= 5}


def test_an_optimizer_that_cannot_tell_or_fails_tells_nothing() -> None:
    def fails(payload: bytes) -> Any:
        raise RuntimeError(payload)

    meter = ResultOverlapMeter()
    assert told(meter, 1, [b"a1", b"b1"], Positions(lambda _: None)) is None
    assert told(meter, 2, [b"a2", b"b2"], Positions(fails)) is None
    assert told(meter, 3, []) is None
    assert told(meter, 4, [b"a4", b"b4"]) is not None


def test_results_of_nothing_are_no_copies() -> None:
    found = told(ResultOverlapMeter(), 1, [b"a", b"b"], Positions(lambda _: np.zeros(0, dtype=np.int64)))
    assert found is not None
    assert [each.score for each in found.results] == [0.0, 0.0]


def test_trainers_of_results_that_are_never_applied_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_overlaps, "MAX_KNOWN", 3)
    meter = ResultOverlapMeter()
    meter.note_results([kept(MEMBERS[0], bytes([number]) * 32) for number in range(9)])
    work = Apply(1, 1, (bytes(32),) * 9, own_accepted=False, commitments=tuple(bytes([number]) * 32 for number in range(9)))
    found = meter.measure(work, [b"x"] * 9, Positions())
    assert found is not None
    assert len(found.results) == 1, "one member, and its last three results only"
    assert meter.measure(work, [b"x"] * 9, Positions()) is None, "each is told once"


def test_the_event_is_one_line_and_can_be_read_again() -> None:
    event = ResultOverlaps(1, 2, (OverlapOfResult("aa", 0.5, "bb", 1), OverlapOfResult("bb", 0.0)), 0.01)
    read = from_json(to_json(event))
    assert read is not None
    assert read[1] == event
    assert from_json(to_json(event).replace('"score": 0.5', '"score": "much"')) is None
