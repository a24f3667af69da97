"""The file format of a journal of applied rounds; `journal` reads and writes the file.

    file    MAGIC (15 bytes), VERSION (1 byte), then frames
    frame   kind (u8), length of the body (u64), check (8 bytes), body; little-endian
    check   first 8 bytes of SHA-256 over the check before it (MAGIC and VERSION for the first frame), kind, length (u64) and the
            SHA-256 of the body

The first frame is the header. Bodies of header, results and rounds are canonical CBOR lists in the order of the fields below; the
body of a payload is the payload itself. Each check also covers all frames before it, so valid frames are always the first frames
that were written, without gaps. A payload is in a file once, before the first record that contains its SHA-256. A body that is
too long raises WireError before it is read; a body that breaks these rules raises WireError before it is used.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, BinaryIO, Final

from psyche_core.errors import WireError
from psyche_core.types import MAX_CLIENTS, MAX_SAMPLES, BatchId
from psyche_core.wire.codec import decode, encode
from psyche_core.wire.messages import MAX_SHARE_INTERVALS

MAGIC: Final = b"psyche-journal\n"
VERSION: Final = 4
START: Final = MAGIC + bytes((VERSION,))
FRAME: Final = struct.Struct("<BQ8s")
CHECK_BYTES: Final = 8
MAX_RECORD_BYTES: Final = 64 * 1024
"""Maximum length of a CBOR body: larger than a share with 512 intervals or a round with 256 results needs."""

CHUNK_BYTES: Final = 1024 * 1024
NO_DIGEST: Final = bytes(32)
"""Placeholder for an unknown digest."""


class Kind(IntEnum):
    """Kind of content of a frame."""

    Header = 0
    Payload = 1
    Result = 2
    Applied = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The run of a journal, and the masters from which it continues (its base).

    instance: of the run (32 bytes). generation: how often that run had gone back. base_step: the last step in the base masters.
    base_digest: full digest (32 bytes) of the base masters. base_history: digest of the run's decisions up to base_step (32
    bytes), NO_DIGEST if unknown.
    """

    instance: bytes
    generation: int
    base_step: int
    base_digest: bytes
    base_history: bytes = NO_DIGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """A verified result.

    seed: of the round (u64), 0 if unknown. commitment: 32 bytes. payload_hash: SHA-256 of the payload. signature: the trainer's
    signature of the commitment, 64 bytes. trainer: the trainer's p2p key, 32 bytes. signer: the signer of its identity, 32 bytes.
    roots: of its deltas, 64 bytes, where the run checks shares, else nothing; the commitment covers them.
    """

    epoch: int
    height: int
    step: int
    seed: int
    slot: int
    share: tuple[BatchId, ...]
    commitment: bytes
    payload_hash: bytes
    signature: bytes
    trainer: bytes
    signer: bytes
    roots: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRound:
    """A round whose accepted results were applied to the masters.

    learning_rate: the exact float64 value that was used. results: commitment and SHA-256 of the payload (32 bytes each) of every
    accepted result, in the order of the round. statements: digest of the round's statements (32 bytes), NO_DIGEST if unknown.
    history: digest of the run's decisions up to this step (32 bytes), NO_DIGEST if unknown.
    """

    epoch: int
    height: int
    step: int
    learning_rate: float
    results: tuple[tuple[bytes, bytes], ...]
    statements: bytes = NO_DIGEST
    history: bytes = NO_DIGEST

    @property
    def payload_hashes(self) -> tuple[bytes, ...]:
        """SHA-256 of each accepted payload."""
        return tuple(payload_hash for _, payload_hash in self.results)


