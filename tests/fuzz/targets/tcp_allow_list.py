"""The file of keys that may log in: read, or refused with the line that is no key."""

from __future__ import annotations

from psyche_backend_tcp.connections.allow_list import AllowList
from psyche_core.errors import UserError
from tests.fuzz.files import scratch_folder

DOCUMENTED = (UserError,)
MAX_BYTES = 1024
MEMORY = (100, 1_500_000)  # room for the longest file is taken before it is read

_PATH = scratch_folder() / "allowed.txt"


def seeds() -> list[bytes]:
    return [b"# members\n\n" + b"ab" * 32 + b" # Ann\r\n" + b"CD" * 32, b"", b"# only a comment", b"\xff\xfe"]


def TARGET(data: bytes) -> None:
    _PATH.write_bytes(data)
    allowed = AllowList(_PATH)
    assert b"x" * 32 not in allowed or b"78" * 32 in data.replace(b" ", b"")
