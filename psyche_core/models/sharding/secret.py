"""The secret that processes of one group have in common, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from psyche_core.wire.key_files import read_key_file

LEAST_BYTES: Final = 16


def read_secret(path: Path) -> bytes:
    """The file's content without white space around it.

    Raises IdentityError for a file that cannot be used or that others can read, and ValueError for one too short to be secret.
    """
    remedy = f"make one with `openssl rand -hex 32 > {path.name} && chmod 600 {path.name}`"
    secret = read_key_file(path, what="secret file", remedy=remedy).strip()
    if len(secret) < LEAST_BYTES:
        message = f"{path} has {len(secret)} bytes, at least {LEAST_BYTES} are needed; {remedy}"
        raise ValueError(message)
    return secret
