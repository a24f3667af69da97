from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_backend_tcp.gate import REMEMBERED_KEYS, Gate, origin
from psyche_backend_tcp.limits import Limits, TokenBucket
from psyche_backend_tcp.login import LoginRefused

KEY, OTHER = b"k" * 32, b"o" * 32


def refusal(gate: Gate, key: bytes, now: float = 0.0) -> str:
    with pytest.raises(LoginRefused) as refused:
        gate.enter(key, now)
    assert refused.value.message
    return refused.value.code


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("203.0.113.7", "203.0.113.7", True),
        ("203.0.113.7", "203.0.113.8", False),
        ("::ffff:203.0.113.7", "203.0.113.7", True),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, equal: bool) -> None:
    assert (origin(one) == origin(other)) is equal


def test_one_address_is_only_in_its_own_way() -> None:
    gate = Gate(Limits(max_unauthenticated=100, max_unauthenticated_per_address=2))
    assert [gate.knock(number, "203.0.113.7") for number in range(4)] == [None, None, 2, 3]
    assert gate.knock(9, "203.0.113.8") is None
    gate.done(0)
    assert gate.knock(10, "203.0.113.7") is None


def test_a_flood_from_everywhere_ends_the_oldest() -> None:
    gate = Gate(Limits(max_unauthenticated=3))
    assert [gate.knock(number, f"203.0.113.{number}") for number in range(5)] == [None, None, None, 0, 1]
    assert gate.waiting == 3


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 3)), max_size=80))
def test_counts_never_drift(actions: list[tuple[bool, int, int]]) -> None:
    limits = Limits(max_unauthenticated=5, max_unauthenticated_per_address=3)
    gate = Gate(limits)
    waiting: dict[int, int] = {}
    for arrives, number, place in actions:
        if arrives and number not in waiting:
            unwanted = gate.knock(number, f"203.0.113.{place}")
            if unwanted != number:
                waiting[number] = place
                if unwanted is not None:
                    del waiting[unwanted]
        else:
            gate.done(number)
            waiting.pop(number, None)
        assert gate.waiting == len(waiting) <= 5
        assert all(list(waiting.values()).count(one) <= 3 for one in range(4))


def test_logins_of_a_key_are_rate_limited_and_refusals_cost_nothing() -> None:
    gate = Gate(Limits(logins_per_second=1.0, login_burst=2.0, max_connections_per_key=100))
    gate.enter(KEY, 0.0)
    gate.enter(KEY, 0.0)
    assert [refusal(gate, KEY) for _ in range(50)] == ["RateLimited"] * 50
    gate.enter(OTHER, 0.0)
    gate.enter(KEY, 1.0)
    assert refusal(gate, KEY, 1.5) == "RateLimited"


def test_reconnecting_does_not_refill_a_keys_tokens() -> None:
    gate = Gate(Limits(logins_per_second=0.001, login_burst=3.0))
    for _ in range(3):
        gate.enter(KEY, 0.0)
        gate.leave(KEY)
    assert refusal(gate, KEY) == "RateLimited"


def test_connections_of_a_key_and_of_all_are_bounded() -> None:
    gate = Gate(Limits(max_connections=3, max_connections_per_key=2))
    gate.enter(KEY, 0.0)
    gate.enter(KEY, 0.0)
    assert refusal(gate, KEY) == "RateLimited"
    gate.enter(OTHER, 0.0)
    assert refusal(gate, b"t" * 32) == "Busy"
    gate.leave(KEY)
    gate.enter(b"t" * 32, 0.0)


def test_26_a_key_that_is_not_on_the_list_is_refused() -> None:
    """In the reference anyone who could reach the port could join (client defect 26)."""
    allowed = {KEY}
    gate = Gate(Limits(), allowed=allowed.__contains__)
    gate.enter(KEY, 0.0)
    assert refusal(gate, OTHER) == "NotAllowed"
    allowed.add(OTHER)
    gate.enter(OTHER, 0.0)


def test_memory_about_keys_is_bounded() -> None:
    gate = Gate(Limits())
    for number in range(3 * REMEMBERED_KEYS):
        key = number.to_bytes(32, "big")
        gate.enter(key, 0.0)
        gate.leave(key)
    assert len(gate._logins) == REMEMBERED_KEYS
    assert not gate._inside


def test_bucket_lets_its_rate_through_in_the_long_run() -> None:
    bucket = TokenBucket(rate=2.0, burst=5.0, now=0.0)
    taken = sum(bucket.try_take(step / 10) == 0.0 for step in range(1000))
    assert taken in (204, 205), "5 at once, then 2 a second for 99.9 s"
