"""What connects members to each other: registrations of transports and relays.

The hooks are in the package's `__init__`, from which all of these names are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from psyche_core.interfaces import (
    Relay,
    Transport,
)
from psyche_core.wire.signing import SecretKey


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportContext:
    """The arguments for building an endpoint.

    Attributes:
        interface: IP address or name of a network interface to bind; a name means the interface's addresses of both IP families.
        port: 0 picks a free one.
        whole_interface: the address was found rather than chosen, so the interface's address of the other family may be bound as
            well.
        settings: the transport's own options, validated; None for the defaults.
    """

    run_id: str
    key: SecretKey
    interface: str = "127.0.0.1"
    port: int = 0
    whole_interface: bool = False
    settings: BaseModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportRegistration:
    """A transport.

    settings: the transport's own options. When a client uses this transport, they appear as `--name` and `PSYCHE_NAME` beside
    the client's own options, as those of a backend do.
    """

    name: str
    summary: str
    create: Callable[[TransportContext], Transport]
    settings: type[BaseModel] | None = None
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayContext:
    """The arguments for building a relay that runs beside a coordinator.

    host, port: to listen on; port 0 picks a free one. url: that members are given; None for one of host and port. tls_cert,
    tls_key: files of the certificate and its key; without them everything around the encrypted traffic is readable on the way.
    """

    host: str = "127.0.0.1"
    port: int = 0
    url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRegistration:
    """A relay that `psyche server run --with-relay` can run beside its coordinator."""

    name: str
    summary: str
    create: Callable[[RelayContext], Relay]
    requires: Mapping[str, str] = field(default_factory=dict)
