"""Checks web addresses, and shortens them for messages.

User names, passwords, queries and fragments are never shown, because any of them may be a secret. The HTTP library logs whole
addresses at INFO and whole headers at DEBUG. While one of our clients is open, `Redaction` shortens the former and drops the
latter.
"""

from __future__ import annotations

import logging
import re
from urllib.parse import urlsplit

_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy", "httpcore.socks")
_ADDRESS = re.compile(r"[a-z]+://[^\s'\"]+")
_HEADERS = "receive_response_headers.complete"

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


def shown(url: str) -> str:
    """Return the address without user name, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def web_address(url: str) -> str:
    """Return the address itself. Raises ValueError unless it is an http or https address with a host."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        message = "must be an address like https://host/path"
        raise ValueError(message)

    return url


def is_private_line(url: str) -> bool:
    """Return whether nobody between us and the server can change the data: https, or this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in LOOPBACK_HOSTS


class Redaction(logging.Filter):
    """Removes possible secrets from log records of the HTTP library."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten addresses in the record. Return False, which drops the record, if it lists headers."""
        text = record.getMessage()
        if _HEADERS in text:
            return False

        record.msg, record.args = _ADDRESS.sub(lambda found: shown(found.group()), text), None
        return True

    def begin(self) -> None:
        """Filter the library's loggers."""
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def end(self) -> None:
        """Stop filtering; idempotent."""
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self)
