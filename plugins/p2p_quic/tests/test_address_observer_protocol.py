"""What an address observer says: every value survives, everything else is refused."""

from __future__ import annotations

import ipaddress
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import WireError
from psyche_core.wire import codec
from psyche_p2p_quic.address_observer.protocol import MAX_LOCATION_BYTES, MAX_OBSERVATION_BYTES, Observation, ObserverLocation

HOSTS = st.ip_addresses().filter(
    lambda ip: not (ip.is_multicast or ip.is_unspecified or (isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped))
)
PORTS = st.integers(1, 65535)


@given(HOSTS, PORTS)
def test_an_observation_survives_the_wire_and_text(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    seen = Observation(str(ip), port)
    assert len(seen.encode()) <= MAX_OBSERVATION_BYTES
    assert Observation.decode(seen.encode()) == seen
    assert Observation.from_text(str(seen)) == seen


def test_the_bytes_of_an_observation() -> None:
    assert Observation("203.0.113.7", 4242).encode().hex() == "83016b3230332e302e3131332e37191092"


def test_ipv4_mapped_into_ipv6_is_said_as_ipv4() -> None:
    assert Observation.from_text("[::ffff:203.0.113.7]:4242") == Observation("203.0.113.7", 4242)


@pytest.mark.parametrize(
    "value",
    [
        [2, "203.0.113.7", 4242],
        [True, "203.0.113.7", 4242],
        [1, "203.0.113.7", 0],
        [1, "203.0.113.7", 65536],
        [1, "203.0.113.7", True],
        [1, "example.org", 1],
        [1, "224.0.0.1", 1],
        [1, "::", 1],
        [1, "fe80::1%eth0", 1],
        [1, "203.0.113.7", 1, 1],
        [1, "x" * 100, 1],
        "203.0.113.7:1",
        None,
    ],
)
def test_other_observations_are_refused(value: object) -> None:
    with pytest.raises(WireError):
        Observation.decode(codec.encode(value))


@pytest.mark.parametrize("text", ["", "203.0.113.7", "203.0.113.7:", "203.0.113.7:-1", "203.0.113.7:99999999999", "[::1]", "::1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(WireError):
        Observation.from_text(text)


@given(st.binary(max_size=100))
def test_nothing_but_wire_errors(data: bytes) -> None:
    for read in (Observation.decode, ObserverLocation.decode):
        try:
            read(data)
        except WireError:
            continue


@given(st.binary(min_size=32, max_size=32), PORTS)
def test_a_location_survives(key: bytes, port: int) -> None:
    location = ObserverLocation(key, port)
    assert len(location.encode()) <= MAX_LOCATION_BYTES
    assert ObserverLocation.decode(location.encode()) == location


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2, "key": "00" * 32, "port": 1},
        {"version": 1, "key": "0g" * 32, "port": 1},
        {"version": 1, "key": "00" * 31, "port": 1},
        {"version": 1, "key": "00" * 32, "port": 0},
        {"version": 1, "key": "00" * 32, "port": True},
        {"version": 1, "key": "00" * 32},
        {"version": 1, "key": "00" * 32, "port": 1, "padding": "x" * MAX_LOCATION_BYTES},
        [],
        None,
    ],
)
def test_other_locations_are_refused(fields: object) -> None:
    with pytest.raises(WireError):
        ObserverLocation.decode(json.dumps(fields).encode())
