"""Addresses of peers as the coordinator hands them on: what is accepted names single hosts and can be written again."""

from __future__ import annotations

import ipaddress
from random import Random

from psyche_core.errors import WireError
from psyche_core.wire.codec import encode
from psyche_p2p_quic.addresses.peer_address import PeerAddress
from tests.fuzz.mutation import change_cbor

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 512
MEMORY = (160, 65_536)

_ODD = (
    "0.0.0.0",
    "239.255.255.250",
    "224.0.0.1",
    "127.1",
    "0x7f.0.0.1",
    "010.0.0.1",
    "1.2.3",
    "::",
    "ff02::1",
    "::1",
    "fe80::1",
    "1::2::3",
)


def seeds() -> list[bytes]:
    addresses = [
        PeerAddress(()),
        PeerAddress((("192.0.2.1", 4433), ("2001:db8::1", 1))),
        PeerAddress(tuple((f"10.0.0.{n}", 1000 + n) for n in range(16))),
        PeerAddress((("::ffff:192.0.2.1", 7),)),
    ]
    return [address.encode() for address in addresses]


def mutate(data: bytes, random: Random) -> bytes:
    """A change of the tree, or a host that is none, is many, or is written in an odd way."""
    if random.random() < 0.5:
        return change_cbor(data, random)

    ip = random.choice(("", "::ffff:")) + random.choice(_ODD) + random.choice(("", "", "%1", "/8", " ", "\0"))
    return encode([1, [["192.0.2.1", 1], [ip, random.choice((1, 65535))]], None])


def TARGET(data: bytes) -> None:
    address = PeerAddress.decode(data)
    assert PeerAddress.decode(address.encode()) == address
    for ip, port in address.sockets:
        host = ipaddress.ip_address(ip)
        mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
        assert not any(one.is_multicast or one.is_unspecified for one in (host, mapped or host))
        assert 0 < port < 65536
    assert len(address.dialable()) == len(address.sockets)
