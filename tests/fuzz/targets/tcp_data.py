"""Requests to the data server and its answers. A client is given its own share or a refusal, whatever it asks for.

Of the server's side: a client believes nothing beyond what it asked for, and what it believes are whole samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from psyche_backend_tcp.data.body import body_bytes, pack, unpack
from psyche_backend_tcp.data.client_state import DataClientState
from psyche_backend_tcp.data.protocol import (
    AtWork,
    Cancel,
    DataBye,
    DataMessage,
    RequestRefused,
    SamplesChunk,
    SamplesHead,
    SamplesRefusal,
    SamplesRequest,
    check_request,
    decode_client,
    decode_data,
    encode_client,
    encode_data,
)
from psyche_core.coordinator.round.assignment import shares
from psyche_core.errors import WireError
from psyche_core.interfaces.data import Samples
from psyche_core.types import BatchId
from psyche_core.wire.codec import encode
from tests.fuzz.mutation import change_cbor as mutate
from tests.fuzz.targets.coordinator_state import rich_state

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError, RequestRefused)
MAX_BYTES = 1024
MEMORY = (400, 131_072)

_STATE = rich_state()
_OWN = [interval for stored in _STATE.epoch.rounds for interval in shares(_STATE, stored).get(0, ())]
_LENGTH = 8


def seeds() -> list[bytes]:
    batches: list[Sequence[BatchId]] = [_OWN, _OWN[:1], [BatchId(0, 2**62)], [BatchId(n, n) for n in range(30)]]
    answers: list[DataMessage] = [
        SamplesHead(0, 2, 2),
        SamplesHead(0, 2, 4, labels=True, position_ids=True, lengths_bytes=24),
        SamplesChunk(0, b"\1\2" * 64),
        SamplesRefusal(0, "NotYours", "why"),
        DataBye("Idle", "why"),
        AtWork(),
    ]
    rich = Samples(bytes(32), 2, _LENGTH, 2, bytes(64), bytes(64), ((8,), (3, 4)))
    return [
        *(encode_client(SamplesRequest(7, tuple(wanted))) for wanted in batches),
        encode_client(Cancel(7)),
        encode([1, 7, [[0, 5]]]),
        *map(encode_data, answers),
        pack(0, rich)[1],
    ]


def TARGET(data: bytes) -> None:
    with contextlib.suppress(WireError):
        message = decode_data(data)
        assert encode_data(message) == data
        _hear(data, message)

    with contextlib.suppress(WireError):  # as the body of a rich answer
        head = SamplesHead(0, 2, 2, labels=True, position_ids=True, lengths_bytes=max(0, len(data) - 160))
        if len(data) == body_bytes(head, sequence_length=_LENGTH, count=2):
            assert pack(0, unpack(head, data, sequence_length=_LENGTH)) == (head, data)

    request = decode_client(data)
    assert encode_client(request) == data
    if isinstance(request, Cancel):
        return

    assert all(0 <= batch.first <= batch.last for batch in request.batches)
    check_request(_STATE, _STATE.epoch.clients[0].id, request.batches, at_most=16)
    assert sum(map(len, request.batches)) <= 16
    own = {sample for interval in _OWN for sample in range(interval.first, interval.last + 1)}
    assert all(batch.first in own and batch.last in own for batch in request.batches)


def _hear(data: bytes, message: DataMessage) -> None:
    """A client that asked for two samples hears the frame, after a head where it is a chunk."""
    dialogue = DataClientState(sequence_length=_LENGTH)
    arrival, _ = dialogue.ask((BatchId(0, 1),))
    if isinstance(message, SamplesChunk):
        dialogue.receive(encode_data(SamplesHead(0, 2, 2)))
    with contextlib.suppress(RequestRefused):
        dialogue.receive(data)
    kept = sum(map(len, arrival.chunks))
    assert kept <= 2 * _LENGTH * 2
    assert arrival.complete == (kept == 2 * _LENGTH * 2)
