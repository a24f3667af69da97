"""Messages between a logged-in client and the data server, and the check of who may request which samples.

    client -> server                       server -> client
    [3, id, [[first, last], ...]]          [1, id, count, token size, labels, position ids, bytes of sequence lengths or null]
    [4, id]   cancel                       0x00, id as 8 bytes big-endian, raw bytes of the samples (not CBOR)
                                           [3, id, code, sentence]   refused, or the data cannot be read
                                           [4, code, sentence]       bye, the connection is closed; the same in every version
                                           [5]                       still working on requests, nothing to send yet

Many requests may be in flight; their numbers increase, and chunks of several answers may be interleaved. The hello's facts
contain the version, the form of the samples, and the limits of a request. A member of the epoch may read only the intervals of
its own shares in the rounds that the coordinator stores, and of challenged shares that it recomputes. Everything else is refused
with a code and a message. Only canonical frames are accepted: decode, then encode, gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psyche_backend_tcp.limits import CLIENT_FRAME
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import WireError
from psyche_core.types import MAX_SAMPLES, BatchId, ClientState, NodeIdentity
from psyche_core.wire.codec import decode, encode

DATA_VERSION = 2
"""Version of these messages. Version 1 had one request at a time, and its requests began with 1."""

MAX_INTERVALS = 1024
"""Most intervals of one request."""

CONTROL_BYTES = 4 * 1024
"""Most bytes of a server's message without samples."""

NOT_IN_EPOCH = "NotInEpoch"
NOT_YOURS = "NotYours"
"""The refusal of a client that is not a healthy member now; this is temporary."""

_CHUNK = b"\x00"  # no CBOR array begins with it
_CHUNK_HEAD = 9


class RequestRefused(Exception):
    """Why a request for samples is refused. code: for programs; message: one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class SamplesRequest:
    """A request for samples. number: identifies the answer, larger than all before. batches: the samples wanted, in order."""

    number: int
    batches: tuple[BatchId, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancels a request whose answer is no longer wanted; it may have been sent already."""

    number: int


ClientMessage = SamplesRequest | Cancel


@dataclass(frozen=True, slots=True)
class SamplesHead:
    """The head of an answer, after which the samples follow, column by column (`body`).

    count: sequences. token_size: bytes per token. labels, position_ids: whether they are included. lengths_bytes: of the column
    of sequence lengths, None when there is none.
    """

    number: int
    count: int
    token_size: int
    labels: bool = False
    position_ids: bool = False
    lengths_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SamplesChunk:
    """A part of the raw samples."""

    number: int
    chunk: bytes | memoryview


@dataclass(frozen=True, slots=True)
class SamplesRefusal:
    """The refusal of a request."""

    number: int
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class AtWork:
    """A keepalive while answers take long."""


@dataclass(frozen=True, slots=True)
class DataBye:
    """The last frame before the server closes the connection."""

    code: str
    sentence: str


DataMessage = SamplesHead | SamplesChunk | SamplesRefusal | AtWork | DataBye


def encode_client(message: ClientMessage) -> bytes:
    """Return a client's message as a frame."""
    match message:
        case SamplesRequest(number, batches):
            return encode([3, number, [[batch.first, batch.last] for batch in batches]])
        case Cancel(number):
            return encode([4, number])


def decode_client(payload: bytes) -> ClientMessage:
    """Read a client's frame. Raises WireError, and RequestRefused (VersionMismatch) for a client of version 1."""
    match decode(payload, max_bytes=CLIENT_FRAME):
        case [kind, number, list() as plain] if _are(int, kind) and kind == 3 and _are_numbers(number):
            if 0 < len(plain) <= MAX_INTERVALS:
                return SamplesRequest(number, tuple(map(_batch, plain)))

            message = f"a request is for 1 to {MAX_INTERVALS} intervals, got {len(plain)}"
            raise WireError(message)
        case [kind, number] if _are(int, kind) and kind == 4 and _are_numbers(number):
            return Cancel(number)
        case [kind, _, list()] if _are(int, kind) and kind == 1:
            message = f"the client speaks version 1 of the data protocol, we speak {DATA_VERSION}; install matching releases"
            raise RequestRefused("VersionMismatch", message)
        case _:
            message = "not a request for samples"
            raise WireError(message)


