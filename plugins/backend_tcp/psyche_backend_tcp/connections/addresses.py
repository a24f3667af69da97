"""Parses and formats `host:port#KEY` texts: a server's address and the public key it must prove to hold.

    127.0.0.1:20000                     a server on this machine; needs no key, since only local programs can listen here
    example.org:20000#8f40…(64 digits)  the server must prove that it holds this Ed25519 key
    example.org:20000#insecure          any server is accepted: encrypted, but possibly an impostor

A server elsewhere needs a key or `#insecure`: TLS without a known key keeps out eavesdroppers, but not an impostor.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass

from psyche_core.errors import UserError

INSECURE = "insecure"
MOST_DIGITS = 20
"""Most digits of a port that are converted to a number, because int() raises for more than some thousands."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's address. key: the 32 bytes that the server must prove to hold, None for no proof."""

    host: str
    port: int
    key: bytes | None = None

    def __str__(self) -> str:
        return format_address(self.host, self.port)


def parse_address(text: str) -> ServerAddress:
    """Read `host:port`, `host:port#KEY` or `host:port#insecure`. Raises UserError with one sentence."""
    place, mark, proof = text.strip().partition("#")
    host, colon, port = place.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    numeric = port.isascii() and port.isdigit()
    if colon and host and numeric and (len(port) > MOST_DIGITS or not 0 < int(port) < 2**16):
        message = f"the port of a server address is a number from 1 to 65535, got {port[:20]} in {text[:120]!r}"
        raise UserError(message)
    if not colon or not host or not numeric:
        message = f"expected a server address like 127.0.0.1:20000#KEY or [::1]:20000#KEY, got {text!r}"
        raise UserError(message)

    if not mark:
        if not is_local(host):
            message = (
                f"{place} is not this machine, so the server there must prove who it is: write {place}#KEY with the 64 hex "
                f"digits its owner gives you (the server prints them when it starts), or {place}#{INSECURE} to trust whoever "
                "answers"
            )
            raise UserError(message)

        return ServerAddress(host, int(port))

    return ServerAddress(host, int(port), None if proof == INSECURE else _key(proof))


def format_address(host: str, port: int, key: bytes | None = None) -> str:
    """Return the text that `parse_address` reads."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return place if key is None else f"{place}#{key.hex()}"


def is_local(host: str) -> bool:
    """Return whether a host is always this machine."""
    if host == "localhost":
        return True

    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        message = f"after the # of a server address comes the server's key, 64 hex digits, or {INSECURE}; got {text[:80]!r}"
        raise UserError(message)

    return key


def reason(error: BaseException) -> str:
    """Return why a connection failed, for users: the operating system's message without its error number."""
    if isinstance(error, BaseExceptionGroup):
        return reason(error.exceptions[0])

    if error.__cause__ is not None and isinstance(error.__cause__, OSError | BaseExceptionGroup):
        return reason(error.__cause__)

    if isinstance(error, TimeoutError):
        return "it did not answer in time"

    if isinstance(error, OSError) and error.errno is not None and error.errno > 0 and type(error).__module__ != "ssl":
        return os.strerror(error.errno)

    if isinstance(error, OSError) and error.strerror:
        return error.strerror

    return str(error) or f"the connection was closed ({type(error).__name__})"
