"""Which IP addresses to bind: those of a network interface given by name, or a given address.

An interface has addresses of both IP families, and peers may have only one family, so both are bound: the first IPv4 address, and
the first IPv6 address that is valid beyond the link. Link-local IPv6 addresses need a zone, so peers cannot use them.
"""

from __future__ import annotations

import ipaddress
import socket

import psutil

from psyche_core.config.sentences import did_you_mean
from psyche_core.errors import CannotBind
from psyche_core.text_safety import printable


def addresses_of(interface: str, *, whole: bool = False) -> tuple[str, ...]:
    """Return the addresses to bind for `eth0` or `192.0.2.7`: one, or one of each family.

    whole: an address stands for its interface, so the address of the other family is bound too. Raises TransportError.
    """
    try:
        given = ipaddress.ip_address(interface)
    except ValueError:
        return _of_name(interface)

    if not whole:
        return (str(given),)

    for name, texts in _interfaces().items():
        if str(given) in texts:
            others = [text for text in _chosen(texts) if ipaddress.ip_address(text).version != given.version]
            return (str(given), *([] if name.startswith("lo") else others[:1]))

    return (str(given),)


def followed(interface: str, *, whole: bool) -> str | None:
    """Return the interface to follow when its addresses change; None if an address was chosen, and for loopback."""
    try:
        given = str(ipaddress.ip_address(interface))
    except ValueError:
        return None if interface.startswith("lo") else interface

    names = [name for name, texts in _interfaces().items() if given in texts and not name.startswith("lo")]
    return names[0] if whole and names else None


def addresses_there(name: str) -> tuple[str, ...]:
    """Return all present addresses of an interface; none while it is down or missing."""
    return tuple(_interfaces().get(name, ()))


def _of_name(name: str) -> tuple[str, ...]:
    interfaces = _interfaces()
    if name not in interfaces:
        known = ", ".join(interfaces)
        message = (
            f"cannot bind {printable(name)!r}: expected an IP address of this machine, or one of its network interfaces "
            f"({known}){did_you_mean(name, interfaces)}"
        )
        raise CannotBind(message)

    chosen = _chosen(interfaces[name])
    if not chosen:
        message = f"cannot bind the interface {name}: it has no IP address now; connect it, or choose another"
        raise CannotBind(message)

    return chosen


def _chosen(texts: list[str]) -> tuple[str, ...]:
    """Return the first address of each family."""
    first: dict[int, str] = {}
    for text in texts:
        first.setdefault(ipaddress.ip_address(text).version, text)
    return tuple(first[version] for version in sorted(first))


def _interfaces() -> dict[str, list[str]]:
    """Return the IP addresses of each interface that is up, without those that are valid on one link only."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found: dict[str, list[str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        if name not in up:
            continue

        texts = [
            str(ipaddress.ip_address(each.address))
            for each in addresses
            if each.family in (socket.AF_INET, socket.AF_INET6) and "%" not in each.address
        ]
        found[name] = [text for text in texts if not (":" in text and ipaddress.ip_address(text).is_link_local)]
    return found