Record = Header | StoredResult | AppliedRound


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that was read and whose check is right.

    at: position of its body in the file. length: of the body in bytes. digest: SHA-256 of the body. check: of this frame, needed
    for the next one. record: the decoded body, None for a payload.
    """

    kind: Kind
    at: int
    length: int
    digest: bytes
    check: bytes
    record: Record | None


def kind_of(record: Record) -> Kind:
    """Return the kind of frame for a record."""
    match record:
        case Header():
            return Kind.Header
        case StoredResult():
            return Kind.Result
        case AppliedRound():
            return Kind.Applied


def encode_record(record: Record) -> bytes:
    """Return the body of a record. Raises WireError for a record that `decode_record` would reject."""
    match record:
        case Header():
            value: list[Any] = [record.instance, record.generation, record.base_step, record.base_digest, record.base_history]
        case StoredResult():
            share = [[batch.first, batch.last] for batch in record.share]
            value = [record.epoch, record.height, record.step, record.seed, record.slot, share, record.commitment]
            value += [record.payload_hash, record.signature, record.trainer, record.signer]
            value += [record.roots] if record.roots else []
        case AppliedRound():
            value = [
                record.epoch,
                record.height,
                record.step,
                float(record.learning_rate),
                [list(each) for each in record.results],
                record.statements,
                record.history,
            ]
    try:
        body = encode(value)
    except (TypeError, ValueError) as error:
        message = f"a record of a journal holds what cannot be written: {error}"
        raise WireError(message) from error

    decode_record(kind_of(record), body)
    return body


def decode_record(kind: Kind, body: bytes) -> Record:
    """Read the body of a header, result or round. Raises only WireError."""
    value = decode(body, max_bytes=MAX_RECORD_BYTES, max_depth=4, max_items=4 * MAX_SHARE_INTERVALS)
    match kind, value:
        case Kind.Header, [instance, generation, base_step, base_digest, base_history]:
            return Header(
                instance=_bytes(instance, 32),
                generation=_number(generation, 2**32),
                base_step=_number(base_step, 2**32),
                base_digest=_bytes(base_digest, 32),
                base_history=_bytes(base_history, 32),
            )
        case Kind.Result, [
            epoch,
            height,
            step,
            seed,
            slot,
            share,
            commitment,
            payload_hash,
            signature,
            trainer,
            signer,
            *roots,
        ] if len(roots) <= 1:
            return StoredResult(
                epoch=_number(epoch, 2**32),
                height=_number(height, 2**32),
                step=_number(step, 2**32),
                seed=_number(seed, 2**64),
                slot=_number(slot, MAX_CLIENTS),
                share=_share(share),
                commitment=_bytes(commitment, 32),
                payload_hash=_bytes(payload_hash, 32),
                signature=_bytes(signature, 64),
                trainer=_bytes(trainer, 32),
                signer=_bytes(signer, 32),
                roots=_bytes(roots[0], 64) if roots else b"",
            )
        case Kind.Applied, [epoch, height, step, float(learning_rate), [*results], statements, history]:
            if len(results) > MAX_CLIENTS or not learning_rate >= 0:
                message = f"a round in a journal has {len(results)} results and the learning rate {learning_rate}"
                raise WireError(message)

            return AppliedRound(
                epoch=_number(epoch, 2**32),
                height=_number(height, 2**32),
                step=_number(step, 2**32),
                learning_rate=learning_rate,
                results=tuple(_pair_of_hashes(each) for each in results),
                statements=_bytes(statements, 32),
                history=_bytes(history, 32),
            )
        case _:
            message = f"a journal's {kind.name} is a list of its fields, got another shape"
            raise WireError(message)


def frame_head(kind: Kind, length: int, digest: bytes, *, before: bytes) -> bytes:
    """Return the head of a frame. digest: SHA-256 of the body. before: check of the previous frame, or START for the first."""
    summed = before + bytes((kind,)) + length.to_bytes(8, "little") + digest
    return FRAME.pack(kind, length, hashlib.sha256(summed).digest()[:CHECK_BYTES])


def read_frame(file: BinaryIO, *, before: bytes, left: int) -> Frame | None:
    """Read the frame at the file's current position. Returns None at the end of the file.

    before: see `frame_head`. left: number of bytes from here to the end of the file. A payload is read to check it but not kept
    in memory. Raises WireError for a frame that is incomplete or damaged, OSError.
    """
    if not left:
        return None

    head = file.read(FRAME.size)
    if len(head) < FRAME.size:
        message = "the head of a frame is cut"
        raise WireError(message)

    number, length, check = FRAME.unpack(head)
    if number not in Kind.__members__.values() or length > left - FRAME.size:
        message = f"a frame of kind {number} and {length} bytes is cut or damaged"
        raise WireError(message)

    kind = Kind(number)
    if kind != Kind.Payload and length > MAX_RECORD_BYTES:
        message = f"a record of {length} bytes is over the limit of {MAX_RECORD_BYTES}"
        raise WireError(message)

    at = file.tell()
    summed, body = hashlib.sha256(), b""
    missing = length
    while missing:
        part = file.read(min(missing, CHUNK_BYTES))
        if not part:
            message = "a frame is cut"
            raise WireError(message)

        missing -= len(part)
        summed.update(part)
        if kind != Kind.Payload:
            body += part
    digest = summed.digest()
    if head != frame_head(kind, length, digest, before=before):
        message = "the check of a frame is wrong"
        raise WireError(message)

    record = None if kind == Kind.Payload else decode_record(kind, body)
    return Frame(kind, at, length, digest, check, record)


def _number(value: Any, limit: int) -> int:
    if type(value) is not int or not 0 <= value < limit:
        message = f"a number in a journal must be an integer from 0 to {limit - 1}, got {value!r:.40}"
        raise WireError(message)

    return value


def _bytes(value: Any, length: int) -> bytes:
    if type(value) is not bytes or len(value) != length:
        message = f"a record of a journal needs {length} bytes, got {value!r:.40}"
        raise WireError(message)

    return value


def _pair_of_hashes(value: Any) -> tuple[bytes, bytes]:
    match value:
        case [commitment, payload_hash]:
            return _bytes(commitment, 32), _bytes(payload_hash, 32)
        case _:
            message = f"an accepted result in a journal is a commitment and a hash, got {value!r:.40}"
            raise WireError(message)


def _share(value: Any) -> tuple[BatchId, ...]:
    if type(value) is not list or len(value) > MAX_SHARE_INTERVALS:
        message = f"a share in a journal is a list of at most {MAX_SHARE_INTERVALS} intervals, got {value!r:.40}"
        raise WireError(message)

    found: list[BatchId] = []
    for each in value:
        match each:
            case [first, last] if _number(first, MAX_SAMPLES) <= _number(last, MAX_SAMPLES):
                found.append(BatchId(first, last))
            case _:
                message = f"an interval in a journal is a first and a last sample, got {each!r:.40}"
                raise WireError(message)
    return tuple(found)
