"""A peer's published address: canonical CBOR [version, [[ip, port], …], relay URL or null, instance].

Addresses come from untrusted peers through the coordinator, so decoding checks every number, type and range before anything is
dialled. Multicast and unspecified addresses are refused, and so are host names: no peer may make us resolve a name of its choice.
`connections.dial_ranges` decides which of these addresses may be dialled; a relay is used only if it is one of our run's, see
`relay_urls`.

Version 2 added the relay and the instance. A member publishes a new record whenever its address changes; the instance shows
whether the member has restarted or has only a new address. Version 1, `[1, sockets, null]`, is still read.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from psyche_core.errors import WireError
from psyche_core.wire import codec
from psyche_p2p_quic.addresses.relay_urls import MAX_RELAY_URL_BYTES, canonical_relay

VERSION = 2
INSTANCE_BYTES = 8
MAX_ADDRESS_BYTES = 1024
MAX_SOCKETS = 16


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A peer's address. sockets: (ip, port) pairs, IPv4 or IPv6 without zone. relay: URL of the relay that the peer uses, or
    None.

    instance: random bytes of the peer's endpoint, also in its hello; b"" in a record of version 1.
    """

    sockets: tuple[tuple[str, int], ...]
    relay: str | None = None
    instance: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes that the coordinator stores. Raises WireError when a field is invalid."""
        sockets = [[ip, port] for ip, port in self.sockets]
        data = codec.encode([VERSION, sockets, self.relay, self.instance] if self.instance else [1, sockets, self.relay])
        PeerAddress.decode(data)
        return data

    @classmethod
    def decode(cls, data: bytes) -> PeerAddress:
        """Read such bytes. Raises only WireError."""
        match codec.decode(data, max_bytes=MAX_ADDRESS_BYTES, max_depth=3, max_items=4 * MAX_SOCKETS):
            case [int() as version, *_] if type(version) is not int or version not in (1, VERSION):
                message = f"got a peer address of version {version}, expected version {VERSION}; update the older program"
                raise WireError(message)
            case [1, list() as sockets, None] if len(sockets) <= MAX_SOCKETS:
                return cls(tuple(_socket(pair) for pair in sockets))
            case [2, list() as sockets, (str() | None) as relay, bytes() as instance] if (
                len(sockets) <= MAX_SOCKETS and len(instance) == INSTANCE_BYTES
            ):
                return cls(tuple(_socket(pair) for pair in sockets), _relay(relay), instance)
            case _:
                message = (
                    f"a peer address is [{VERSION}, up to {MAX_SOCKETS} [ip, port] pairs, relay URL or null, "
                    f"{INSTANCE_BYTES} bytes], got something else"
                )
                raise WireError(message)

    def dialable(self) -> list[str]:
        """Return `ip:port` and `[ip]:port` strings."""
        return [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip, port in self.sockets]


def _relay(url: str | None) -> str | None:
    if url is None:
        return None

    if len(url.encode(errors="replace")) > MAX_RELAY_URL_BYTES:
        message = f"a peer address has a relay URL of {len(url)} characters, over the limit of {MAX_RELAY_URL_BYTES} bytes"
        raise WireError(message)
    try:
        return canonical_relay(url)
    except ValueError as error:
        message = f"a peer address has a relay that is none: {error}"
        raise WireError(message[:300]) from error


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
