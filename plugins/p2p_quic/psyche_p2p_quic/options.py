"""The options of this transport besides those of `psyche client train`: relays, address discovery, upload rate."""

from __future__ import annotations

import ipaddress
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from psyche_core.errors import ConfigError
from psyche_p2p_quic.addresses.relay_urls import RelayChoice

MAX_ADVERTISED = 4
LEAST_UPLOAD_RATE = 0.05
"""MB a second below which a limit is refused: a piece would come so slowly that its receiver gives it up."""


class QuicOptions(BaseSettings):
    """A member's decisions about its connections. The defaults send nothing to anybody but the run's members and relays."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="PSYCHE_", extra="forbid", frozen=True, env_ignore_empty=True
    )

    iroh_relay: str | None = Field(
        default=None,
        description=(
            "Relays for members that cannot reach each other directly: disabled, n0 (public relays of iroh's makers), or URLs "
            "separated by commas, such as https://relay.example.org. No other relay is contacted, whatever other members "
            "publish. Default: the relays that the run names; none if it names none."
        ),
    )
    iroh_relay_token: str | None = Field(
        default=None, repr=False, description="Token for relays that ask for one. It is sent to the relays in use only."
    )
    iroh_discovery: Literal["off", "n0", "observer"] | None = Field(
        default=None,
        description=(
            "How to find the address that others see. observer: asks the observer of a relay in use; n0: publishes this client's "
            "addresses at a public service of iroh's makers and looks others up there; off: asks nobody. Default: observer if a "
            "relay is in use, else off."
        ),
    )
    advertise_address: str | None = Field(
        default=None,
        description=(
            "IP[:PORT] at which others reach this client, where it cannot know it: a router that forwards a port, or a cloud "
            "that translates addresses. The port defaults to --bind-p2p-port; one of the two must be given. Up to four, "
            "separated by commas."
        ),
    )

    max_upload_rate: float | None = Field(
        default=None,
        ge=LEAST_UPLOAD_RATE,
        allow_inf_nan=False,
        description=(
            "Most MB a second that this client sends to other members. Results of rounds, for which others wait, go first and "
            "are never held back; pieces of the model for new members get what is left. Default: no limit."
        ),
    )

    @field_validator("iroh_relay")
    @classmethod
    def _relays(cls, value: str | None) -> str | None:
        RelayChoice.parse(value)
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.iroh_relay == "disabled" and self.iroh_relay_token is not None:
            message = "--iroh-relay disabled and --iroh-relay-token exclude each other: no relay is shown a token"
            raise ValueError(message)
        if self.iroh_relay == "n0" and self.iroh_relay_token is not None:
            message = (
                "--iroh-relay n0 and --iroh-relay-token exclude each other: n0's relays ask for none, and would be shown yours"
            )
            raise ValueError(message)
        if self.iroh_relay == "disabled" and self.iroh_discovery == "observer":
            message = "--iroh-relay disabled and --iroh-discovery observer exclude each other: an observer belongs to a relay"
            raise ValueError(message)
        return self

    @field_validator("advertise_address")
    @classmethod
    def _addresses(cls, value: str | None) -> str | None:
        parse_advertised(value)
        return value


def parse_advertised(text: str | None) -> tuple[tuple[str, int | None], ...]:
    """Read (IP, port or None) pairs from `IP`, `IP:PORT`, `[IPv6]:PORT`, separated by commas.

    Raises ValueError with a sentence.
    """
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if text is not None and not 0 < len(parts) <= MAX_ADVERTISED:
        message = f"expected 1 to {MAX_ADVERTISED} addresses IP[:PORT] separated by commas"
        raise ValueError(message)

    return tuple(_advertised(part) for part in parts)


def check_advertised_ports(text: str | None, *, port: int) -> None:
    """Raise ConfigError for an advertised address without a port if we bind any free one (port 0): nobody can forward it."""
    missing = [ip for ip, given in parse_advertised(text) if given is None]
    if missing and port == 0:
        shown = f"[{missing[0]}]" if ":" in missing[0] else missing[0]
        message = (
            f"--advertise-address {missing[0]} names no port, and without --bind-p2p-port this client binds another one at each "
            f"start; give {shown}:PORT with the port that leads here, or --bind-p2p-port PORT if it is the same"
        )
        raise ConfigError(message)


def _advertised(text: str) -> tuple[str, int | None]:
    host, port = text, ""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        host, port = host if closed else "", port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        ip = None
    number = int(port[:6]) if port.isascii() and port.isdecimal() else None
    bad_port = (bool(port) or text.endswith(":")) and (number is None or not 0 < number < 65536)
    if ip is None or ip.is_multicast or ip.is_unspecified or bad_port:
        message = "expected IP[:PORT] such as 203.0.113.7:4433 or [2001:db8::7]:4433"
        raise ValueError(message)

    return str(ip), number
