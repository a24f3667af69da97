"""A relay and its address observer together: one TCP port, one UDP port, one policy."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from psyche_core.errors import ConfigError, UserError
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.address_observer.protocol import PATH as OBSERVER_PATH
from psyche_p2p_quic.address_observer.server import Observer
from psyche_p2p_quic.relay.access import Access
from psyche_p2p_quic.relay.limits import RelayLimits
from psyche_p2p_quic.relay.protocol.http import Page
from psyche_p2p_quic.relay.server import RelayServer

DRAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Options of a relay. hosts: IP addresses to listen on. port: TCP; 0 picks a free one.

    observer: whether there is an address observer. observer_port: its UDP port; None for the number of the TCP port. url: the one
    that members are given, None for one of host and port. public_metrics: see RelayServer. key: of the observer; None makes one.
    """

    hosts: Sequence[str] = ("127.0.0.1",)
    port: int = 3340
    observer: bool = True
    observer_port: int | None = None
    url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    public_metrics: bool = False
    limits: RelayLimits = field(default_factory=RelayLimits)
    key: SecretKey | None = None


_PORT_TRIES = 5
"""How often a TCP port chosen by the system is tried for UDP as well."""


class RelayService:
    """Relay and observer. An async context manager; entering it raises UserError for what its owner can correct."""

    def __init__(self, access: Access, options: ServiceOptions) -> None:
        self._options = options
        self._access = access
        self._stack = contextlib.AsyncExitStack()
        self._observer: Observer | None = None
        self._relay: RelayServer | None = None

    async def __aenter__(self) -> Self:
        options = self._options
        hosts = [_as_ip(host) for host in options.hosts]
        _check_url(options.url, tls=options.tls_cert is not None)
        tls = server_tls(options.tls_cert, options.tls_key)
        any_port = options.observer and options.port == 0 and options.observer_port is None
        for left in reversed(range(_PORT_TRIES if any_port else 1)):
            async with contextlib.AsyncExitStack() as stack:
                self._relay = await stack.enter_async_context(
                    RelayServer(
                        self._access,
                        hosts=hosts,
                        port=options.port,
                        limits=options.limits,
                        tls=tls,
                        pages={OBSERVER_PATH: self._observer_page} if options.observer else {},
                        public_metrics=options.public_metrics,
                        gauges=self._gauges,
                    )
                )
                if options.observer:
                    try:
                        self._observer = await stack.enter_async_context(self._new_observer(hosts, self._relay))
                    except UserError:
                        if left:
                            continue  # the UDP port with the number of the chosen TCP port is in use
                        raise
                self._stack = stack.pop_all()
                break
        return self

    def _new_observer(self, hosts: Sequence[str], relay: RelayServer) -> Observer:
        options = self._options
        port = relay.port if options.observer_port is None else options.observer_port
        key = options.key or SecretKey.generate()
        return Observer(key, hosts=hosts, port=port, may_call=relay.router.may_observe)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    @property
    def relay(self) -> RelayServer:
        """The relay; only while entered."""
        assert self._relay is not None
        return self._relay

    @property
    def observer(self) -> Observer | None:
        """The observer, if there is one."""
        return self._observer

    @property
    def url(self) -> str:
        """The URL that members are given."""
        if self._options.url is not None:
            return self._options.url

        host = self._options.hosts[0]
        scheme = "http" if self._options.tls_cert is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.relay.port}/"

    def reconsider(self) -> None:
        """Apply a changed policy."""
        self.relay.reconsider()
        if self._observer is not None:
            self._observer.reconsider()

    async def drain(self) -> None:
        """Inform the clients that the relay stops, and wait for them for some seconds."""
        await self.relay.drain(seconds=DRAIN_SECONDS)

    def _observer_page(self, _: str) -> Page:
        assert self._observer is not None
        date = ("Date", formatdate(usegmt=True))  # callers compare it with their clocks
        return Page(self._observer.location.encode().decode() + "\n", kind="application/json", headers=(date,))

    def _gauges(self) -> list[tuple[str, str, float]]:
        if self._observer is None:
            return []
        return [
            ("observer_callers", "callers of the address observer connected now", self._observer.caller_count),
            ("observer_answers", "callers that were told their address since the start", self._observer.answered),
        ]


def server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """A server's TLS context from certificate and key files, None if neither is given. Raises UserError and ConfigError."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        message = "TLS needs both a certificate and its private key; give the other file, too"
        raise ConfigError(message)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        message = (
            f"{cert} and {key} are not a TLS certificate with its private key, in PEM and without a password: "
            f"{error.reason or 'the one or the other is missing in its file'}"
        )
        raise UserError(message) from error
    except OSError as error:
        message = f"cannot read the TLS certificate {cert} or its key {key}: {error.strerror}"
        raise UserError(message) from error
    return context


def _check_url(url: str | None, *, tls: bool) -> None:
    """Raise ConfigError for a URL that no member could use."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and parts.path in {"", "/"}
    except ValueError:
        usable = False
    if not usable:
        message = f"the URL for members is http://HOST:PORT or https://HOST:PORT, without a path, got {url[:200]!r}"
        raise ConfigError(message)
    if _is_every_address(parts.hostname or ""):
        message = (
            f"the URL for members is {url[:200]!r}, and {parts.hostname} means every address of this machine, which nobody can "
            "connect to; give the relay's public name or address, such as http://relay.example.org:3340"
        )
        raise ConfigError(message)
    if tls and parts.scheme == "http":
        message = f"the URL for members begins with https:// where the relay has a TLS certificate, got {url[:200]!r}"
        raise ConfigError(message)


def _is_every_address(host: str) -> bool:
    """Return whether a host is 0.0.0.0 or ::, also in the short forms that systems accept, such as 0."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host.strip("0.")


def _no_password() -> str:
    return ""  # instead of asking at the terminal


def _as_ip(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        message = f"--host is an IP address to listen on, such as 0.0.0.0 for all of IPv4 or :: for all of IPv6, got {host!r}"
        raise UserError(message) from None
