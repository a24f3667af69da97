"""`host:port` texts: `127.0.0.1:20000`, `example.org:20000`, `[::1]:20000`."""

from __future__ import annotations

import os

from psyche_core.errors import UserError


def parse_address(text: str) -> tuple[str, int]:
    """Host and port. Raises UserError with one sentence."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 2**16:
        message = f"expected a server address like 127.0.0.1:20000 or [::1]:20000, got {text!r}"
        raise UserError(message)

    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The text `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reason(error: BaseException) -> str:
    """Why a connection failed, for people: the operating system's words without its numbers."""
    if isinstance(error, BaseExceptionGroup):
        return reason(error.exceptions[0])

    if error.__cause__ is not None and isinstance(error.__cause__, OSError | BaseExceptionGroup):
        return reason(error.__cause__)

    if isinstance(error, TimeoutError):
        return "it did not answer in time"

    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)

    if isinstance(error, OSError) and error.strerror:
        return error.strerror

    return str(error) or type(error).__name__
