"""The protocol of an address observer, without I/O.

An observer is an iroh endpoint next to a relay. It tells each caller from which address the caller's packets arrive, which an
endpoint behind a router cannot know itself. The protocol:

1. `GET <relay URL>/observer` (`PATH`) answers with an `ObserverLocation` as JSON: the observer's public key, and its UDP port on
   the relay's host. 404 means that this relay has no observer.
2. The caller dials that key with the ALPN `ALPN`, from the endpoint whose address it wants to know.
3. The observer opens a one-way stream, sends one `Observation` of at most `MAX_OBSERVATION_BYTES`, and ends the stream. It
   refuses a caller by closing the connection with one of the `CLOSE_…` codes.
4. The caller keeps the connection open: its heartbeats keep the router's mapping. A new call by the same key closes the older
   connection. A caller calls again every `REFRESH_SECONDS`, because a connection does not show a mapping that changed.

The observer's answer is used only as the caller's own address: a wrong answer costs direct connections, and nothing more.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass

from psyche_core.errors import WireError
from psyche_core.wire import codec

ALPN = b"psyche/observer/1"
PATH = "/observer"
VERSION = 1
MAX_OBSERVATION_BYTES = 64
MAX_LOCATION_BYTES = 512
REFRESH_SECONDS = 60.0

CLOSE_NOT_ALLOWED = 1
"""This key may not use the observer: it is not a member, or not connected to the relay."""

CLOSE_BUSY = 2
"""Too many callers, in total or from this address; call again later."""

CLOSE_REPLACED = 3
"""The same key called again."""

CLOSE_STOPPING = 4
"""The observer stops."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The address that the caller's packets came from. ip: in its shortest form, IPv4 never mapped into IPv6."""

    ip: str
    port: int

    def encode(self) -> bytes:
        """Return canonical CBOR `[version, ip, port]`. Raises WireError for an address that is not a single host's."""
        return codec.encode([VERSION, str(_host(self.ip)), _port(self.port)])

    @classmethod
    def decode(cls, data: bytes) -> Observation:
        """Read an observation. Raises only WireError."""
        match codec.decode(data, max_bytes=MAX_OBSERVATION_BYTES, max_depth=1, max_items=4):
            case [int() as version, *_] if version != VERSION or isinstance(version, bool):
                message = f"got an observation of version {version}, expected version {VERSION}; update the older program"
                raise WireError(message)
            case [int(), str() as ip, int() as port]:
                return cls(str(_host(ip)), _port(port))
            case _:
                message = f"an observation is [{VERSION}, IP address, port], got something else"
                raise WireError(message)

    @classmethod
    def from_text(cls, text: str) -> Observation:
        """Read `ip:port` or `[ip]:port`, as iroh writes addresses. Raises WireError."""
        host, _, port = text.rpartition(":")
        if not (port.isascii() and port.isdecimal()):
            message = f"expected ip:port, got {text[:100]!r}"
            raise WireError(message)

        return cls(str(_host(host.removeprefix("[").removesuffix("]"))), _port(int(port[:6])))

    def __str__(self) -> str:
        """`ip:port` or `[ip]:port`, as iroh reads addresses."""
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


@dataclass(frozen=True, slots=True)
class ObserverLocation:
    """The location of a relay's observer. key: its Ed25519 public key, 32 bytes. port: its UDP port, at the relay's host."""

    key: bytes
    port: int

    def encode(self) -> bytes:
        """Return the JSON with which the relay answers."""
        return json.dumps({"version": VERSION, "key": self.key.hex(), "port": self.port}).encode()

    @classmethod
    def decode(cls, data: bytes) -> ObserverLocation:
        """Read a relay's answer. Unknown fields are ignored. Raises only WireError."""
        if len(data) > MAX_LOCATION_BYTES:
            message = f"an observer's location of {len(data)} bytes is over the limit of {MAX_LOCATION_BYTES}"
            raise WireError(message)

        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as error:
            message = "an observer's location is a JSON object, got something else"
            raise WireError(message) from error

        match fields:
            case {"version": int() as version} if version != VERSION or isinstance(version, bool):
                message = f"got an observer's location of version {version}, expected version {VERSION}; update the older program"
                raise WireError(message)
            case {"version": int(), "key": str() as key, "port": int() as port} if len(key) == 64:
                try:
                    return cls(bytes.fromhex(key), _port(port))
                except ValueError as error:
                    message = "an observer's key is 64 hexadecimal digits, got something else"
                    raise WireError(message) from error
            case _:
                message = "an observer's location has version, key (64 hexadecimal digits) and port, got something else"
                raise WireError(message)


def _host(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError as error:
        message = f"expected an IPv4 or IPv6 address, got {text[:100]!r}"
        raise WireError(message) from error

    if isinstance(ip, ipaddress.IPv6Address):
        if ip.scope_id is not None:
            message = f"expected an address without a zone, got {text[:100]!r}"
            raise WireError(message)
        ip = ip.ipv4_mapped or ip
    if ip.is_multicast or ip.is_unspecified:
        message = f"expected the address of one host, got {ip}"
        raise WireError(message)

    return ip


def _port(port: int) -> int:
    if isinstance(port, bool) or not 0 < port < 65536:
        message = f"expected a port from 1 to 65535, got {port!r}"
        raise WireError(message)

    return port
