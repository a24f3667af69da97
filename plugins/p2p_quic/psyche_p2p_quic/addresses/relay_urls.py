"""Which relays an endpoint uses: what the member chose, else what the run names. Pure.

A relay is named by an `http` or `https` URL with a host, and nothing after it: clients replace any path. `canonical_relay` makes
two spellings of one relay equal, because peers' relays are compared with our own list: a relay that is not on it is never
contacted, whatever a peer publishes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_RELAYS = 8
MAX_RELAY_URL_BYTES = 255

N0_RELAYS: tuple[str, ...] = (
    "https://aps1-1.relay.n0.iroh.link",
    "https://euc1-1.relay.n0.iroh.link",
    "https://use1-1.relay.n0.iroh.link",
    "https://usw1-1.relay.n0.iroh.link",
)
"""The public relays of n0, the makers of iroh, as iroh 1.2 names them."""

_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*\.?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def canonical_relay(url: str) -> str:
    """Return the one spelling of a relay's URL: `scheme://host[:port]`, without a default port. Raises ValueError with a
    sentence.
    """
    wanted = "expected http://HOST[:PORT] or https://HOST[:PORT]"
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        message = f"got the relay {url[:100]!r}, {wanted}"
        raise ValueError(message) from error

    extra = parts.username is not None or parts.query or parts.fragment or parts.path not in ("", "/", "/relay")
    if parts.scheme not in _DEFAULT_PORTS or not host or extra or port == 0:
        message = f"got the relay {url[:100]!r}, {wanted}"
        raise ValueError(message)

    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        host = host.lower().removesuffix(".")
        if not _NAME.fullmatch(host) or len(host) > 253:
            message = f"got the relay {url[:100]!r}, {wanted}"
            raise ValueError(message) from None
    else:
        host = f"[{ip}]" if ip.version == 6 else str(ip)

    shown = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{shown}"


def canonical_relays(urls: Iterable[str]) -> tuple[str, ...]:
    """Return the canonical spelling of several URLs, each once, at most MAX_RELAYS. Raises ValueError."""
    found = tuple(dict.fromkeys(canonical_relay(url) for url in urls))
    if len(found) > MAX_RELAYS:
        message = f"got {len(found)} relays, expected at most {MAX_RELAYS}"
        raise ValueError(message)

    return found


@dataclass(frozen=True, slots=True)
class RelayChoice:
    """A member's own choice. urls: the relays to use whatever the run names; None takes the run's, () uses none."""

    urls: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, text: str | None) -> RelayChoice:
        """Read `disabled`, `n0` or URLs separated by commas; None or `run` takes the run's. Raises ValueError."""
        match text:
            case None | "run":
                return cls(None)
            case "disabled":
                return cls(())
            case "n0":
                return cls(N0_RELAYS)

        urls = [part.strip() for part in text.split(",") if part.strip()]
        if not urls:
            message = "expected disabled, n0, or URLs of relays separated by commas"
            raise ValueError(message)

        return cls(canonical_relays(urls))

    def of(self, run: Iterable[str]) -> tuple[str, ...]:
        """Return the relays to use in a run that names these. A malformed relay of the run is left out."""
        if self.urls is not None:
            return self.urls

        found: dict[str, None] = {}
        for url in run:
            try:
                found[canonical_relay(url)] = None
            except ValueError:
                continue
        return tuple(found)[:MAX_RELAYS]
