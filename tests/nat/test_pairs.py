"""Which pairs of members connect directly, and which through the relay, for every kind of router."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.nat.lab import KINDS, Lab
from tests.nat.meeting import Meeting, expected

FEW = ("public", "port", "shift", "sym", "sym6", "noudp")


@pytest.mark.slow
def test_members_behind_routers_find_the_best_path_that_their_routers_allow(lab: Lab, meeting: Meeting) -> None:
    hosts = [lab.host(kind, kind) for kind in FEW]
    hosts.append(lab.beside(hosts[1], "beside"))
    hosts.append(lab.host("sym", "sym2"))
    for host in hosts:
        meeting.join(host, "--bytes", "100000")
    meeting.until_paths((one, other, expected(one.host, other.host)) for one, other in meeting.pairs())
    for one in meeting.voices.values():
        others = set(meeting.voices) - {one.host.name}
        meeting.until(lambda one=one, others=others: {each["peer"] for each in one.of("fetched")} == others, "everybody's blob")


@pytest.mark.soak
def test_the_table_of_all_pairs(lab: Lab, meeting: Meeting, tmp_path: Path) -> None:
    """Writes pairs.json: for each pair of kinds the path, and milliseconds from the peer's address to a direct path."""
    for kind in KINDS:
        meeting.join(lab.host(kind, kind))
        meeting.join(lab.host(kind, f"{kind}2"))
    meeting.until_paths(((one, other, expected(one.host, other.host)) for one, other in meeting.pairs()), seconds=120)
    table = pair_table(meeting)
    (tmp_path / "pairs.json").write_text(json.dumps(table, indent=1))
    print(json.dumps(table, indent=1))


def pair_table(meeting: Meeting) -> dict[str, dict[str, object]]:
    """Path, and the time to a direct one, for each pair of kinds; the slower end of the slowest pair counts."""
    table: dict[str, dict[str, object]] = {}
    for one, other in meeting.pairs():
        first, second = sorted((one.host.kind, other.host.kind), key=KINDS.index)
        direct = [
            each["seconds"]
            for voice, peer in ((one, other.host.name), (other, one.host.name))
            for each in voice.of("path", peer)
            if each["path"] == "direct"
        ]
        entry = table.setdefault(f"{first}-{second}", {"direct": True, "ms": 0})
        entry["direct"] = bool(direct) and bool(entry["direct"])
        entry["ms"] = round(1000 * max(direct)) if direct else None
    return table
