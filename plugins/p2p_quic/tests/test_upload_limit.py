"""A member's limit of what it uploads: pieces of the model keep to it, results of rounds go first."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.blobs.upload_limit import UploadLimit
from psyche_p2p_quic.options import QuicOptions
from psyche_p2p_quic.transport import QuicTransport

RATE = 0.1
PIECE = bytes(200_000)
RESULT = b"result" * 50_000


@asynccontextmanager
async def pair(rate: float | None) -> AsyncIterator[tuple[QuicTransport, QuicTransport]]:
    """Two members that are connected; the first has the limit."""
    options = QuicOptions(max_upload_rate=rate)
    async with (
        QuicTransport("run", SecretKey.generate(), options=options) as server,
        QuicTransport("run", SecretKey.generate()) as client,
    ):
        members = {server.peer_id: server.address, client.peer_id: client.address}
        await server.set_peers(members)
        await client.set_peers(members)
        yield server, client


@pytest.mark.quic
async def test_pieces_keep_to_the_limit_and_a_result_overtakes_them() -> None:
    done: list[str] = []
    async with pair(RATE) as (server, client):
        piece = hashlib.sha256(PIECE).digest()
        await server.offer(piece, size=len(PIECE), read=lambda: PIECE, tag=1)
        result = await server.publish(RESULT, tag=1)

        async def fetch(name: str, blob_hash: bytes) -> None:
            got = await client.fetch(blob_hash, sources=[server.peer_id], max_bytes=10**6, timeout=60, tag=1)
            assert got == {"piece": PIECE, "result": RESULT}[name]
            done.append(name)

        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fetch, "piece", piece)
            await anyio.sleep(0.2)  # so that the piece is under way
            tasks.start_soon(fetch, "result", result)
        assert done == ["result", "piece"]
        assert anyio.current_time() - began > 0.9 * (len(PIECE) + len(RESULT)) / (RATE * 1e6), "the result counts, too"


async def test_without_a_limit_nobody_waits() -> None:
    limit = UploadLimit(None)
    with anyio.fail_after(0):  # even one wait would end it
        await limit.wait_for(10**12)
    assert limit.part_bytes(2**19) == 2**19
    assert limit.pieces_at_once(64) == 64


async def test_a_low_limit_sends_few_pieces_at_once_in_small_parts() -> None:
    limit = UploadLimit(50_000)
    assert limit.part_bytes(2**19) == 16 * 1024, "what a receiver reads at once"
    assert limit.pieces_at_once(64) == 6


async def test_results_beyond_the_limit_do_not_stop_pieces_for_good() -> None:
    limit = UploadLimit(1_000_000)
    for _ in range(100):
        limit.note_result(1_000_000)
    assert limit._bucket.wait(anyio.current_time()) < 12


@pytest.mark.parametrize("given", [0, 0.049, -1, float("nan"), float("inf"), "fast"])
def test_a_limit_that_nothing_gets_through_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="max_upload_rate"):
        QuicOptions.model_validate({"max_upload_rate": given})
