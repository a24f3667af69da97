"""What a client tells its transport of blobs: all members want a result, and few a manifest or a piece of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from party import Party, trainers
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine import events as ev
from psyche_core.p2p.message_log import LogLimits
from weights import PIECES
from weights import party as members


class Watched(MemoryTransport):
    """Notes what each fetch says."""

    def __init__(self, network: MemoryNetwork, peer_id: bytes, *, limits: LogLimits | None = None) -> None:
        super().__init__(network, peer_id, limits=limits)
        self.wanted_by_all: list[bool] = []

    async def fetch(self, blob_hash: bytes, **how: Any) -> bytes:
        self.wanted_by_all.append(how.get("wanted_by_all", False))
        return await super().fetch(blob_hash, **how)


async def test_all_members_want_a_result() -> None:
    party = Party(trainers(2), total_steps=2, rounds_per_epoch=2)
    party.transport = Watched
    await party.play()
    assert party.failures == {}
    for transport in party.transports.values():
        assert isinstance(transport, Watched)
        assert set(transport.wanted_by_all) == {True}


async def test_only_who_lacks_a_model_wants_its_manifest_and_its_pieces(tmp_path: Path) -> None:
    async with members(tmp_path, MemoryTransport, Watched) as (maker, taker):
        assert isinstance(taker.transport, Watched)
        assert isinstance(await taker.fetch(await maker.offer(), maker), ev.ModelFetched)
        assert taker.transport.wanted_by_all == [False] * (1 + PIECES)
