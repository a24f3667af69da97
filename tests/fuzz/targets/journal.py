"""A journal's file: what is read of it can be gone on with, whatever its bytes; a file without a header is refused."""

from __future__ import annotations

import hashlib
from random import Random

from psyche_core.errors import WireError
from psyche_core.training.checkpoints.journal.file import JournalFile, named
from psyche_core.training.checkpoints.journal_records import (
    START,
    AppliedRound,
    Header,
    Kind,
    StoredResult,
    encode_record,
    frame_head,
)
from psyche_core.types import BatchId
from tests.fuzz.files import scratch_folder
from tests.fuzz.mutation import change_bytes, change_cbor

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 6000
MEMORY = (160, 65_536)

_PATH = scratch_folder() / "journal.bin"
_HASH = hashlib.sha256(b"payload").digest()

_Body = tuple[int, bytes]
"""Kind and body of a frame."""


def _bodies() -> list[_Body]:
    result = StoredResult(
        epoch=1,
        height=2,
        step=1,
        seed=2**64 - 1,
        slot=3,
        share=(BatchId(0, 3), BatchId(9, 9)),
        commitment=b"c" * 32,
        payload_hash=_HASH,
        signature=b"s" * 64,
        trainer=b"t" * 32,
        signer=b"i" * 32,
    )
    applied = AppliedRound(epoch=1, height=2, step=1, learning_rate=0.1, results=((b"c" * 32, _HASH),))
    empty = AppliedRound(epoch=1, height=3, step=2, learning_rate=0.0, results=())
    return [
        (Kind.Header, encode_record(Header(instance=b"r" * 32, generation=1, base_step=0, base_digest=b"d" * 32))),
        (Kind.Payload, b"payload"),
        (Kind.Result, encode_record(result)),
        (Kind.Applied, encode_record(applied)),
        (Kind.Applied, encode_record(empty)),
    ]


def _file(bodies: list[_Body]) -> bytes:
    """A file with right checks."""
    content, check = START, START
    for kind, body in bodies:
        head = frame_head(Kind(kind), len(body), hashlib.sha256(body).digest(), before=check)
        content, check = content + head + body, head[-8:]
    return content


def seeds() -> list[bytes]:
    bodies = _bodies()
    return [_file(bodies), _file(bodies[:3]), _file(bodies[:1])]


def mutate(data: bytes, random: Random) -> bytes:
    """Other bodies and another order of the frames, with right checks; now and then a change of bytes behind that."""
    bodies = _bodies()
    for _ in range(random.randint(0, 3)):
        at = random.randrange(len(bodies))
        kind, body = bodies[at]
        match random.randrange(4):
            case 0:
                bodies.insert(random.randrange(len(bodies) + 1), bodies[at])
            case 1:
                bodies[at] = random.choice(list(Kind)), body
            case _:
                bodies[at] = kind, change_cbor(body, random)
    content = _file(bodies)
    return change_bytes(content, random, others=(data,)) if random.random() < 0.2 else content


def TARGET(data: bytes) -> None:
    _PATH.write_bytes(data)
    file = JournalFile.load(_PATH)
    try:
        assert file.size + file.lost == len(data)
        assert [each.step for each in file.rounds] == list(range(file.header.base_step + 1, file.last_step + 1))
        assert all(file.payload(each) is not None for applied in file.rounds for each in applied.payload_hashes)
        assert [record for record in file.records() if isinstance(record, AppliedRound)] == file.rounds
        assert all(file.has_payload(each) for record in file.records() for each in named(record))
        file.cut()
    finally:
        file.close()
    assert _PATH.read_bytes() == data[: len(data) - file.lost]
