from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_backend_tcp.connections.admission import REMEMBERED_KEYS, Admission
from psyche_backend_tcp.connections.login import LoginRefused
from psyche_backend_tcp.limits import Limits

KEY, OTHER = b"k" * 32, b"o" * 32


def refusal(admission: Admission, key: bytes, now: float = 0.0) -> str:
    with pytest.raises(LoginRefused) as refused:
        admission.enter(key, now)
    assert refused.value.message
    return refused.value.code


def test_the_silent_one_that_goes_is_the_oldest_of_the_address_with_the_most() -> None:
    admission = Admission(Limits(max_silent=4))
    assert admission.knock(0, "203.0.113.8") is None
    assert [admission.knock(number, "203.0.113.7") for number in (1, 2, 3)] == [None] * 3
    assert admission.knock(4, "203.0.113.7") == 1
    admission.done(1)
    assert admission.knock(5, "203.0.113.9") == 2
    admission.done(2)
    assert admission.silent == (0, 3, 4, 5)


def test_of_addresses_with_as_many_the_oldest_goes() -> None:
    admission = Admission(Limits(max_silent=3))
    ended = [admission.knock(number, f"203.0.113.{number}") for number in range(3)]
    for number in range(3, 6):
        ended.append(admission.knock(number, f"203.0.113.{number}"))
        admission.done(number - 3)
    assert ended == [None, None, None, 0, 1, 2]


def test_places_are_free_until_there_are_none_and_then_cost_work() -> None:
    admission = Admission(Limits(max_unauthenticated=3, max_unauthenticated_per_address=2))
    for number, host in enumerate(["203.0.113.7", "203.0.113.7", "203.0.113.8"]):
        admission.knock(number, host)
        assert not admission.scarce(number)
        assert admission.grant(number) is None
    admission.knock(3, "203.0.113.9")
    assert admission.scarce(3)
    assert admission.grant(3, bits=16) == 0, "the oldest of the address with the most, of those that brought nothing"


def test_one_address_is_only_in_its_own_way() -> None:
    admission = Admission(Limits(max_unauthenticated=100, max_unauthenticated_per_address=2))
    for number in (1, 2):
        admission.knock(number, "203.0.113.7")
        admission.grant(number)
    admission.knock(3, "203.0.113.7")
    admission.knock(4, "203.0.113.8")
    assert admission.scarce(3)
    assert not admission.scarce(4)
    assert admission.grant(4) is None
    assert admission.grant(3, bits=16) == 1


def test_more_work_wins_over_less_and_among_equals_the_newer() -> None:
    admission = Admission(Limits(max_unauthenticated=2, max_unauthenticated_per_address=2))
    for number, bits in enumerate([17, 18]):
        admission.knock(number, f"203.0.113.{number}")
        admission.grant(number, bits=bits)
    for number in (2, 3, 4):
        admission.knock(number, f"203.0.113.{number}")
    assert admission.grant(2, bits=16) == 2
    admission.done(2)
    assert admission.grant(3, bits=17) == 0
    admission.done(0)
    assert admission.grant(4, bits=20) == 3


def test_a_puzzle_is_harder_the_more_places_are_held_by_solvers() -> None:
    admission = Admission(Limits(max_unauthenticated=4, puzzle_bits=10, puzzle_most_bits=14))
    bits = []
    for number in range(4):
        admission.knock(number, "203.0.113.7")
        admission.grant(number, bits=admission.bits if number else 0)
        bits.append(admission.bits)
    assert bits == [10, 11, 12, 13]


def test_a_member_takes_nobodys_place_and_nobody_takes_a_members() -> None:
    admission = Admission(Limits(max_unauthenticated=1, max_silent=2), members=lambda: {KEY})
    assert admission.is_member(KEY)
    assert not admission.is_member(OTHER)
    for number in range(3):
        admission.knock(number, "203.0.113.7")
        ended = admission.grant(number, bits=20) if number == 0 else admission.reserve(number, KEY)
        assert ended == {0: None, 1: None, 2: 1}[number]
    admission.done(1)
    assert admission.waiting == 2, "the one that solved a puzzle and the member's newer one"


