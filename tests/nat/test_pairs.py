"""Which pairs of members connect directly, and which through the relay, for every kind of router."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.nat.lab import KINDS, Lab
from tests.nat.meeting import Meeting, Voice, pair_table

FEW = ("public", "port", "sym", "noudp")
"""One kind of router for each way to connect. `make soak` connects all of them."""


def has_fetched_all(member: Voice, others: set[str]) -> bool:
    """Whether it told of a blob of each of the others."""
    return {each["peer"] for each in member.of("fetched")} == others


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_members_behind_routers_find_the_best_path_that_their_routers_allow(lab: Lab, meeting: Meeting) -> None:
    hosts = [lab.host(kind, kind) for kind in FEW]
    hosts.append(lab.beside(hosts[1], "beside"))
    for host in hosts:
        meeting.join(host, "--bytes", "100000")
    meeting.until_met(seconds=150)  # a direct path that is not found at once is looked for again after a minute
    for one in meeting.voices.values():
        meeting.until(partial(has_fetched_all, one, set(meeting.voices) - {one.host.name}), "everybody's blob")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_table_of_all_pairs(lab: Lab, meeting: Meeting, tmp_path: Path) -> None:
    """Writes pairs.json: for each pair of kinds the path, and milliseconds from the peer's address to a direct path."""
    for kind in KINDS:
        meeting.join(lab.host(kind, kind))
        meeting.join(lab.host(kind, f"{kind}2"))
    meeting.until_met(seconds=120)
    table = pair_table(meeting)
    (tmp_path / "pairs.json").write_text(json.dumps(table, indent=1))
    print(json.dumps(table, indent=1))
