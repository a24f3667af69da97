"""Turns disk errors into words for people, without error numbers and names of unfinished files."""

from __future__ import annotations

import errno
from typing import Final

_FULL: Final = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})
_FULL_TEXT: Final = "No space left on device"


def disk_error_in(error: BaseException) -> str | None:
    """Return the disk's reason for an error, with advice if the disk is full; None for an error that no disk caused.

    The reason is searched for in the error and in the errors that caused it. Errors of libraries with other exception types, such
    as safetensors, are recognized by their text if the disk is full.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return f"{cause.strerror}; make room on its disk" if cause.errno in _FULL else cause.strerror
        if _FULL_TEXT in str(cause) and cause.__cause__ is None:
            return f"{_FULL_TEXT}; make room on its disk"
        cause = cause.__cause__
    return None
