"""Interprets a web server's answer to a range request. Pure: takes status and headers, returns a number or raises an error.

The plugin's README lists all failures and how they are handled; a test against a real server covers each of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from psyche_core.errors import DataError
from psyche_data_http.addresses import shown
from psyche_data_http.file_source import AccessRefused, RemoteFile, changed
from psyche_data_http.retries import TransientError

MAX_WHOLE_BYTES = 64 << 20
"""A server that ignores ranges sends the whole file each time; only files up to this size are read from it."""

LONGEST_ASKED_PAUSE = 24 * 3600.0
"""Limit for Retry-After in seconds; the caller's timeout ends earlier."""

_PASSING = frozenset({408, 425, 429})
_NUMBER = re.compile(r"[0-9]{1,19}")
"""A size or offset; no file needs more digits, and Python refuses to convert more than 4300."""

_CONTENT_RANGE = re.compile(rf"bytes ({_NUMBER.pattern})-({_NUMBER.pattern})/({_NUMBER.pattern}|\*)")

Headers = Mapping[str, str]
"""Header fields by name; names are case-insensitive."""


def refuse_failure(url: str, status: int, headers: Headers) -> None:
    """Raise for every status but 200 and 206: TransientError for temporary failures, else DataError."""
    if status in (200, 206):
        return

    if status in _PASSING or status >= 500:
        message = f"{shown(url)}: the server answered {status}"
        raise TransientError(message, pause=_asked_pause(headers.get("Retry-After", "")))

    match status:
        case 404 | 410:
            message = f"{shown(url)} does not exist ({status}); check the address in data_location"
        case 401 | 403:
            message = (
                f"{shown(url)} refuses access ({status}); make the file public, use an address that contains its permission "
                "(a signed one, or https://user:password@host/…), or name its bucket as Gcp or S3 to read with credentials"
            )
            raise AccessRefused(message)
        case 416:
            message = f"{shown(url)} no longer has the bytes asked for (416); the file changed while it was in use"
        case _:
            message = f"{shown(url)}: unexpected answer {status}; expected 200 or 206"

    raise DataError(message)


def refuse_encoding(url: str, headers: Headers) -> None:
    """Raise when the body is compressed, because ranges count stored bytes."""
    if is_encoded(headers):
        encoding = headers["Content-Encoding"]
        message = f"{shown(url)} is sent as {encoding} although plain bytes were asked for; switch compression off for it"
        raise DataError(message)


def refuse_change(file: RemoteFile, headers: Headers) -> None:
    """Raise when a validator in the answer differs from the one that the file had when it was found."""
    for name, before in (("ETag", file.etag), ("Last-Modified", file.modified)):
        now = headers.get(name)
        if before is not None and now is not None:
            if now != before:
                raise changed(file, f"its {name} was {before}, now {now}")
            return  # with an equal ETag the date does not matter


def is_encoded(headers: Headers) -> bool:
    """Whether the body is compressed."""
    return headers.get("Content-Encoding", "identity") != "identity"


def stated_length(headers: Headers) -> int | None:
    """Return Content-Length; None if it is missing or not a number."""
    length = headers.get("Content-Length", "")
    return int(length) if _NUMBER.fullmatch(length) else None


def stated_whole(headers: Headers) -> int | None:
    """Return the size of the whole file in a 206 answer; None if it is not given."""
    match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    return int(match.group(3)) if match and match.group(3) != "*" else None


def piece_length(file: RemoteFile, headers: Headers, start: int, wanted: int) -> int:
    """Return how many bytes a 206 sends, maybe fewer than wanted. Raises DataError unless they are the requested ones."""
    content_range = headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None:
        message = f"{file.name} answered 206 with Content-Range {content_range[:80]!r}; expected 'bytes first-last/size'"
        raise DataError(message)

    first, last, size = int(match.group(1)), int(match.group(2)), match.group(3)
    if size not in ("*", str(file.size)):
        raise changed(file, f"it had {file.size} bytes, now {size}")

    if first != start or not start <= last < start + wanted:
        message = (
            f"{file.name} sent bytes {first} to {last}; asked for {start} to {start + wanted - 1}; "
            "its server or a proxy does not follow HTTP; use another server"
        )
        raise DataError(message)

    length = headers.get("Content-Length")
    if length is not None and length != str(last - first + 1):
        message = (
            f"{file.name} announced {length[:20]} bytes for the range {content_range!r}; "
            "its server or a proxy does not follow HTTP; use another server"
        )
        raise DataError(message)

    return last - first + 1


def refuse_whole(file: RemoteFile, headers: Headers) -> None:
    """Raise when a 200 answer (the whole file, from a server that ignores ranges) is another file, or is too large."""
    length = headers.get("Content-Length")
    if length is not None and length != str(file.size):
        raise changed(file, f"it had {file.size} bytes, now {length[:20]}")

    refuse_large_whole(file)


def refuse_large_whole(file: RemoteFile) -> None:
    """Raise when a file is too large to be read whole each time."""
    if file.size > MAX_WHOLE_BYTES:
        message = (
            f"{file.name}: the server sends whole files instead of ranges, and this one of {file.size} bytes is too large for "
            f"that (over {MAX_WHOLE_BYTES} bytes); use a server that answers range requests, or smaller files"
        )
        raise DataError(message)


def _asked_pause(retry_after: str) -> float:
    """Return the seconds in a Retry-After header (a number or a date); 0 if it is missing or invalid."""
    if _NUMBER.fullmatch(retry_after):
        return min(float(retry_after), LONGEST_ASKED_PAUSE)

    try:
        until = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0

    if until.tzinfo is None:  # "-0000" means a UTC time from an unknown time zone
        until = until.replace(tzinfo=UTC)
    return min(max(0.0, (until - datetime.now(UTC)).total_seconds()), LONGEST_ASKED_PAUSE)
