"""What people are told about paths to members."""

from __future__ import annotations

from psyche_core.client.runtime.reports.path_reporter import DIRECT_AGAIN, ONLY_RELAYED, PathReporter
from psyche_core.interfaces import PeerPath
from psyche_core.telemetry.events import Mended, PathOfPeer, PeerPaths, Problem
from psyche_core.telemetry.sinks import from_json, to_json

ANN, BOB = b"a" * 32, b"b" * 32


def path(peer: bytes, *, relayed: bool, sent: int = 0, received: int = 0) -> PeerPath:
    return PeerPath(peer, relayed=relayed, rtt=0.0253, bytes_sent=sent, bytes_received=received)


def test_nothing_is_told_where_a_transport_knows_no_paths() -> None:
    reporter = PathReporter()
    assert [reporter.due((), (ANN, BOB), float(now)) for now in range(100)] == [[]] * 100


def test_a_change_is_told_soon_and_figures_now_and_then() -> None:
    reporter = PathReporter()
    (told,) = reporter.due([path(ANN, relayed=True)], (ANN, BOB), 0.0)
    assert told == PeerPaths((PathOfPeer("61616161", "relayed", 25.3, 0, 0), PathOfPeer("62626262", "none")))
    assert reporter.due([path(ANN, relayed=False)], (ANN, BOB), 1.0) == []
    (told,) = reporter.due([path(ANN, relayed=False, sent=4000, received=400)], (ANN, BOB), 2.0)
    assert isinstance(told, PeerPaths)
    assert told.peers[0] == PathOfPeer("61616161", "direct", 25.3, 2000, 200)
    same = [path(ANN, relayed=False, sent=34000, received=400)]
    assert reporter.due(same, (ANN, BOB), 31.0) == []
    (told,) = reporter.due(same, (ANN, BOB), 32.0)
    assert isinstance(told, PeerPaths)
    assert told.peers[0].sent_per_second == 1000


def test_a_new_connection_counts_from_nothing() -> None:
    reporter = PathReporter()
    reporter.due([path(ANN, relayed=False, sent=10**6)], (ANN,), 0.0)
    (told,) = reporter.due([path(ANN, relayed=True, sent=200)], (ANN,), 2.0)
    assert isinstance(told, PeerPaths)
    assert told.peers[0].sent_per_second == 100


def test_one_sentence_says_that_only_relayed_paths_exist_and_another_that_it_is_over() -> None:
    reporter = PathReporter()
    sentences = []
    for now in range(200):
        paths = [path(ANN, relayed=now < 100), path(BOB, relayed=True)]
        sentences += [(now, each) for each in reporter.due(paths, (ANN, BOB), float(now)) if not isinstance(each, PeerPaths)]
    assert sentences == [(30, Problem("warning", ONLY_RELAYED)), (100, Mended(DIRECT_AGAIN))]


def test_the_event_survives_a_file() -> None:
    guest = PathOfPeer("63636363", "relayed", 2.5, neighbour=False)
    event = PeerPaths((PathOfPeer("61616161", "direct", 25.3, 2000, 200), PathOfPeer("62626262", "none"), guest), over_others=7)
    parsed = from_json(to_json(event))
    assert parsed is not None
    assert parsed[1] == event


def test_the_warning_does_not_say_that_it_is_our_own_router() -> None:
    assert "at this machine or at the others" in ONLY_RELAYED


def test_members_that_are_no_neighbours_are_counted_and_named_only_while_they_are_connected() -> None:
    """In an overlay of 40 members half of all were told as not reached, which is no fault."""
    cyd, dan = b"c" * 32, b"d" * 32
    reporter = PathReporter()
    members, near = (ANN, BOB, cyd, dan), (ANN, BOB)
    (told,) = reporter.due([path(ANN, relayed=False)], members, 0.0, neighbours=near)
    assert told == PeerPaths((PathOfPeer("61616161", "direct", 25.3, 0, 0), PathOfPeer("62626262", "none")), over_others=2)
    guest = [path(ANN, relayed=False), path(dan, relayed=True)]
    assert reporter.due(guest, members, 10.0, neighbours=near) == [], "guests come and go"
    (told,) = reporter.due(guest, members, 30.0, neighbours=near)
    assert isinstance(told, PeerPaths)
    assert [(each.peer, each.path, each.neighbour) for each in told.peers] == [
        ("61616161", "direct", True),
        ("62626262", "none", True),
        ("64646464", "relayed", False),
    ]
    assert told.over_others == 1
    (told,) = reporter.due([path(ANN, relayed=False)], members, 32.0, neighbours=(ANN, cyd))
    assert isinstance(told, PeerPaths)
    assert [each.peer for each in told.peers] == ["61616161", "63636363"], "of the new epoch's graph"


def test_a_line_of_before_there_were_neighbours_is_still_read() -> None:
    line = '{"event": "peer_paths", "time": 1.0, "peers": [{"peer": "61616161", "path": "none", "rtt_ms": 0.0}]}'
    assert from_json(line) == (1.0, PeerPaths((PathOfPeer("61616161", "none"),)))
