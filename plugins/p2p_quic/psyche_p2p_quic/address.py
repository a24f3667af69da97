"""A peer's published address: canonical CBOR [version, [[ip, port], …], relay URL or null].

Addresses come from strangers through the coordinator, so decoding checks every number, type and range before anything is
dialled. Multicast and unspecified addresses are refused, and so are host names: nobody may make us resolve a name of their
choice. The relay is part of the format, but always null for now. Which of these addresses may be dialled is decided in
`ranges`.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from psyche_core.errors import WireError
from psyche_core.wire import codec

VERSION = 1
MAX_ADDRESS_BYTES = 1024
MAX_SOCKETS = 16


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """sockets: (ip, port) pairs, IPv4 or IPv6 without zone. relay: URL of the relay the peer listens at, None without one."""

    sockets: tuple[tuple[str, int], ...]
    relay: str | None = None

    def encode(self) -> bytes:
        """The bytes that the coordinator stores. Raises WireError when a field is invalid."""
        data = codec.encode([VERSION, [[ip, port] for ip, port in self.sockets], self.relay])
        PeerAddress.decode(data)
        return data

    @classmethod
    def decode(cls, data: bytes) -> PeerAddress:
        """Read such bytes. Raises only WireError."""
        match codec.decode(data, max_bytes=MAX_ADDRESS_BYTES, max_depth=3, max_items=4 * MAX_SOCKETS):
            case [int() as version, list() as sockets, None as relay] if (
                type(version) is int and version == VERSION and len(sockets) <= MAX_SOCKETS
            ):
                return cls(tuple(_socket(pair) for pair in sockets), relay)
            case [int() as version, *_] if version != VERSION:
                message = f"got a peer address of version {version}, expected version {VERSION}; update the older program"
                raise WireError(message)
            case _:
                message = f"a peer address is [{VERSION}, up to {MAX_SOCKETS} [ip, port] pairs, null], got something else"
                raise WireError(message)

    def dialable(self) -> list[str]:
        """`ip:port` and `[ip]:port` strings."""
        return [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip, port in self.sockets]


def _socket(pair: object) -> tuple[str, int]:
    match pair:
        case [str() as text, int() as port] if type(port) is int and 0 < port < 65536:
            try:
                ip = ipaddress.ip_address(text)
            except ValueError:
                pass
            else:
                zoned = ip.version == 6 and ip.scope_id is not None
                mapped = ip.ipv4_mapped if ip.version == 6 else None
                if not zoned and not any(host.is_multicast or host.is_unspecified for host in (ip, mapped or ip)):
                    return str(ip), port

    message = f"a peer address holds {pair!r}, expected [ip, port] of one host"
    raise WireError(message[:200])
