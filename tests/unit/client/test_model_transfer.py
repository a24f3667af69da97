"""A model goes from one member to the other over a memory network, bit for bit or not at all."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from blockbuster import blockbuster_ctx

from psyche_core.builtin.memory_transport import MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.model_sync import exchange, multi_source
from psyche_core.errors import BlobNotFound, TransportError
from psyche_core.p2p import manifest
from psyche_core.p2p.manifest import PIECE_BYTES
from psyche_core.telemetry import events as telemetry
from psyche_core.testing.toy_model import toy_samples
from psyche_core.types import BatchId
from psyche_core.wire import codec
from worker_parts import SHAPES, STEP, TAG, Member, files, members

PIECES = len(SHAPES) + 1


# ------------------------------------------------------------------------------------------------ handing over
async def test_a_model_goes_over_bit_for_bit_without_blocking_the_loop() -> None:
    async with members("maker", "taker") as (maker, taker):
        with blockbuster_ctx("psyche_core"):
            taken = await maker.snapshot()
            fetched = await taker.fetch(taken, maker)

        assert fetched == ev.ModelFetched(STEP, maker.trainer.full_digest())
        assert taker.trainer.full_digest() == maker.trainer.full_digest()
        total = sum(4 * tensor.numel() for tensor in maker.masters.values())
        assert taker.progress()[0] == telemetry.ModelSync(STEP, 0, PIECES, 0)
        assert taker.progress()[-1] == telemetry.ModelSync(STEP, PIECES, PIECES, total)


async def test_equal_members_take_equal_snapshots() -> None:
    async with members("one", "two", "three") as (one, two, three):
        assert await two.snapshot() == await three.snapshot() != await one.snapshot()


async def test_only_pieces_that_differ_are_fetched() -> None:
    async with members("maker", "taker") as (maker, taker):
        await taker.fetch(await maker.snapshot(), maker)
        maker.masters["big.weight"][2, -1] += 1.0  # in the last piece
        maker.masters["odd.single"][0] += 1.0
        before = taker.transport.stats.bytes_received
        taken = await maker.snapshot()
        taker.told.clear()
        fetched = await taker.fetch(taken, maker)

        assert fetched == ev.ModelFetched(STEP, maker.trainer.full_digest())
        last = 4 * 3 * (PIECE_BYTES // 8 + 5) - PIECE_BYTES
        assert [(event.pieces_done, event.pieces_total) for event in taker.progress()] == [(0, 2), (1, 2), (2, 2)]
        assert taker.transport.stats.bytes_received - before == last + 4 + taken.manifest_bytes


async def test_nothing_is_fetched_where_nothing_differs() -> None:
    async with members("maker", "taker", "twin") as (_, taker, twin):
        taken = await twin.snapshot()
        before = taker.transport.stats.bytes_received
        assert await taker.fetch(taken, twin) == ev.ModelFetched(STEP, twin.trainer.full_digest())
        assert taker.transport.stats.bytes_received - before == taken.manifest_bytes


async def test_equal_pieces_are_fetched_once() -> None:
    async with members("maker", "taker") as (maker, taker):
        for name in ("layers.0.norm.weight", "layers.1.norm.weight"):
            maker.masters[name].fill_(0.5)
        fetched = await taker.fetch(await maker.snapshot(), maker)
        assert fetched == ev.ModelFetched(STEP, maker.trainer.full_digest())
        assert taker.progress()[-1].pieces_total == PIECES - 1


async def test_what_was_read_and_received_before_stays_valid() -> None:
    """Samples read ahead and payloads of the rounds being played are used after a model was fetched."""
    share = (BatchId(3, 4),)
    async with members("maker", "taker") as (maker, taker):
        await taker.worker.prefetch(share)
        payload = maker.trainer.train(1, toy_samples(1)).payload
        payload_hash = hashlib.sha256(payload).digest()
        assert await taker.worker.receive(payload_hash, payload, tag=1) == ev.PayloadChecked(payload_hash, True, 1)
        assert isinstance(await taker.fetch(await maker.snapshot(), maker), ev.ModelFetched)
        for member in (maker, taker):
            await member.worker.receive(payload_hash, payload, tag=1)
            assert isinstance(await member.worker.do(act.Apply(1, 1, (payload_hash,), own_accepted=False)), ev.Applied)
        assert taker.trainer.full_digest() == maker.trainer.full_digest()
        assert isinstance(await taker.worker.do(act.Train(2, 2, share, 2)), ev.Trained)


# ------------------------------------------------------------------------------------------------ sources that fail
class Corrupting(MemoryTransport):
    """Serves blobs with their last bit flipped."""

    async def blob(self, blob_hash: bytes) -> bytes | None:
        blob = await super().blob(blob_hash)
        return None if blob is None else blob[:-1] + bytes((blob[-1] ^ 1,))


async def test_a_corrupted_source_is_refused_and_nothing_changes() -> None:
    async with members("maker", "taker", transports={"maker": Corrupting}) as (maker, taker):
        before = taker.trainer.full_digest()
        answer = await taker.fetch(await maker.snapshot(), maker)

        assert isinstance(answer, ev.ModelFetchFailed)
        assert "did not match its hash" in answer.reason
        assert taker.trainer.full_digest() == before


async def test_other_sources_stand_in_for_a_corrupted_one() -> None:
    async with members("maker", "taker", "liar", transports={"liar": Corrupting}) as (maker, taker, liar):
        taken = await maker.snapshot()
        await liar.fetch(taken, maker)
        assert await liar.snapshot() == taken
        assert await taker.fetch(taken, liar, maker) == ev.ModelFetched(STEP, maker.trainer.full_digest())


class Vanishing(MemoryTransport):
    """Cuts itself off from everybody after serving some blobs."""

    serves = 5

    async def blob(self, blob_hash: bytes) -> bytes | None:
        if self.serves == 0:
            for peer in self.members:
                self._network.disconnect(self.peer_id, peer)
            return None

        self.serves -= 1
        return await super().blob(blob_hash)


async def test_when_a_source_vanishes_half_way_the_rest_comes_from_another() -> None:
    async with members("maker", "taker", "weak", transports={"weak": Vanishing}) as (maker, taker, weak):
        taken = await maker.snapshot()
        await weak.fetch(taken, maker)
        assert await weak.snapshot() == taken
        assert isinstance(weak.transport, Vanishing)
        fetched = await taker.fetch(taken, weak)

        assert fetched == ev.ModelFetched(STEP, maker.trainer.full_digest())
        assert weak.transport.serves == 0


class Counting(MemoryTransport):
    """Refuses to fetch after some pieces, until told to go on."""

    allowed = 10_000
    running = most_running = 0

    async def fetch(self, blob_hash: bytes, **how: Any) -> bytes:
        if self.allowed == 0:
            message = "nobody has it"
            raise BlobNotFound(message)

        self.allowed -= 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await anyio.sleep(0)
            return await super().fetch(blob_hash, **how)
        finally:
            self.running -= 1


async def test_a_second_attempt_begins_where_the_first_ended() -> None:
    async with members("maker", "taker", transports={"taker": Counting}) as (maker, taker):
        assert isinstance(taker.transport, Counting)
        taken = await maker.snapshot()
        before = taker.trainer.full_digest()
        taker.transport.allowed = 1 + 9  # the manifest and nine pieces, of which some may be on their way when the next fails
        failed = await taker.fetch(taken, maker)
        assert failed == ev.ModelFetchFailed(STEP, "the model after step 4 could not be had from others: nobody has it")
        assert taker.trainer.full_digest() == before

        done = taker.progress()[-1].pieces_done
        assert 10 - exchange.PIECES_AT_ONCE < done < 10
        taker.told.clear()
        taker.transport.allowed = 1 + PIECES - done
        assert await taker.fetch(taken, maker) == ev.ModelFetched(STEP, maker.trainer.full_digest())
        assert taker.progress()[0].pieces_done == done
        assert taker.transport.allowed == 0


async def test_a_few_pieces_at_once_are_fetched_and_sources_take_turns() -> None:
    async with members("maker", "taker", "twin", transports={"taker": Counting}) as (maker, taker, twin):
        assert isinstance(taker.transport, Counting)
        taken = await maker.snapshot()
        await twin.fetch(taken, maker)
        assert await twin.snapshot() == taken
        before = [member.transport.stats.bytes_sent for member in (maker, twin)]
        assert isinstance(await taker.fetch(taken, maker, twin), ev.ModelFetched)
        assert taker.transport.most_running == min(exchange.PIECES_AT_ONCE, 2 * multi_source.MOST_PER_SOURCE)
        sent = [member.transport.stats.bytes_sent - start for member, start in zip((maker, twin), before, strict=True)]
        assert min(sent) > 0


async def test_masters_replaced_half_way_are_not_worked_with_until_they_are_whole_again() -> None:
    """The optimizer fails in the middle, twice: nothing is trained, applied, saved or offered at such masters."""
    async with members("maker", "taker") as (maker, taker):
        taken = await maker.snapshot()
        load, failures = taker.trainer._optimizer.load_parameters, [OSError("the disk is broken")] * 2

        def fails_half_way(parameters: Any) -> None:
            if not failures:
                load(parameters)
                return
            master = taker.masters["big.weight"]
            parameters.copy_to("big.weight", master)
            raise failures.pop()

        taker.trainer._optimizer.load_parameters = fails_half_way  # type: ignore[method-assign]
        failed = await taker.fetch(taken, maker)
        assert isinstance(failed, ev.ModelFetchFailed)
        assert "only partly replaced by that of step 4" in failed.reason

        refused = await taker.worker.do(act.Train(2, 2, (BatchId(3, 4),), 2))
        assert isinstance(refused, ev.TrainFailed)
        assert "only partly replaced" in refused.reason
        for work in (act.Apply(1, 1, (), own_accepted=False), act.CloseEpoch(0, 3)):
            broken = await taker.worker.do(work)
            assert isinstance(broken, ev.WorkFailed)
            assert "only partly replaced" in broken.reason
        assert isinstance(await taker.worker.do(act.TakeSnapshot(STEP, TAG)), ev.SnapshotFailed)
        digests = [await member.worker.do(act.Digest(1)) for member in (maker, taker)]
        assert digests[0] != digests[1], "what others see is that they differ"

        assert await taker.fetch(taken, maker) == ev.ModelFetched(STEP, maker.trainer.full_digest())
        assert isinstance(await taker.worker.do(act.Train(2, 2, (BatchId(3, 4),), 2)), ev.Trained)


# ------------------------------------------------------------------------------------------------ manifests that lie
async def refused(taker: Member, maker: Member, blob: bytes, *, step: int = STEP, said: int | None = None) -> str:
    """Why a manifest of these bytes is refused; nothing may have changed."""
    before = taker.trainer.full_digest()
    manifest_hash = await maker.transport.publish(blob, tag=TAG)
    answer = await taker.fetch(ev.SnapshotTaken(step, manifest_hash, len(blob) if said is None else said), maker)
    assert isinstance(answer, ev.ModelFetchFailed)
    assert taker.trainer.full_digest() == before
    return answer.reason


async def test_manifests_that_are_not_of_our_model_run_and_step_are_refused() -> None:
    async with members("maker", "taker") as (maker, taker):
        taken = await maker.snapshot()
        data = await maker.transport.fetch(taken.manifest_hash, sources=(), max_bytes=10_000, timeout=1.0, tag=TAG)
        own = manifest.decode(data, expected=maker.trainer.table)

        def variant(**changes: Any) -> bytes:
            return manifest.encode(replace(own, **changes))

        assert "of step 5 of run 'world'" in await refused(taker, maker, variant(step=5))
        assert "of step 4 of run 'other'" in await refused(taker, maker, variant(run_id="other"))
        fewer = manifest.parameter_table({"odd.single": (1,)})
        assert "1 parameters, our model has" in await refused(taker, maker, variant(table=fewer, hashes=(bytes(32),)))
        assert "CBOR" in await refused(taker, maker, b"\xff" * 100)
        assert "a list of version" in await refused(taker, maker, codec.encode("manifest"))
        assert "is said to have 99999 bytes" in await refused(taker, maker, variant(), said=99_999)
        assert "larger than allowed" in await refused(taker, maker, b"\x00" * 99_999, said=9)
        assert "no" in await refused(taker, maker, variant(hashes=tuple(bytes(32) for _ in own.hashes)))


async def test_a_manifest_of_values_that_are_not_finite_is_refused() -> None:
    async with members("maker", "taker") as (maker, taker):
        before = taker.trainer.full_digest()
        maker.masters["odd.bias"][1] = float("nan")
        answer = await taker.fetch(await maker.snapshot(), maker)
        assert isinstance(answer, ev.ModelFetchFailed)
        assert "odd.bias" in answer.reason
        assert "not finite" in answer.reason
        assert taker.trainer.full_digest() == before


async def test_a_piece_of_another_length_than_our_table_says_is_refused() -> None:
    """Its hash is right, and it is longer than the piece: the transport refuses it before it is read."""
    async with members("maker", "taker") as (maker, taker):
        long = await maker.transport.publish(bytes(8), tag=TAG)
        table = maker.trainer.table
        numbers = {piece.name: piece.number for piece in manifest.cut(table)}
        hashes = [hashlib.sha256(maker.trainer.read_piece(piece)).digest() for piece in manifest.cut(table)]
        for piece in manifest.cut(table):
            await maker.transport.publish(maker.trainer.read_piece(piece), tag=TAG)
        hashes[numbers["odd.single"]] = long
        reason = await refused(taker, maker, manifest.encode(manifest.Manifest("world", STEP, table, tuple(hashes))))
        assert "larger than allowed" in reason

        short = await maker.transport.publish(bytes(3), tag=TAG)
        hashes[numbers["odd.single"]] = short
        reason = await refused(taker, maker, manifest.encode(manifest.Manifest("world", STEP, table, tuple(hashes))))
        assert "odd.single" in reason


# ------------------------------------------------------------------------------------------------ limits
async def test_old_snapshots_are_gone_from_disk_when_they_expire(tmp_path: Path) -> None:
    async with members("maker", "taker", folder=tmp_path) as (maker, taker):
        taken = await maker.snapshot()
        size = sum(4 * tensor.numel() for tensor in maker.masters.values())
        assert [file.stat().st_size for file in files(tmp_path)] == [size]
        assert isinstance(await maker.worker.do(act.TakeSnapshot(STEP + 1, TAG + 1)), ev.SnapshotTaken)
        assert len(files(tmp_path)) == 2

        await maker.worker.expire(TAG + 1)
        await maker.transport.expire(TAG + 1)
        assert len(files(tmp_path)) == 1
        answer = await taker.fetch(taken, maker)
        assert isinstance(answer, ev.ModelFetchFailed), "the manifest is still offered"


async def test_nobody_fills_our_disk_by_asking_for_one_model_after_the_other(tmp_path: Path) -> None:
    async with members("maker", folder=tmp_path) as (maker,):
        for later in range(exchange.MOST_OFFERED):
            assert isinstance(await maker.worker.do(act.TakeSnapshot(STEP + later, TAG + later)), ev.SnapshotTaken)
        failed = await maker.worker.do(act.TakeSnapshot(STEP + 9, TAG + 9))
        assert isinstance(failed, ev.SnapshotFailed)
        assert "8 are being offered already" in failed.reason
        assert len(files(tmp_path)) == exchange.MOST_OFFERED
        assert isinstance(await maker.worker.do(act.TakeSnapshot(STEP + 9, TAG + 9, withdrawn=(TAG, TAG + 2))), ev.SnapshotTaken)
        assert len(files(tmp_path)) == exchange.MOST_OFFERED - 1
        await maker.worker.expire(TAG + 3)
        assert len(files(tmp_path)) == exchange.MOST_OFFERED - 2


async def test_a_snapshot_is_of_the_masters_as_they_were_whatever_becomes_of_them() -> None:
    """One copy, on disk: the members that fetch it may take minutes, and training goes on meanwhile."""
    async with members("maker", "taker") as (maker, taker):
        taken, digest = await maker.snapshot(), maker.trainer.full_digest()
        for master in maker.masters.values():
            master.add_(1.0)
        assert await taker.fetch(taken, maker) == ev.ModelFetched(STEP, digest)


class Full(MemoryTransport):
    """A store without room."""

    async def offer(self, blob_hash: bytes, **how: Any) -> None:
        message = "the store is full"
        raise TransportError(message)


async def test_a_transport_that_cannot_publish_is_told_and_survived(tmp_path: Path) -> None:
    async with members("maker", transports={"maker": Full}, folder=tmp_path) as (maker,):
        failed = await maker.worker.do(act.TakeSnapshot(STEP, TAG))
        assert failed == ev.SnapshotFailed(STEP, "the model after step 4 cannot be offered to others: the store is full")
        assert telemetry.Problem("warning", failed.reason) in maker.told
        assert not files(tmp_path)
