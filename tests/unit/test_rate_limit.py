"""A rate with a burst, and what counts as one address."""

from __future__ import annotations

import pytest

from psyche_core.rate_limit import TokenBucket, address_block


def test_a_burst_is_free_and_further_tokens_take_their_time() -> None:
    bucket = TokenBucket(2, burst=3)
    assert [bucket.take(10.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert bucket.wait(10.0) == 1.5
    assert bucket.wait(11.5) == 0.0
    bucket.give_back(100)
    assert [bucket.take(11.5) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5], "never more than the burst"
    assert bucket.take(1000.0, 4) == 0.5


def test_its_rate_gets_through_in_the_long_run() -> None:
    bucket = TokenBucket(2.0, burst=5.0)
    taken = sum(bucket.try_take(step / 10) == 0.0 for step in range(1000))
    assert taken in (204, 205), "5 at once, then 2 a second for 99.9 s"


def test_what_is_not_there_is_not_taken() -> None:
    bucket = TokenBucket(1.0, burst=1.0)
    assert [bucket.try_take(0.0), bucket.try_take(0.0), bucket.try_take(0.5), bucket.try_take(1.0)] == [0.0, 1.0, 0.5, 0.0]


def test_without_a_rate_nobody_waits() -> None:
    bucket = TokenBucket(None, burst=0.0)
    assert (bucket.take(0.0, 10**12), bucket.wait(0.0), bucket.try_take(0.0)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("203.0.113.7", "203.0.113.7", True),
        ("203.0.113.7", "203.0.113.8", False),
        ("::ffff:203.0.113.7", "203.0.113.7", True),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("a socket", "a socket", True),
        ("a socket", "another", False),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, equal: bool) -> None:
    assert (address_block(one) == address_block(other)) is equal


def test_one_household_may_have_a_larger_network() -> None:
    assert address_block("2001:db8:1:2::1", ipv6_bits=56) == address_block("2001:db8:1:3::1", ipv6_bits=56) == "2001:db8:1::/56"
