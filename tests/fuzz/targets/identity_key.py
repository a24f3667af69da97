"""A key file: 32 raw bytes or 64 hex digits, else IdentityError."""

from __future__ import annotations

from psyche_core.errors import IdentityError
from psyche_core.wire.signing import SecretKey
from tests.fuzz.files import scratch_folder

DOCUMENTED = (IdentityError,)
MAX_BYTES = 256
MEMORY = (16, 65_536)

_FOLDER = scratch_folder()


def seeds() -> list[bytes]:
    return [b"k" * 32, b"6b" * 32, b" " + b"6B" * 32 + b"\r\n", b"", b"\xff" * 64]


def TARGET(data: bytes) -> None:
    path = _FOLDER / "me.key"
    path.write_bytes(data)
    path.chmod(0o600)
    key = SecretKey.load(path)
    assert key.seed == data or "".join(data.decode("ascii").split()).lower() == key.seed.hex()