class Counted:
    """What a listener does with a admission: it ends whom the admission names."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.here: dict[int, str] = {}

    def end(self, number: int | None) -> None:
        if number is not None:
            self.admission.done(number)
            del self.here[number]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 30)), max_size=100))
def test_counts_never_drift(actions: list[tuple[int, int, int]]) -> None:
    limits = Limits(max_silent=3, max_unauthenticated=5, max_unauthenticated_per_address=3)
    admission = Admission(limits, members=lambda: {KEY, OTHER})
    counted = Counted(admission)
    for number, (action, place, choice) in enumerate(actions):
        if action == 0 or not counted.here:
            counted.here[number] = f"203.0.113.{place}"
            counted.end(admission.knock(number, counted.here[number]))
            continue

        one = sorted(counted.here)[choice % len(counted.here)]
        if action == 1 or one not in admission.silent:
            counted.end(one)
        elif action == 2:
            counted.end(admission.reserve(one, KEY if place else OTHER))
        elif not admission.scarce(one):
            assert admission.grant(one) is None
        elif action == 3:
            counted.end(admission.grant(one, bits=16 + place))
        assert admission.waiting == len(counted.here)
        assert len(admission.silent) <= 3
        assert len(admission._waiting) <= 5
        assert len(admission._reserved) <= 2
        assert admission._silent_at.total() == len(admission.silent)
        assert all(count <= 3 for count in admission._waiting_at.values())
        assert admission._waiting_at.total() == len(admission._waiting)


def test_members_are_let_in_besides_as_many_strangers_as_there_may_be() -> None:
    admission = Admission(Limits(max_connections=1), members=lambda: {KEY})
    admission.enter(OTHER, 0.0)
    admission.enter(KEY, 0.0)
    admission.enter(KEY, 0.0)
    assert refusal(admission, b"t" * 32) == "Busy"
    admission.leave(OTHER)
    admission.enter(b"t" * 32, 0.0)


def test_logins_of_a_key_are_rate_limited_and_refusals_cost_nothing() -> None:
    admission = Admission(Limits(logins_per_second=1.0, login_burst=2.0, max_connections_per_key=100))
    admission.enter(KEY, 0.0)
    admission.enter(KEY, 0.0)
    assert [refusal(admission, KEY) for _ in range(50)] == ["RateLimited"] * 50
    admission.enter(OTHER, 0.0)
    admission.enter(KEY, 1.0)
    assert refusal(admission, KEY, 1.5) == "RateLimited"


def test_reconnecting_does_not_refill_a_keys_tokens() -> None:
    admission = Admission(Limits(logins_per_second=0.001, login_burst=3.0))
    for _ in range(3):
        admission.enter(KEY, 0.0)
        admission.leave(KEY)
    assert refusal(admission, KEY) == "RateLimited"


def test_connections_of_a_key_and_of_all_are_bounded() -> None:
    admission = Admission(Limits(max_connections=3, max_connections_per_key=2))
    admission.enter(KEY, 0.0)
    admission.enter(KEY, 0.0)
    assert refusal(admission, KEY) == "RateLimited"
    admission.enter(OTHER, 0.0)
    assert refusal(admission, b"t" * 32) == "Busy"
    admission.leave(KEY)
    admission.enter(b"t" * 32, 0.0)


def test_26_a_key_that_is_not_on_the_list_is_refused() -> None:
    """In the reference anyone who could reach the port could join (client defect 26)."""
    allowed = {KEY}
    admission = Admission(Limits(), allowed=allowed.__contains__)
    admission.enter(KEY, 0.0)
    assert refusal(admission, OTHER) == "NotAllowed"
    allowed.add(OTHER)
    admission.enter(OTHER, 0.0)


def test_memory_about_keys_is_bounded() -> None:
    admission = Admission(Limits())
    for number in range(3 * REMEMBERED_KEYS):
        key = number.to_bytes(32, "big")
        admission.enter(key, 0.0)
        admission.leave(key)
    assert len(admission._logins) == REMEMBERED_KEYS
    assert not admission._inside
