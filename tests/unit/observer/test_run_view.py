"""What becomes of events: curves, members, epochs, and documents for pages."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.coordinator.state import Account, Client, Epoch
from psyche_core.observer.documents import head, losses_document, member_document, outline, run_document
from psyche_core.observer.member_view import MAX_SPANS
from psyche_core.observer.roster import MAX_MEMBERS
from psyche_core.observer.run_view import COORDINATOR, RunView
from psyche_core.state_events import checks_between
from psyche_core.telemetry import events as telemetry
from psyche_core.testing.backend import small_state
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.ui.event_text import describe
from tests.unit.coordinator.checked_run import CHEAT, checked_run

IDS = {"client-1": "a1" * 32, "client-2": "b2" * 32, "client-3": "c3" * 32}


def begun(**more: Any) -> RunView:
    view = RunView(**more)
    view.handle("server", 0.0, telemetry.Started("server", "ff" * 32, "first-light", "127.0.0.1:1", 100))
    for name, id_ in IDS.items():
        view.handle(name, 1.0, telemetry.Started("client", id_, "first-light", "127.0.0.1:1"))
    return view


def train(view: RunView, name: str, step: int, loss: float, *, epoch: int = 0, tokens: int = 10) -> None:
    view.handle(name, 10.0 + step, telemetry.StepTrained(epoch, step, loss, tokens, 1.0, 100))


def states(view: RunView) -> dict[str, str]:
    return {member.key: member.state for member in view.roster}


def test_the_loss_is_that_of_all_members_by_their_tokens() -> None:
    view = begun()
    train(view, "client-1", 1, 2.0, tokens=30)
    train(view, "client-2", 1, 4.0, tokens=10)
    document = run_document(view)
    assert document["series"]["loss"]["rows"] == [[1, 2.5, 2.0, 4.0, 40, 11.0]]
    assert document["head"]["loss"] == 2.5
    assert document["head"]["tokens"] == 40
    assert document["head"]["total_steps"] == 100
    assert [each["rows"] for each in losses_document(view)["members"]] == [[[1, 2.0]], [[1, 4.0]]]


def test_the_outline_has_few_points_and_the_curves_shape() -> None:
    view = begun()
    assert outline(view) == []
    for step in range(1, 1001):
        train(view, "client-1", step, 10.0 - step / 200)
    shape = outline(view)
    assert len(shape) == 60
    assert shape == sorted(shape, reverse=True)
    assert [shape[0], shape[-1]] == pytest.approx([9.96, 5.04], abs=0.05)


def test_members_stand_where_their_events_say() -> None:
    view = begun()
    view.handle("client-1", 2.0, telemetry.Joined("first-light"))
    train(view, "client-2", 1, 3.0)
    view.handle("client-3", 3.0, telemetry.Dropped(0, 4, "silent", returns=True))
    assert states(view) == {"client-1": "joined", "client-2": "healthy", "client-3": "dropped"}
    train(view, "client-3", 2, 3.0)
    assert states(view)["client-3"] == "dropped", "it finishes what it had begun"
    view.handle("client-3", 20.0, telemetry.CameBack(0))
    view.handle("client-2", 21.0, telemetry.Ended("the run finished", success=True))
    view.handle("client-1", 21.0, telemetry.Ended("no memory", success=False))
    assert states(view) == {"client-1": "failed", "client-2": "finished", "client-3": "healthy"}
    page = member_document(view, "client-1")
    assert page is not None
    assert [span[1:] for span in page["member"]["spans"]] == [["starting", ""], ["joined", ""], ["failed", "no memory"]]


@pytest.mark.parametrize("why", ["ejected", "struck"])
def test_the_server_says_who_was_ejected_and_that_lasts(why: str) -> None:
    view = begun()
    train(view, "client-1", 1, 3.0)
    view.handle("server", 12.0, telemetry.MemberExited(0, "a1a1a1a1", why))
    train(view, "client-1", 2, 3.0)
    view.handle("client-1", 13.0, telemetry.Ended("the coordinator ejected this client", success=False))
    assert states(view)["client-1"] == "ejected"
    assert len(view.roster) == 3, "the first digits are enough to know it"


def test_who_was_dropped_takes_part_again_in_the_next_epoch() -> None:
    view = begun()
    train(view, "client-1", 1, 3.0)
    view.handle("server", 12.0, telemetry.MemberExited(0, "a1a1a1a1", "late"))
    train(view, "client-1", 5, 3.0, epoch=1)
    assert states(view)["client-1"] == "healthy"


def test_checks_and_strikes_are_counted_for_their_members() -> None:
    view = RunView()
    for name in ("client-1", "client-2"):
        view.handle(name, 0.0, telemetry.Started("client", IDS[name], "first-light", "x"))
    one, two = (IDS[name][:8] for name in ("client-1", "client-2"))
    for event in (
        telemetry.ShareChecked(0, 1, one, two, "passed"),
        telemetry.ShareChecked(0, 2, one, two, "passed"),
        telemetry.ShareChecked(0, 3, one, two, "undecided"),
        telemetry.ShareChecked(0, 4, one, two, "false_accusation", (two,)),
        telemetry.ShareChecked(0, 5, "00000000", two, "guilty", ("00000000",)),
    ):
        view.handle("server", 1.0, event)
    assert {member.name: (member.checks, member.strikes) for member in view.roster} == {
        "client-1": (2, 0),
        "client-2": (0, 1),
        "": (0, 1),
    }
    assert [(news.level, news.text.partition(": ")[0]) for news in view.news if "share of" in news.text] == [
        ("info", "epoch 0, round 3"),
        ("warning", "epoch 0, round 4"),
        ("warning", "epoch 0, round 5"),
    ]


def checked(view: RunView) -> dict[str, tuple[int, int]]:
    return {member.id[:8]: (member.checks, member.strikes) for member in view.roster if member.checks or member.strikes}


def told_of(checks: Sequence[telemetry.ShareChecked]) -> dict[str, tuple[int, int]]:
    passed = Counter(check.member for check in checks if check.outcome == "passed")
    strikes = Counter(name for check in checks for name in check.strikes)
    return {name: (passed[name], strikes[name]) for name in {*passed, *strikes}}


def failed_news(view: RunView) -> list[str]:
    return [news.text for news in view.news if "share of" in news.text]


def test_states_alone_say_how_checks_ended() -> None:
    states, checks = checked_run()
    view = RunView()
    for time, state in enumerate(states):
        view.follow(float(time), state)
    assert checked(view) == told_of(checks)
    assert {strikes for _, strikes in checked(view).values()} == {0, 2}
    assert failed_news(view) == [describe(check) for check in checks if check.outcome != "passed"]
    assert {news.source for news in view.news if "share of" in news.text} == {COORDINATOR}


def test_a_check_counts_once_however_many_tell_it() -> None:
    states, checks = checked_run()
    view = RunView()
    for time, (before, after) in enumerate(itertools.pairwise(states)):
        view.follow(float(time), after)
        for source in ("server", "client-1", "client-2"):
            for event in checks_between(before, after):
                view.handle(source, float(time), event)
    assert checked(view) == told_of(checks)
    assert len(failed_news(view)) == len([check for check in checks if check.outcome != "passed"])


def test_a_run_that_goes_back_checks_the_same_rounds_anew() -> None:
    states, checks = checked_run()
    view = RunView()
    for generation in range(2):
        for state in states:
            view.follow(1.0, replace(state, generation=generation))
    assert checked(view) == {name: (2 * passed, 2 * strikes) for name, (passed, strikes) in told_of(checks).items()}

    told = begun()
    for _ in range(2):
        told.handle("server", 1.0, telemetry.ShareChecked(0, 1, "a1a1a1a1", "b2b2b2b2", "passed"))
        told.handle("server", 2.0, telemetry.WentBack(9, 3, from_checkpoint=False))
    assert checked(told) == {"a1a1a1a1": (2, 0)}


def test_who_begins_to_follow_late_sees_the_strikes_of_the_epoch_once() -> None:
    states, _ = checked_run()
    name = states[-1].epoch.clients[CHEAT].id.short
    late = RunView()
    late.follow(1.0, states[-1])
    assert checked(late) == {name: (0, 2)}
    late.handle("client-1", 2.0, telemetry.ShareChecked(0, 1, name, "b2b2b2b2", "guilty", (name,)))
    assert checked(late) == {name: (0, 2)}, "one of the two"
    late.handle("client-1", 3.0, telemetry.ShareChecked(1, 1, name, "b2b2b2b2", "guilty", (name,)))
    assert checked(late) == {name: (0, 3)}
    for epoch in range(2, 40):
        late.handle("client-1", 3.0, telemetry.ShareChecked(epoch, 1, name, "b2b2b2b2", "guilty", (name,)))
    assert checked(late) == {name: (0, 41)}


def test_a_member_is_one_whether_its_file_or_the_server_is_heard_first() -> None:
    view = RunView()
    view.handle("server", 0.0, telemetry.Started("server", "ff" * 32, "first-light", "x"))
    view.handle("server", 1.0, telemetry.RewardPaid("a1a1a1a1", 70))
    view.handle("client-1", 2.0, telemetry.Started("client", IDS["client-1"], "first-light", "x"))
    train(view, "client-1", 1, 3.0)
    (member,) = view.roster
    assert (member.id, member.paid, member.name, member.step) == (IDS["client-1"], 70, "client-1", 1)

    other = RunView()
    train(other, "client-1", 1, 3.0)  # an old file, whose beginning is gone
    other.handle("server", 1.0, telemetry.RewardPaid("a1a1a1a1", 70))
    other.handle("client-1", 30.0, telemetry.Started("client", IDS["client-1"], "first-light", "x"))
    (member,) = other.roster
    assert (member.key, member.paid, member.step) == ("client-1", 70, 1)


def test_points_are_known_from_what_a_server_tells_too() -> None:
    view = RunView()
    view.handle("client-1", 1.0, telemetry.Started("client", IDS["client-1"], "first-light", "x"))
    view.handle("server", 2.0, telemetry.PointsCounted(3, (("a1a1a1a1", 1200, 0), ("77777777", 5, 2))))
    view.handle("server", 3.0, telemetry.PointsCounted(4, (("a1a1a1a1", 2400, 0),)))
    assert {member.id[:8]: (member.earned, member.slashed) for member in view.roster} == {
        "a1a1a1a1": (2400, 0),
        "77777777": (5, 2),
    }


def test_a_coordinators_states_are_enough_for_members_and_points() -> None:
    view = RunView()
    members = [NodeIdentity(bytes([n]) * 32, bytes([n]) * 32) for n in (1, 2, 3)]
    before = small_state(clients=3)
    epoch = Epoch(clients=(Client(members[0]), Client(members[1], ClientState.Ejected), Client(members[2], ClientState.Dropped)))
    state = replace(before, run_state=RunState.RoundTrain, epoch=epoch, pending=(), accounts=(Account(members[0].signer, 9, 1),))
    view.follow(5.0, state)
    assert [member.state for member in view.roster] == ["healthy", "ejected", "dropped"]
    assert next(iter(view.roster)).earned == 9
    assert head(view)["total_steps"] == state.config.total_steps
    view.follow(9.0, replace(state, epoch=replace(epoch, clients=(Client(members[0]),))))
    assert [member.state for member in view.roster] == ["healthy", "ejected", "left"]
    view.follow(10.0, replace(state, run_state=RunState.Finished))
    assert head(view)["ended"]["success"]


def test_how_much_a_member_s_newest_result_is_like_others_is_kept() -> None:
    view = begun()
    alike = telemetry.OverlapOfResult(IDS["client-2"], 1.0, IDS["client-1"], 4)
    view.handle("client-1", 20.0, telemetry.ResultOverlaps(0, 5, (telemetry.OverlapOfResult(IDS["client-1"], 0.1), alike), 0.01))
    shown = {member["label"]: member["overlap"] for member in run_document(view)["members"]}
    assert shown == {"client-1": 0.1, "client-2": 1.0, "client-3": None}
    before = view.version
    view.handle("client-3", 21.0, telemetry.ResultOverlaps(0, 4, (telemetry.OverlapOfResult(IDS["client-2"], 0.0),), 0.01))
    assert run_document(view, since=before)["members"] == [], "of an older step"
    view.handle("client-3", 21.5, telemetry.ResultOverlaps(0, 5, (telemetry.OverlapOfResult("dd" * 32, 0.2),), 0.01))
    assert len(view.roster) == 3, "nobody becomes known by it"
    wild = (telemetry.OverlapOfResult(IDS["client-2"], float("nan")), telemetry.OverlapOfResult(IDS["client-1"], 7.0))
    view.handle("client-3", 22.0, telemetry.ResultOverlaps(0, 6, wild, 0.01))
    shown = {member["label"]: member["overlap"] for member in run_document(view)["members"]}
    assert shown == {"client-1": 1.0, "client-2": 1.0, "client-3": None}
    assert not any("alike" in news.text for news in view.news), "figures are no news"


def test_what_witnesses_report_is_a_curve_and_a_lie_does_not_bend_it() -> None:
    view = begun()
    for step in range(1, 20):
        view.handle("server", float(step), telemetry.PhaseChanged("RoundTrain", 0, step, 3))
        view.handle("server", float(step), telemetry.WitnessReported("a1a1a1a1", step, 3.0, 50.0, 10.0))
    for step, loss in ((2**31, 3.0), (19, 1e30), (19, math.nan), (19, -1.0)):
        view.handle("server", 20.0, telemetry.WitnessReported("b2b2b2b2", step, loss, 1e300, math.inf))
    document = run_document(view)
    assert [row[1] for row in document["series"]["loss"]["rows"]] == [3.0] * 19
    assert document["head"]["reported"]
    assert document["head"]["tokens_per_second"] == 50
    json.dumps(document, allow_nan=False)


def test_scores_that_witnesses_report_are_curves_and_a_lie_does_not_bend_them() -> None:
    view = begun()
    view.handle("server", 1.0, telemetry.PhaseChanged("RoundTrain", 0, 9, 3))
    for step, value in ((3, 0.25), (7, 0.5), (2**31, 0.9), (8, 1e30), (8, math.nan)):
        view.handle("server", 2.0, telemetry.ScoreReported("a1a1a1a1", "arc_easy", "acc", value, 100, step))
    assert [(row.start, row.mean) for row in view.scores["arc_easy", "acc"].rows()] == [(3, 0.25), (7, 0.5)]
    for number in range(200):
        view.handle("server", 3.0, telemetry.ScoreReported("b2b2b2b2", f"task-{number}", "acc", 0.5, 100, 7))
    assert len(view.scores) == 16, "a witness cannot keep others' out"
    view.handle("client-1", 4.0, telemetry.Evaluated("piqa", "acc", 0.75, 100, 6, 9))
    view.handle("server", 5.0, telemetry.ScoreReported("a1a1a1a1", "piqa", "acc", 0.1, 100, 9))
    assert [row.mean for row in view.scores["piqa", "acc"].rows()] == [0.75], "what was measured here is not bent by a report"
    json.dumps(run_document(view), allow_nan=False)


def test_going_back_cuts_the_curves() -> None:
    view = begun()
    for step in range(1, 10):
        train(view, "client-1", step, 3.0)
    view.handle("server", 30.0, telemetry.WentBack(9, 4, from_checkpoint=True))
    assert [row[0] for row in run_document(view)["series"]["loss"]["rows"]] == [1, 2, 3, 4]
    assert run_document(view, since=view.version - 1)["series"]["loss"]["reset"]


@pytest.mark.parametrize(("of_server", "left"), [(True, [1, 2, 3, 4, 5]), (False, [1, 2, 3, 4])])
def test_a_member_that_tells_late_that_the_run_went_back_takes_no_new_step_from_the_curves(
    of_server: bool, left: list[int]
) -> None:
    """Where no server tells, its members do."""
    view = begun() if of_server else RunView(run_id="first-light")
    for step in range(1, 10):
        train(view, "client-1", step, 3.0)
    if of_server:
        view.handle("server", 30.0, telemetry.WentBack(9, 4, from_checkpoint=True))
        train(view, "client-1", 5, 3.0)
    view.handle("client-2", 31.0, telemetry.WentBack(9, 4, from_checkpoint=True))
    assert [row[0] for row in run_document(view)["series"]["loss"]["rows"]] == left


def test_traffic_is_summed_over_members_and_their_processes() -> None:
    view = begun()
    view.handle("client-1", 2.0, telemetry.NetworkTotals(100, 10, 2))
    view.handle("client-2", 2.0, telemetry.NetworkTotals(50, 5, 2))
    view.handle("client-1", 3.0, telemetry.Started("client", IDS["client-1"], "first-light", "x"))
    view.handle("client-1", 4.0, telemetry.NetworkTotals(7, 1, 2))
    assert (head(view)["sent"], head(view)["received"]) == (157, 16)
    assert [row[3] for row in run_document(view)["series"]["sent"]["rows"]] == [150, 157]


def test_an_epoch_ends_with_its_cooldown_where_no_member_tells_of_its_end() -> None:
    view = begun()
    for phase, time, epoch, step in (("RoundTrain", 10.0, 0, 1), ("Cooldown", 30.0, 0, 21), ("RoundTrain", 40.0, 1, 21)):
        view.handle("server", time, telemetry.PhaseChanged(phase, epoch, step, 3))
    ended = [(each["first"], each["last"], each["began"], each["ended"]) for each in run_document(view)["epochs"]]
    assert ended == [(1, 20, 10.0, 30.0), (21, None, 40.0, None)]


def test_an_epochs_end_says_how_many_replicas_are_equal() -> None:
    view = begun()
    view.handle("server", 5.0, telemetry.PhaseChanged("RoundTrain", 0, 1, 3))
    view.handle("server", 6.0, telemetry.EpochSigned(4, "d1" * 32))
    for name, digest in zip(IDS, ("d1", "d1", "e2"), strict=True):
        view.handle(name, 7.0, telemetry.EpochDigest(0, 4, digest * 32))
    (epoch,) = run_document(view)["epochs"]
    assert (epoch["first"], epoch["last"], epoch["digests"], epoch["digest"]) == (1, 4, [2, 1], "d1" * 8)
    assert epoch["signed"]


def test_memory_is_bounded_however_long_the_run_is() -> None:
    view = begun()
    for step in range(20_000):
        train(view, "client-1", step, 3.0)
        if step % 10 == 0:
            view.handle("client-1", 10.0 + step, telemetry.Dropped(step, 1, "late", returns=True))
    for n in range(MAX_MEMBERS + 100):
        view.handle(f"guest-{n}", 1.0, telemetry.Joined("first-light"))
    document = run_document(view)
    assert len(view.roster) == MAX_MEMBERS
    assert len(document["series"]["loss"]["rows"]) <= 4096
    assert all(len(member["spans"]) <= MAX_SPANS for member in document["members"])
    assert len(document["news"]) <= 300


EVENTS = st.one_of(
    st.builds(
        telemetry.StepTrained,
        st.integers(0, 3),
        st.integers(0, 300),
        st.floats(),
        st.integers(-5, 99),
        st.floats(),
        st.integers(),
    ),
    st.builds(telemetry.StepApplied, st.integers(0, 3), st.integers(0, 300), st.integers(-1, 9), st.integers(-1, 9), st.floats()),
    st.builds(
        telemetry.Started,
        st.sampled_from(["client", "server"]),
        st.sampled_from(["a1b2c3d4e5f6", "12345678", "", "x"]),
        st.text(max_size=9),
        st.text(max_size=9),
    ),
    st.builds(
        telemetry.MemberExited,
        st.integers(0, 3),
        st.sampled_from(["", "a1b2c3d4", "a1b2c3d4e5", "12345678"]),
        st.text(max_size=9),
    ),
    st.builds(telemetry.Dropped, st.integers(0, 3), st.integers(0, 9), st.text(max_size=9), st.booleans()),
    st.builds(telemetry.NetworkTotals, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 9)),
    st.builds(telemetry.EpochDigest, st.integers(0, 3), st.integers(0, 300), st.text(max_size=70)),
    st.builds(telemetry.PhaseChanged, st.text(max_size=9), st.integers(0, 3), st.integers(0, 300), st.integers(0, 9)),
    st.builds(
        telemetry.ShareChecked,
        st.integers(0, 3),
        st.integers(0, 9),
        st.sampled_from(["", "a1b2c3d4", "12345678"]),
        st.text(max_size=9),
        st.sampled_from(["passed", "guilty", "x"]),
        st.lists(st.text(max_size=9), max_size=3).map(tuple),
    ),
    st.builds(
        telemetry.PointsCounted,
        st.integers(0, 3),
        st.lists(
            st.tuples(st.sampled_from(["", "a1b2c3d4", "12345678"]), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(telemetry.RewardPaid, st.sampled_from(["", "a1b2c3d4", "12345678"]), st.integers(0, 2**64 - 1)),
    st.builds(telemetry.WentBack, st.integers(0, 300), st.integers(0, 300), st.booleans()),
    st.builds(telemetry.Ended, st.text(max_size=20), st.booleans()),
    st.builds(telemetry.Problem, st.text(max_size=9), st.text(max_size=20)),
)


@settings(max_examples=50, deadline=None)
@given(
    events=st.lists(st.tuples(st.sampled_from(["server", "client-1", "client-2", ""]), st.floats(0, 1e10), EVENTS), max_size=20),
    data=st.data(),
)
def test_whatever_is_told_is_a_document_and_increments_add_up_to_it(
    events: list[tuple[str, float, telemetry.Event]], data: st.DataObject
) -> None:
    view = RunView()
    seen = 0
    members: dict[str, Any] = {}
    rows: dict[int, list[Any]] = {}
    for source, time, event in events:
        view.handle(source, time, event)
        if data.draw(st.booleans()):
            document = json.loads(json.dumps(run_document(view, since=seen), allow_nan=False))
            if document["series"]["loss"]["reset"]:
                rows.clear()
            rows.update({row[0]: row for row in document["series"]["loss"]["rows"]})
            members.update({member["key"]: member for member in document["members"]})
            members = {key: members[key] for key in document.get("keys", members)}
            seen = document["version"]
    document = json.loads(json.dumps(run_document(view, since=seen), allow_nan=False))
    if document["series"]["loss"]["reset"]:
        rows.clear()
    rows.update({row[0]: row for row in document["series"]["loss"]["rows"]})
    members.update({member["key"]: member for member in document["members"]})
    members = {key: members[key] for key in document.get("keys", members)}
    whole = json.loads(json.dumps(run_document(view), allow_nan=False))
    assert sorted(rows.values()) == sorted(whole["series"]["loss"]["rows"]) if rows else not whole["series"]["loss"]["rows"]
    assert members == {member["key"]: member for member in whole["members"]}


def test_text_of_others_is_printable_and_short() -> None:
    view = RunView()
    view.handle(
        "\x1b[31mevil\u202e" + "x" * 100, 1.0, telemetry.Started("client", "<b>" * 50, "<script>alert(1)</script>\n", "x")
    )
    text = json.dumps(run_document(view), ensure_ascii=False)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert all(len(member["label"]) <= 64 and len(member["id"]) <= 64 for member in run_document(view)["members"])


def test_a_server_is_no_member_whatever_it_tells_first() -> None:
    view = RunView()
    view.handle("server", 0.0, telemetry.TokenFiles("data", 0, 3, 0, 0.0))
    view.handle("server", 1.0, telemetry.Started("server", "ff" * 32, "first-light", "x"))
    view.handle("server", 2.0, telemetry.Problem("warning", "a disk is full"))
    assert len(view.roster) == 0


def test_no_such_member_is_none() -> None:
    assert member_document(begun(), "nobody") is None


@pytest.mark.parametrize("since", [0, 2])
def test_a_document_says_what_it_starts_from(since: int) -> None:
    assert run_document(begun(), since=since)["since"] == since


def test_scores_and_answers_are_kept_within_bounds_and_sent_when_they_change() -> None:
    view = RunView(run_id="r")
    for step in range(100):
        view.handle("client-1", float(step), telemetry.Evaluated("arc_easy", "acc", step / 100, 10, step, step))
        view.handle("client-1", float(step), telemetry.PromptAnswered(0, "To be", f"text {step}\x1b", step, step))
    document = run_document(view)
    [score] = document["scores"]
    assert (score["task"], score["metric"], score["rows"][0], score["rows"][-1][0] >= 98) == ("arc_easy", "acc", [0, 0.0], True)
    [prompt] = document["answers"]
    steps = [answer["step"] for answer in prompt["answers"]]
    assert steps == [0, *range(89, 100)], "the first answer, and the newest"
    assert prompt["answers"][0]["text"] == "text 0\\x1b"
    assert {"scores", "answers"}.isdisjoint(run_document(view, since=view.version))
    for number in range(1000):
        view.handle("client-1", 1.0, telemetry.Evaluated(f"task-{number}", "acc", 0.5, 1, 1, 1))
        view.handle("client-1", 1.0, telemetry.PromptAnswered(number, f"prompt {number}", "x", 1, 1))
    assert (len(view.scores), len(view.answers)) == (64, 16)


def test_a_member_of_an_overlay_is_connected_with_some_and_reaches_the_rest_over_them() -> None:
    view = begun()
    view.handle("client-1", 2.0, telemetry.NetworkTotals(10, 20, 20))
    view.handle("client-1", 3.0, telemetry.PeerPaths((telemetry.PathOfPeer("aa", "direct", 3.0),), over_others=236))
    shown = member_document(view, "client-1")
    assert shown is not None
    assert (shown["member"]["peers"], shown["member"]["over_others"]) == (20, 236)