def encode_data(message: DataMessage) -> bytes:
    """Return a server's message as a frame."""
    match message:
        case SamplesChunk(number, chunk):
            return b"".join((_CHUNK, number.to_bytes(8, "big"), chunk))
        case SamplesHead(number, count, token_size, labels, position_ids, lengths_bytes):
            return encode([1, number, count, token_size, labels, position_ids, lengths_bytes])
        case SamplesRefusal(number, code, sentence):
            return encode([3, number, code, sentence])
        case DataBye(code, sentence):
            return encode([4, code, sentence])
        case AtWork():
            return encode([5])


def decode_data(payload: bytes) -> DataMessage:
    """Read a server's frame; a chunk is a view of it. Raises WireError."""
    if payload.startswith(_CHUNK):
        if len(payload) <= _CHUNK_HEAD:
            message = f"a chunk of samples has more than {_CHUNK_HEAD} bytes, got {len(payload)}"
            raise WireError(message)

        return SamplesChunk(int.from_bytes(payload[1:_CHUNK_HEAD], "big"), memoryview(payload)[_CHUNK_HEAD:])

    match decode(payload, max_bytes=CONTROL_BYTES):
        case [kind, *rest] if _are(int, kind):
            found = _control(kind, rest)
        case _:
            found = None

    if found is None:
        message = "not a message of a data server"
        raise WireError(message)

    return found


def _control(kind: int, rest: list[Any]) -> DataMessage | None:
    match kind, rest:
        case 1, [number, count, token_size, bool() as labels, bool() as position_ids, lengths_bytes] if (
            _are_numbers(number, count, token_size)
            and token_size in (2, 4)
            and (lengths_bytes is None or _are_numbers(lengths_bytes))
        ):
            return SamplesHead(number, count, token_size, labels, position_ids, lengths_bytes)
        case 3, [number, str() as code, str() as sentence] if _are_numbers(number):
            return SamplesRefusal(number, code, sentence)
        case 4, [str() as code, str() as sentence]:
            return DataBye(code, sentence)
        case 5, []:
            return AtWork()
        case _:
            return None


def _batch(plain: Any) -> BatchId:
    match plain:
        case [first, last] if _are_numbers(first, last) and first <= last < MAX_SAMPLES:
            return BatchId(first, last)
        case _:
            message = "a batch is two numbers, first <= last"
            raise WireError(message)


def _are(kind: type, *values: Any) -> bool:
    """Return whether all values are of exactly this type: in Python True is an int, in the protocol it is not."""
    return all(type(value) is kind for value in values)


def _are_numbers(*values: Any) -> bool:
    return _are(int, *values) and all(0 <= value < 2**64 for value in values)


def check_request(state: CoordinatorState, identity: NodeIdentity, batches: Sequence[BatchId], *, at_most: int) -> None:
    """Raise RequestRefused unless `identity` may read `batches` now. at_most: samples of one request."""
    slot = state.slot_of(identity)
    if slot is None or state.epoch.clients[slot].state is not ClientState.Healthy:
        raise RequestRefused(NOT_IN_EPOCH, "only healthy members of the current epoch are given samples")

    total = sum(len(batch) for batch in batches)
    if total > at_most:
        raise RequestRefused("TooLarge", f"one request is for at most {at_most} samples, got {total}")

    own = [interval for stored in state.epoch.rounds for interval in shares(state, stored).get(slot, ())]
    for challenge in state.epoch.challenges:
        if slot == challenge.verifier or slot in challenge.judges:
            own += challenge.share
    for batch in batches:
        if not any(interval.first <= batch.first and batch.last <= interval.last for interval in own):
            raise RequestRefused(NOT_YOURS, f"{batch} is not part of your share of a round the coordinator knows")
