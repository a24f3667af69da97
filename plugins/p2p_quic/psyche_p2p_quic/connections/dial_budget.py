"""Limits how often the addresses that a member published may be dialled. Pure; the caller passes the time.

A member may publish up to 16 addresses that belong to anybody, again and again, and all members dial them: about seven packets of
1,200 bytes to each address for every try. So tries at unproven addresses are limited per hour, for each member and for each host.
A host is an IPv4 address or an IPv6 /64; its count is the same whoever published it. A count continues when a member moves,
leaves or returns. A connection proves its peer's key: the try at that address is then given back, and the address may be dialled
freely until it has not answered for an hour.

After the last connection, the library remembers a peer's addresses for a while, and each dial of the peer sends to all of them.
Therefore each dial counts them again, even if it names other addresses; and while a proven address answers, no others are named.
So `take` also decides which addresses a dial names, proven ones first; the library tries all that are named, in its own order.
The number of remembered entries is limited; the least recently used entry is forgotten first.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

HOUR = 3600.0
PROVEN_SECONDS = HOUR
LIBRARY_SECONDS = 120.0
"""iroh 1.2 forgets a peer's addresses about a minute after its last connection; this is twice that time, to be safe."""

REMEMBERED_PEERS = 4096
REMEMBERED_HOSTS = 32_768
_MOST_PROVEN = 16
_ROUNDING = 1e-6


@dataclass(slots=True)
class _Allowance:
    """An allowance of `most` tries at once and `most` tries per hour. left may fall below zero; it recovers with time."""

    most: int
    left: float
    at: float

    def fill(self, now: float) -> float:
        """Return what is left now."""
        self.left = min(float(self.most), self.left + max(0.0, now - self.at) * self.most / HOUR)
        self.at = now
        return self.left

    def wait(self, count: int, now: float) -> float:
        """Return the seconds until `count` are left; a count above `most` is treated as `most`."""
        lacking = min(count, self.most) - self.fill(now)
        return lacking * HOUR / self.most if lacking > _ROUNDING else 0.0

    def take(self, now: float) -> None:
        """Use one."""
        self.left = self.fill(now) - 1.0

    def give_back(self, now: float) -> None:
        """Undo one use."""
        self.left = min(float(self.most), self.fill(now) + 1.0)


@dataclass(slots=True)
class _Peer:
    """The tries at one peer. known: unproven addresses to which the library may still send. tried: when it last had reason to.

    proven: addresses and when each last answered; at: the one that answered last. failed: whether the last try failed.
    """

    allowance: _Allowance
    proven: dict[str, float] = field(default_factory=dict)
    at: str = ""
    known: dict[str, None] = field(default_factory=dict)
    tried: float = -math.inf
    failed: bool = False


class DialBudget:
    """Limits tries at addresses. per_peer, per_host: tries at unproven addresses, at once and per hour."""

    def __init__(self, *, per_peer: int, per_host: int) -> None:
        self._per_peer = per_peer
        self._per_host = per_host
        self._peers: OrderedDict[bytes, _Peer] = OrderedDict()
        self._hosts: OrderedDict[str, _Allowance] = OrderedDict()

    def take(self, peer: bytes, addresses: Sequence[str], *, now: float) -> tuple[list[str], float]:
        """Choose from a peer's `ip:port` addresses those to dial now, and count them. Return them, and if none the seconds to
        wait.
        """
        state = self._peer(peer, now)
        if now - state.tried > LIBRARY_SECONDS:
            state.known.clear()

        due = max((self._wait(state, address, len(state.known), now) for address in state.known), default=0.0)
        if due > 0:
            return [], min(due, LIBRARY_SECONDS - (now - state.tried)) + 0.001

        chosen = [address for address in addresses if now - state.proven.get(address, -math.inf) <= PROVEN_SECONDS]
        again = list(state.known)
        if state.failed or not chosen:
            others = [address for address in addresses if address not in chosen]
            for address in others:
                if address not in state.known:
                    if self._wait(state, address, len(again) + 1, now) > 0:
                        continue
                    self._spend(state, address, now)
                    state.known[address] = None
                chosen.append(address)
            if not chosen:
                return [], min((self._wait(state, address, len(again) + 1, now) for address in others), default=HOUR)

        for address in again:
            self._spend(state, address, now)
        state.tried = now
        state.failed = True
        return chosen, 0.0

    def is_quiet(self, peer: bytes, *, now: float) -> bool:
        """Return whether a dial that names only a relay and no address would send nothing to unproven addresses."""
        state = self._peer(peer, now)
        return not state.known or now - state.tried > LIBRARY_SECONDS

    def proved(self, peer: bytes, address: str, *, now: float) -> None:
        """Note that the peer proved its key at the address, whichever side dialled."""
        state = self._peer(peer, now)
        if address in state.known:
            del state.known[address]
            state.allowance.give_back(now)
            self._host(address, now).give_back(now)
        state.failed = False
        state.at = address
        state.proven.pop(address, None)
        state.proven[address] = now
        if len(state.proven) > _MOST_PROVEN:
            del state.proven[next(iter(state.proven))]

    def ended(self, peer: bytes, *, now: float) -> None:
        """Note that a connection with the peer ended: it used its address until now, and the library remembered the others."""
        state = self._peer(peer, now)
        state.tried = now
        if state.at in state.proven:
            state.proven[state.at] = now

    def _wait(self, state: _Peer, address: str, count: int, now: float) -> float:
        return max(state.allowance.wait(count, now), self._host(address, now).wait(1, now))

    def _spend(self, state: _Peer, address: str, now: float) -> None:
        state.allowance.take(now)
        self._host(address, now).take(now)

    def _peer(self, peer: bytes, now: float) -> _Peer:
        state = self._peers.pop(peer, None) or _Peer(_Allowance(self._per_peer, self._per_peer, now))
        self._peers[peer] = state
        if len(self._peers) > REMEMBERED_PEERS:
            self._peers.popitem(last=False)
        return state

    def _host(self, address: str, now: float) -> _Allowance:
        host = _host_of(address)
        allowance = self._hosts.pop(host, None) or _Allowance(self._per_host, self._per_host, now)
        self._hosts[host] = allowance
        if len(self._hosts) > REMEMBERED_HOSTS:
            self._hosts.popitem(last=False)
        return allowance


def _host_of(address: str) -> str:
    """Return the host to which `ip:port` or `[ip]:port` counts."""
    ip = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is None:
        return str(ipaddress.ip_network((ip, 64), strict=False))

    return str(ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else ip)
