"""RPC endpoints as the user gives them: an HTTP URL and a websocket URL.

The websocket URL may be left out. Then it is derived from the HTTP URL as in Solana's own tools (the next port if a port is
given, the same host otherwise). Other schemes are an error, since a typing error would otherwise appear only as a time-out. The
displayed name of an endpoint never holds its path, query or password, because providers put their keys there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit, urlunsplit

from psyche_core.errors import ConfigError

LOCAL_RPC = "http://127.0.0.1:8899"
"""The default URL of a local chain."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One provider. http, websocket: URLs, which may contain secrets and are not shown."""

    http: str = field(repr=False)
    websocket: str = field(repr=False)

    @property
    def name(self) -> str:
        """Host and port, for messages and logs."""
        return _place(urlsplit(self.http))

    @property
    def host_and_port(self) -> str:
        """Host and port, with the scheme's default port if none is given."""
        parts = urlsplit(self.http)
        return self.name if parts.port is not None else f"{self.name}:{443 if parts.scheme == 'https' else 80}"

    def __repr__(self) -> str:
        return f"Endpoint({self.name})"

    @classmethod
    def parse(cls, http: str, websocket: str | None = None) -> Endpoint:
        """Make an endpoint from one or two URLs. Raises ConfigError."""
        parts = _checked(http, ("http", "https"))
        if websocket:
            _checked(websocket, ("ws", "wss"))
            return cls(http, websocket)

        return cls(http, _websocket_of(parts))


def parse_endpoints(pairs: Sequence[tuple[str | None, str | None]]) -> tuple[Endpoint, ...]:
    """Endpoints in order of preference without duplicates; a local chain's if none is given. Raises ConfigError."""
    found: dict[str, Endpoint] = {}
    for http, websocket in pairs:
        if http:
            endpoint = Endpoint.parse(http, websocket)
            found.setdefault(endpoint.http, endpoint)
        elif websocket:
            message = f"a websocket endpoint ({_place(urlsplit(websocket))}) was given without its RPC endpoint; give both"
            raise ConfigError(message)

    return tuple(found.values()) or (Endpoint.parse(LOCAL_RPC),)


def _checked(url: str, schemes: tuple[str, ...]) -> SplitResult:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        expected = " or ".join(f"{scheme}://HOST[:PORT]" for scheme in schemes)
        beginning = re.split("[/?#@]", url, maxsplit=1)[0][:60]  # what follows may be a key
        message = f"expected an endpoint like {expected}, got one that begins with {beginning!r}"
        raise ConfigError(message)

    return parts


def _websocket_of(parts: SplitResult) -> str:
    scheme = "wss" if parts.scheme == "https" else "ws"
    place = parts.netloc
    if parts.port is not None:
        place = f"{place.removesuffix(f':{parts.port}')}:{parts.port + 1}"
    return urlunsplit(parts._replace(scheme=scheme, netloc=place))


def _place(parts: SplitResult) -> str:
    host = parts.hostname or "?"
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"
