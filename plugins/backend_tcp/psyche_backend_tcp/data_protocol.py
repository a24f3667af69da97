"""Messages between a logged-in client and the data server, and who may ask for which samples.

    client -> server                       server -> client
    [1, id, [[first, last], ...]]          [1, id, count, bytes]     the samples follow in chunks of raw bytes
                                           [2, id, chunk]            until that many bytes have come
                                           [3, id, code, sentence]   refused, or the data cannot be read
                                           [4, code, sentence]       bye, the connection is closed

Decided: a member of the epoch may read the intervals of its own shares in the rounds the coordinator stores, and nothing else.
Token size and sequence length are facts of the server's hello. Refuses everything else with a code and a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psyche_backend_tcp.limits import CLIENT_FRAME, SERVER_FRAME
from psyche_core.coordinator.assignment import shares
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import WireError
from psyche_core.types import MAX_SAMPLES, BatchId, ClientState, NodeIdentity
from psyche_core.wire.codec import decode, encode

CHUNK_BYTES = 1024 * 1024
MAX_INTERVALS = 1024


class RequestRefused(Exception):
    """Why a request for samples is not answered with samples. code: for programs; message: one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class SamplesRequest:
    """number: comes back with the answer. batches: what is wanted, in order."""

    number: int
    batches: tuple[BatchId, ...]


@dataclass(frozen=True, slots=True)
class SamplesHead:
    """The samples of a request follow. count: sequences; size: bytes."""

    number: int
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class SamplesChunk:
    """A stretch of the raw tokens."""

    number: int
    chunk: bytes


@dataclass(frozen=True, slots=True)
class SamplesRefusal:
    """The request is refused."""

    number: int
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class DataBye:
    """The last frame before the server closes the connection."""

    code: str
    sentence: str


DataMessage = SamplesHead | SamplesChunk | SamplesRefusal | DataBye


def encode_request(request: SamplesRequest) -> bytes:
    """The request as a frame."""
    return encode([1, request.number, [[batch.first, batch.last] for batch in request.batches]])


def decode_request(payload: bytes) -> SamplesRequest:
    """A client's frame. Raises WireError."""
    match decode(payload, max_bytes=CLIENT_FRAME):
        case [1, int() as number, list() as plain] if 0 <= number < 2**64 and 0 < len(plain) <= MAX_INTERVALS:
            return SamplesRequest(number, tuple(map(_batch, plain)))
        case _:
            message = "not a request for samples"
            raise WireError(message)


def _batch(plain: Any) -> BatchId:
    match plain:
        case [int() as first, int() as last] if 0 <= first <= last < MAX_SAMPLES:
            return BatchId(first, last)
        case _:
            message = "a batch is two numbers, first <= last"
            raise WireError(message)


def encode_data(message: DataMessage) -> bytes:
    """A server's message as a frame."""
    match message:
        case SamplesHead(number, count, size):
            return encode([1, number, count, size])
        case SamplesChunk(number, chunk):
            return encode([2, number, chunk])
        case SamplesRefusal(number, code, sentence):
            return encode([3, number, code, sentence])
        case DataBye(code, sentence):
            return encode([4, code, sentence])


def decode_data(payload: bytes) -> DataMessage:
    """A server's frame. Raises WireError."""
    match decode(payload, max_bytes=SERVER_FRAME):
        case [1, int() as number, int() as count, int() as size] if count >= 0 and size >= 0:
            return SamplesHead(number, count, size)
        case [2, int() as number, bytes() as chunk]:
            return SamplesChunk(number, chunk)
        case [3, int() as number, str() as code, str() as sentence]:
            return SamplesRefusal(number, code, sentence)
        case [4, str() as code, str() as sentence]:
            return DataBye(code, sentence)
        case _:
            message = "not a message of a data server"
            raise WireError(message)


def check_request(
    state: CoordinatorState, identity: NodeIdentity, batches: Sequence[BatchId], *, sample_bytes: int, max_bytes: int
) -> None:
    """Raise RequestRefused unless `identity` may read `batches` now.

    sample_bytes: of one sequence; max_bytes: of one answer, where a single sequence is always small enough.
    """
    slot = state.slot_of(identity)
    if slot is None or state.epoch.clients[slot].state is not ClientState.Healthy:
        raise RequestRefused("NotInEpoch", "only healthy members of the current epoch are given samples")

    total = sum(len(batch) for batch in batches)
    if total > 1 and total * sample_bytes > max_bytes:
        at_most = max(1, max_bytes // sample_bytes)
        raise RequestRefused("TooLarge", f"one request is for at most {at_most} samples, got {total}")

    own = [interval for stored in state.epoch.rounds for interval in shares(state, stored).get(slot, ())]
    for batch in batches:
        if not any(interval.first <= batch.first and batch.last <= interval.last for interval in own):
            raise RequestRefused("NotYours", f"{batch} is not part of your share of a round the coordinator knows")
