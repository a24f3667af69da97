"""Requests to the data server and its answers. A client is given its own share or a refusal, whatever it asks for."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from psyche_backend_tcp.data_protocol import (
    DataMessage,
    RequestRefused,
    SamplesChunk,
    SamplesHead,
    SamplesRefusal,
    SamplesRequest,
    check_request,
    decode_data,
    decode_request,
    encode_data,
    encode_request,
)
from psyche_core.coordinator.assignment import shares
from psyche_core.errors import WireError
from psyche_core.types import BatchId
from tests.fuzz.mutation import change_cbor as mutate
from tests.fuzz.targets.coordinator_state import rich_state

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError, RequestRefused)
MAX_BYTES = 1024
MEMORY = (400, 131_072)

_STATE = rich_state()
_OWN = [interval for stored in _STATE.epoch.rounds for interval in shares(_STATE, stored).get(0, ())]


def seeds() -> list[bytes]:
    batches: list[Sequence[BatchId]] = [_OWN, _OWN[:1], [BatchId(0, 2**62)], [BatchId(n, n) for n in range(30)]]
    answers: list[DataMessage] = [SamplesHead(1, 2, 512), SamplesChunk(1, b"\1\2" * 64), SamplesRefusal(1, "NotYours", "why")]
    return [encode_request(SamplesRequest(7, tuple(wanted))) for wanted in batches] + list(map(encode_data, answers))


def TARGET(data: bytes) -> None:
    with contextlib.suppress(WireError):
        decode_data(data)

    request = decode_request(data)
    assert all(0 <= batch.first <= batch.last for batch in request.batches)
    check_request(_STATE, _STATE.epoch.clients[0].id, request.batches, sample_bytes=256, max_bytes=4096)
    assert sum(map(len, request.batches)) <= 16
    own = {sample for interval in _OWN for sample in range(interval.first, interval.last + 1)}
    assert all(batch.first in own and batch.last in own for batch in request.batches)
