"""Where one client stands, from its own events."""

from __future__ import annotations

import json
from itertools import count

from psyche_core.observer.client_status import ClientStatus
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.events import Event
from psyche_core.ui.client_status_text import status_lines

ID = "a1" * 32
START = telemetry.Started("client", ID, "first-light", "203.0.113.7:20000", 40)
MEMBERS = telemetry.PeerPaths(
    (
        telemetry.PathOfPeer("6c01aa22", "direct", 23.4, 12_000, 13_000),
        telemetry.PathOfPeer("77bb0011", "relayed", 81.0, 500, 600),
        telemetry.PathOfPeer("0badc0de", "none"),
    )
)


def after(*events: Event) -> ClientStatus:
    """The status after events that come a second apart, from unix second 1000 on."""
    status = ClientStatus()
    for moment, event in zip(count(1000.0), events, strict=False):
        status.handle(moment, event)
    return status


def test_nothing_is_known_before_the_first_event() -> None:
    document = ClientStatus().document()
    assert (document["run_id"], document["place"], document["phase"], document["newest"]) == ("", None, None, None)
    assert (document["peers"], document["peers_at"], document["checkpoint"]) == ([], None, None)


def test_a_client_that_trains() -> None:
    document = after(
        START,
        telemetry.Joined("first-light"),
        telemetry.PhaseChanged("RoundTrain", 1, 12, 3, height=4),
        telemetry.StepTrained(1, 12, 4.25, 800, 1.0, 1000),
        telemetry.StepApplied(1, 12, 3, 3, 0.1),
        MEMBERS,
        telemetry.CheckpointSaved(12, "checkpoints/first-light-12"),
    ).document()
    assert (document["run_id"], document["id"], document["total_steps"]) == ("first-light", ID, 40)
    assert (document["phase"], document["epoch"], document["round"], document["clients"]) == ("RoundTrain", 1, 4, 3)
    assert (document["step"], document["trained_step"], document["loss"]) == (12, 12, 4.25)
    assert (document["place"], document["place_since"]) == ("healthy", 1003.0)
    assert [(each["peer"], each["path"], each["rtt_ms"]) for each in document["peers"]] == [
        ("6c01aa22", "direct", 23.4),
        ("77bb0011", "relayed", 81.0),
        ("0badc0de", "none", None),
    ]
    assert document["peers"][0]["sent_per_second"] == 12_000
    assert document["peers_at"] == 1005.0
    assert document["checkpoint"] == {"time": 1006.0, "step": 12, "path": "checkpoints/first-light-12"}
    assert document["newest"] == 1006.0


def test_results_that_are_like_others_are_named_until_they_are_not() -> None:
    honest = telemetry.OverlapOfResult("aa" * 32, 0.1, "bb" * 32, 4)
    copied = telemetry.OverlapOfResult("bb" * 32, 0.97, "aa" * 32, 5)
    assert after(START).document()["alike"] is None
    status = after(START, telemetry.ResultOverlaps(0, 5, (honest, copied), 0.01))
    (named,) = status.document()["alike"]
    assert named == {"member": "bb" * 32, "step": 5, "score": 0.97, "like": "aa" * 32, "like_step": 5}
    (line,) = [line for line in status_lines(status.document(), now=1002.0) if line.startswith("alike")]
    assert line == "alike:       bbbbbbbb's result of step 5 is 97% like aaaaaaaa's of step 5; honest ones are not"
    status.handle(1003.0, telemetry.ResultOverlaps(0, 6, (honest,), 0.01))
    assert status.document()["alike"] == []


def test_a_place_has_its_reason() -> None:
    dropped = after(START, telemetry.Dropped(1, 3, "silent", returns=False)).document()
    assert (dropped["place"], dropped["place_why"]) == ("dropped", "silent")
    waiting = after(START, telemetry.Dropped(1, 3, "silent", returns=False), telemetry.WaitsForEpoch(1)).document()
    assert (waiting["place"], waiting["place_why"]) == ("waiting", "for the next epoch")


def test_a_new_process_has_no_paths_and_keeps_its_checkpoint() -> None:
    status = after(START, MEMBERS, telemetry.CheckpointSaved(12, "there"), START)
    document = status.document()
    assert (document["peers"], document["peers_at"]) == ([], None)
    assert document["checkpoint"]["step"] == 12
    assert (document["place"], document["place_why"]) == ("starting", "")


def test_text_of_others_is_shown_as_text_and_every_number_is_json() -> None:
    wild = telemetry.PeerPaths((telemetry.PathOfPeer("\x1b[2J" * 50, "direct", float("nan")),))
    document = after(
        START, wild, telemetry.StepTrained(0, 1, float("inf"), 1, 1.0, 1), telemetry.Problem("warning", "a\nb")
    ).document()
    text = json.dumps(document, allow_nan=False)
    assert "\\u001b" not in text
    assert document["problem"]["text"] == "a\\nb"
    assert (document["loss"], document["peers"][0]["rtt_ms"]) == (None, None)


def test_members_over_others_are_counted_beside_those_that_are_named() -> None:
    guest = telemetry.PathOfPeer("77bb0011", "direct", 2.0, neighbour=False)
    document = after(START, telemetry.PeerPaths((telemetry.PathOfPeer("6c01aa22", "none"), guest), over_others=37)).document()
    assert document["over_others"] == 37
    assert [each["neighbour"] for each in document["peers"]] == [True, False]
    (line,) = [line for line in status_lines(document, now=1001.0) if line.startswith("members:")]
    assert line == "members:     1 reached directly, 1 not reached now, 37 over others (0 s ago)"
    assert after(START, MEMBERS, START).document()["over_others"] == 0


def test_a_client_that_waits_for_members_shows_how_many_are_needed() -> None:
    """It said "1 clients", and nothing of why the run stood still."""
    document = after(START, telemetry.PhaseChanged("WaitingForMembers", 1, 5, 1, needed=3)).document()
    assert document["needed"] == 3
    (line,) = [line for line in status_lines(document, now=1001.0) if line.startswith("phase:")]
    assert line.endswith("WaitingForMembers, epoch 1, 1 of 3 clients that are needed to start")
