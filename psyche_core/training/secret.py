"""The secret that processes of one group have in common, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LEAST_BYTES: Final = 16


def read_secret(path: Path) -> bytes:
    """The file's content without white space around it. Raises OSError, and ValueError for one too short to be secret."""
    secret = path.read_bytes().strip()
    if len(secret) < LEAST_BYTES:
        message = f"{path} has {len(secret)} bytes, at least {LEAST_BYTES} are needed; make one with `openssl rand -hex 32`"
        raise ValueError(message)
    return secret
