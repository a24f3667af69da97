"""Who is killed when: seeded, spaced, and never too many."""

from __future__ import annotations

from typing import Any

import pytest

from psyche_core.errors import UserError
from psyche_core.testnet.random_kills import RandomKills

NAMES = [f"client-{number}" for number in range(1, 6)]


def plan(**changes: Any) -> RandomKills:
    return RandomKills(NAMES, **{"number": 1, "interval": 5.0, "seed": 7, "keep": 2} | changes)


def deaths(kills: RandomKills, *, until: float = 100.0) -> list[tuple[float, list[str]]]:
    """Everybody takes part all the time; asked four times a second."""
    found = []
    for quarter in range(int(until * 4)):
        victims = kills.victims(quarter / 4, whole=NAMES)
        if victims:
            found.append((quarter / 4, victims))
    return found


def test_one_dies_at_each_interval_and_the_first_has_to_pass() -> None:
    assert [moment for moment, _ in deaths(plan())] == [5.0 * count for count in range(1, 20)]


def test_after_the_time_given_nobody_is_killed() -> None:
    assert [moment for moment, _ in deaths(plan(seconds=12.0))] == [5.0, 10.0]


def test_the_seed_decides_who() -> None:
    assert deaths(plan()) == deaths(plan())
    assert deaths(plan()) != deaths(plan(seed=8))
    assert {victims[0] for _, victims in deaths(plan())} == set(NAMES), "in the long run it is everybody's turn"


def test_several_at_once_are_different_ones() -> None:
    for _, victims in deaths(plan(number=3)):
        assert len(set(victims)) == 3


def test_only_those_allowed_are_killed() -> None:
    assert {victims[0] for _, victims in deaths(plan(allowed=[2, 4]))} == {"client-2", "client-4"}


def test_nobody_dies_while_too_few_take_part() -> None:
    kills = plan(number=2, keep=3)
    assert kills.victims(0.0, whole=NAMES) == []
    assert kills.victims(10.0, whole=NAMES[:4]) == []
    assert len(kills.victims(11.0, whole=NAMES)) == 2, "made up for as soon as there are enough"
    assert kills.victims(12.0, whole=NAMES) == [], "and the interval begins anew"


def test_a_quorum_is_kept_where_the_number_allows_it() -> None:
    gentle, harsh = plan(quorum=4), plan(number=2, quorum=4)
    for kills in (gentle, harsh):
        assert kills.victims(0.0, whole=NAMES) == []
    assert gentle.victims(9.0, whole=NAMES[:4]) == []
    assert len(gentle.victims(9.0, whole=NAMES)) == 1
    assert len(harsh.victims(9.0, whole=NAMES)) == 2


def test_only_who_takes_part_is_killed() -> None:
    kills = plan()
    kills.victims(0.0, whole=NAMES)
    for moment in range(10, 500, 10):
        assert set(kills.victims(float(moment), whole=NAMES[:3])) <= set(NAMES[:3])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"number": 4}, "got 4; the run needs 2 of 5 clients to continue (min_clients), so at most 3"),
        ({"number": 3, "allowed": [1, 2]}, "got 3, but only 2 clients may be killed"),
        ({"allowed": [6]}, "there is no client 6; they are numbered from 1 to 5"),
        ({"allowed": [0, 1]}, "there is no client 0"),
    ],
)
def test_what_cannot_be_asked_for_is_a_sentence(changes: Any, said: str) -> None:
    with pytest.raises(UserError) as refused:
        plan(**changes)
    assert said in str(refused.value)
