"""Reads the shared secret of a group's processes from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from psyche_core.wire.key_files import read_key_file

LEAST_BYTES: Final = 16
SIDECAR_PORT: Final = 34567
"""Port of the group's store if none is given, as in the reference implementation."""


def read_secret(path: Path) -> bytes:
    """Return the file's content without white space at its start and end.

    Raises IdentityError for a file that cannot be used or that others can read, and ValueError if it has less than LEAST_BYTES
    bytes.
    """
    remedy = f"make one with `openssl rand -hex 32 > {path.name} && chmod 600 {path.name}`"
    secret = read_key_file(path, what="secret file", remedy=remedy).strip()
    if len(secret) < LEAST_BYTES:
        message = f"{path} has {len(secret)} bytes, at least {LEAST_BYTES} are needed; {remedy}"
        raise ValueError(message)
    return secret
