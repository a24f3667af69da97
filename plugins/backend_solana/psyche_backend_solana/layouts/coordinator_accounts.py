"""The coordinator program's accounts: a run's instance, and the account that holds its state.

Size, magic and version are checked in this order; the rest is then parsed strictly. The state is large, so it is decoded only
when it is used. Foreign and damaged accounts raise WireError. The caller checks the owner of an account.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from solders.pubkey import Pubkey

from psyche_backend_solana.layouts.beacon import BEACON_BYTES, Beacon
from psyche_core.config.schema import MAX_RUN_ID_BYTES
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import WireError

INSTANCE_BYTES = 256
INSTANCE_MAGIC = b"PsycheRI"
INSTANCE_VERSION = 1

HEADER_BYTES = 1344
NONCE_OFFSET, NONCE_BYTES = 16, 8
BEACON_OFFSET = HEADER_BYTES - BEACON_BYTES
"""Offset of the beacon, the last part of the header."""
STAGING_BYTES = 4096
ACCOUNT_BYTES = HEADER_BYTES + image.SIZE + STAGING_BYTES
ACCOUNT_MAGIC = b"PsycheCo"
ACCOUNT_VERSION = 5
OLD_ACCOUNT_BYTES = {1: 161_056, 2: 165_152, 3: 188_104, 4: 188_424}
"""Sizes of accounts of older versions, which can only be closed."""

CLIENT_VERSION_BYTES = 96
NAME_BYTES = 64
DESCRIPTION_BYTES = 280

_INSTANCE = struct.Struct(f"<8sIB3x32s32s32s{MAX_RUN_ID_BYTES}s112x")
_HEADER = struct.Struct(f"<8sIIQ32s{CLIENT_VERSION_BYTES}s{NAME_BYTES}s{DESCRIPTION_BYTES}sQQQQQ760x{BEACON_BYTES}s")


@dataclass(frozen=True, slots=True)
class RunInstance:
    """A run's instance. main_authority: its owner. join_authority: grants authorizations to join. account: holds its state."""

    bump: int
    main_authority: Pubkey
    join_authority: Pubkey
    account: Pubkey
    run_id: str

    @classmethod
    def parse(cls, data: bytes) -> RunInstance:
        """Parse the account's data. Raises WireError."""
        _expect_kind(data, INSTANCE_MAGIC, INSTANCE_VERSION, sizes={INSTANCE_VERSION: INSTANCE_BYTES}, what="run's instance")
        _, _, bump, main, join, account, run_id = _INSTANCE.unpack(data)
        return cls(bump, Pubkey(main), Pubkey(join), Pubkey(account), _text(run_id, "run_id"))


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """The description of a run that its owner publishes: at most 64 bytes of name and 280 of description."""

    name: str = ""
    description: str = ""
    num_parameters: int = 0
    vocab_size: int = 0

    def pack(self) -> bytes:
        """The 360 bytes in the account. Raises ValueError for a text that is too long or a number out of range."""
        texts = packed_text(self.name, NAME_BYTES, "name") + packed_text(self.description, DESCRIPTION_BYTES, "description")
        try:
            return texts + struct.pack("<QQ", self.num_parameters, self.vocab_size)
        except struct.error as error:
            message = f"expected num_parameters and vocab_size of 64 bits, got {self.num_parameters} and {self.vocab_size}"
            raise ValueError(message) from error


@dataclass(frozen=True, slots=True)
class Backing:
    """The backing of a run's points, in points: a treasurer's vault. No epoch promises more than is free.

    free: amount that may still be promised. promised: amount that the current epoch has promised to its members.
    """

    free: int
    promised: int


@dataclass(frozen=True, slots=True)
class CoordinatorAccount:
    """The account that holds a run's state.

    nonce: increases by one with every command. backing: None if the points have no backing; epochs then promise what the owner
    sets. beacon: source of the next seed. image: see `psyche_core.coordinator.canonical_image`.
    """

    version: int
    nonce: int
    instance: Pubkey
    client_version: str
    metadata: RunMetadata
    backing: Backing | None
    beacon: Beacon
    image: bytes

    @classmethod
    def parse(cls, data: bytes) -> CoordinatorAccount:
        """Parse the account's data without decoding the state. Raises WireError."""
        _expect_kind(data, ACCOUNT_MAGIC, ACCOUNT_VERSION, sizes={ACCOUNT_VERSION: ACCOUNT_BYTES}, what="coordinator account")
        _, version, _, nonce, instance, client_version, *about, backed, free, promised, beacon = _HEADER.unpack_from(data)
        name, description, parameters, vocabulary = about
        metadata = RunMetadata(_text(name, "name"), _text(description, "description"), parameters, vocabulary)
        backing = Backing(free, promised) if backed else None
        body = bytes(data[HEADER_BYTES : HEADER_BYTES + image.SIZE])
        text = _text(client_version, "client_version")
        return cls(version, nonce, Pubkey(instance), text, metadata, backing, Beacon.parse(beacon), body)

    @property
    def state(self) -> CoordinatorState | None:
        """The coordinator's state; None before the run's first configuration. Raises WireError for an invalid image."""
        return self.state_after(None, None)

    def state_after(self, earlier: CoordinatorAccount | None, state: CoordinatorState | None) -> CoordinatorState | None:
        """Return what `state` is, sooner if little has changed since an earlier account. state: of that one. Raises WireError."""
        if not any(self.image[:8]):
            return None

        return image.decode(self.image, earlier=None if earlier is None or state is None else (earlier.image, state))


def packed_text(text: str, size: int, what: str) -> bytes:
    """A text padded with zeros to `size` bytes. Raises ValueError if it is too long or contains NUL."""
    encoded = text.encode()
    if len(encoded) > size or b"\0" in encoded:
        message = f"expected a {what} of at most {size} bytes without NUL, got {len(encoded)} bytes: {text!r:.80}"
        raise ValueError(message)

    return encoded.ljust(size, b"\0")


def _text(content: bytes, what: str) -> str:
    try:
        return content.rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        message = f"expected UTF-8 as {what}, got {content!r:.80}"
        raise WireError(message) from error


def _expect_kind(data: bytes, magic: bytes, newest: int, *, sizes: dict[int, int], what: str) -> None:
    if len(data) not in sizes.values():
        expected = " or ".join(f"{size:,}" for size in sizes.values())
        message = f"expected a {what} of {expected} bytes, got {len(data):,}"
        raise WireError(message)
    if data[:8] != magic:
        message = f"this is no {what}: expected it to begin with {magic!r}, got {bytes(data[:8])!r}"
        raise WireError(message)

    version = int.from_bytes(data[8:12], "little")
    if sizes.get(version) != len(data):
        message = f"expected a {what} of version {newest}, got version {version} with {len(data):,} bytes; update the older side"
        raise WireError(message)
