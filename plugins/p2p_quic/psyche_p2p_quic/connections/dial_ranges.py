"""Decides which published IP addresses we may dial, depending on our own addresses. Pure.

A public address is dialled. An address of a private, shared or link-local range is dialled only if one of our own addresses is in
the same range; otherwise a member could make us probe a network that it cannot reach. A loopback address is dialled only if we
are reached at a loopback address ourselves. Ranges are compared, not interface masks: private networks are often routed in parts,
and clouds give machines masks for a single address. Addresses embedded in an IPv6 address (mapped, 6to4, Teredo, NAT64) must be
allowed too. No others are dialled: documentation, reserved, broadcast.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

_PRIVATE: tuple[IPv4Network | IPv6Network, ...] = tuple(
    ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16")
)
_UNIQUE_LOCAL = IPv6Network("fc00::/7")
_SITE_BITS = 48
"""Prefix length of one site in the unique local addresses."""

_NAT64 = IPv6Network("64:ff9b::/96")


def may_dial(text: str, own: Collection[Address]) -> bool:
    """Return whether to dial an IP address, given our own addresses. Raises ValueError when the text is not an IP address."""
    return all(_may_dial(address, own) for address in _with_inner(ipaddress.ip_address(text)))


def _may_dial(address: Address, own: Collection[Address]) -> bool:
    if address.is_loopback:
        return any(ours.is_loopback for ours in own)

    network = _range_of(address)
    if network is not None:
        return any(ours in network for ours in own)

    return address.is_global and not address.is_multicast


def _range_of(address: Address) -> IPv4Network | IPv6Network | None:
    if isinstance(address, IPv6Address) and address in _UNIQUE_LOCAL:
        return IPv6Network((address, _SITE_BITS), strict=False)

    return next((network for network in _PRIVATE if address in network), None)


def _with_inner(address: Address) -> Iterator[Address]:
    """Yield the address, or the one it maps to, and those embedded in it."""
    if isinstance(address, IPv4Address):
        yield address
        return

    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
        return

    yield address
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if address in _NAT64:
        yield IPv4Address(int(address) & 0xFFFF_FFFF)
