"""Conformance of a transport's blobs and offers; part of `TransportConformance`."""

# ruff: noqa: D102  # the tests' names describe them

from __future__ import annotations

import hashlib
import threading
from functools import partial

import anyio
import anyio.lowlevel

from psyche_core.errors import BlobNotFound, BlobRejected, TransportError
from psyche_core.interfaces.transport import Transport
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.sentences import raises, shown, within
from psyche_core.testing.transport.mesh import BLOB, TIMEOUT, ExternalBlob, MeshTests, assert_blob, connected, until

NOBODY_HAS_IT = "fetch must raise BlobNotFound once every member that was asked has answered no"
TOO_LARGE = "fetch must raise BlobRejected for a blob larger than max_bytes"
WITHDRAWN = "an offer that can no longer be read or has changed is answered with no, so fetch must raise BlobNotFound"


@pytest.mark.anyio
class BlobTests(MeshTests):
    """What a transport promises about blobs and offers."""

    async def test_a_blob_is_fetched_and_verified(self) -> None:
        async with self.make_mesh(3) as (one, other, _):
            blob_hash = await one.publish(BLOB, tag=1)
            assert blob_hash == hashlib.sha256(BLOB).digest(), (
                f"publish must return the blob's SHA-256, {hashlib.sha256(BLOB).hexdigest()}, got {shown(blob_hash)}"
            )
            blob = await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=len(BLOB), timeout=TIMEOUT, tag=1)
            assert_blob(blob, BLOB)

    @pytest.mark.parametrize("size", [0, 1, 65_537])
    async def test_small_blobs(self, size: int) -> None:
        async with self.make_mesh(2) as (one, other):
            blob_hash = await one.publish(b"b" * size, tag=1)
            blob = await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=size, timeout=TIMEOUT, tag=1)
            assert_blob(blob, b"b" * size)

    async def test_our_own_blob_needs_nobody(self) -> None:
        async with self.make_mesh(1) as (one,):
            blob_hash = await one.publish(b"mine", tag=1)
            assert_blob(await one.fetch(blob_hash, sources=[], max_bytes=4, timeout=TIMEOUT, tag=1), b"mine")
            with raises(BlobRejected, TOO_LARGE):
                await one.fetch(blob_hash, sources=[], max_bytes=3, timeout=TIMEOUT, tag=1)

    async def test_other_members_are_asked_when_the_sources_have_not_got_it(self) -> None:
        async with self.make_mesh(3) as (one, other, holder):
            await connected((one, other, holder))
            blob_hash = await holder.publish(b"found", tag=1)
            blob = await one.fetch(blob_hash, sources=[other.peer_id], max_bytes=5, timeout=TIMEOUT, tag=1)
            assert_blob(blob, b"found")

    async def test_who_fetched_a_blob_offers_it_when_the_announcer_is_gone(self) -> None:
        async with self.make_mesh(3) as (announcer, holder, late):
            await connected((announcer, holder, late))
            blob_hash = await announcer.publish(BLOB, tag=1)
            await holder.fetch(blob_hash, sources=[announcer.peer_id], max_bytes=len(BLOB), timeout=TIMEOUT, tag=1)
            await announcer.aclose()
            blob = await late.fetch(blob_hash, sources=[announcer.peer_id], max_bytes=len(BLOB), timeout=TIMEOUT, tag=1)
            assert_blob(blob, BLOB)

    async def test_concurrent_fetches_share_one_transfer(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            blob_hash = await one.publish(BLOB, tag=1)
            results = []

            async def fetch() -> None:
                results.append(await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=len(BLOB), timeout=TIMEOUT, tag=1))

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(fetch)

            self._check_one_transfer(results, other)

    async def test_a_cancelled_fetch_leaves_the_others_alone(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            blob_hash = await one.publish(BLOB, tag=1)
            results = []
            first = anyio.CancelScope()

            async def fetch(scope: anyio.CancelScope) -> None:
                with scope:
                    results.append(
                        await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=len(BLOB), timeout=TIMEOUT, tag=1)
                    )

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fetch, first)
                tasks.start_soon(fetch, anyio.CancelScope())
                await anyio.lowlevel.checkpoint()
                first.cancel()

            assert BLOB in results, (
                "cancelling one fetch must leave others of the same hash alone, and none of them returned the blob"
            )

    async def test_a_blob_nobody_has_is_not_found_at_once(self) -> None:
        async with self.make_mesh(3) as mesh:
            await connected(mesh)
            with within(TIMEOUT / 2, NOBODY_HAS_IT), raises(BlobNotFound, NOBODY_HAS_IT):
                await mesh[0].fetch(b"n" * 32, sources=[mesh[1].peer_id], max_bytes=9, timeout=TIMEOUT, tag=1)

    async def test_a_blob_of_nobody_reachable_is_not_found_within_the_timeout(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            await other.aclose()
            wanted = "fetch must raise BlobNotFound after its timeout, here 0.3 s, when nobody can be reached"
            with within(TIMEOUT, wanted), raises(BlobNotFound, wanted):
                await one.fetch(b"n" * 32, sources=[other.peer_id], max_bytes=9, timeout=0.3, tag=1)

    async def test_a_blob_over_the_limit_is_rejected(self) -> None:
        async with self.make_mesh(2) as (one, other):
            blob_hash = await one.publish(BLOB, tag=1)
            with raises(BlobRejected, TOO_LARGE):
                await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=len(BLOB) - 1, timeout=TIMEOUT, tag=1)

            blob = await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=len(BLOB), timeout=TIMEOUT, tag=1)
            assert_blob(blob, BLOB)

    async def test_expired_blobs_are_forgotten(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            old = await one.publish(b"old", tag=4)
            new = await one.publish(b"new", tag=5)
            await one.expire(5)
            assert_blob(await other.fetch(new, sources=[one.peer_id], max_bytes=9, timeout=TIMEOUT, tag=5), b"new")
            with raises(BlobNotFound, "expire(5) must drop blobs of tag 4, so fetch of one must raise BlobNotFound"):
                await other.fetch(old, sources=[one.peer_id], max_bytes=9, timeout=TIMEOUT, tag=5)

    # --------------------------------------------------------------------------------------------------- offers

    async def test_an_offered_blob_is_read_when_it_is_asked_for_and_in_a_worker_thread(self) -> None:
        async with self.make_mesh(2) as (one, other):
            external = ExternalBlob()
            await one.offer(external.blob_hash, size=external.size, read=external.read, tag=1)
            assert not external.readers, f"offer must read nothing now, and called read {len(external.readers)} times"
            for _ in range(2):
                assert_blob(await self._got(other, external, one), BLOB)
            assert len(external.readers) == 2, (
                f"read must be called whenever a member asks for the bytes, 2 times here, it was called {len(external.readers)} "
                "times; bytes that were read stay in memory only while they are sent"
            )
            assert threading.get_ident() not in external.readers, (
                "read may block, so it must be called in worker threads, it was called in the event loop's"
            )

    async def test_an_offer_is_compared_with_its_hash_again_when_its_stamp_is_another(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            external, stamps = ExternalBlob(), [1]
            await one.offer(external.blob_hash, size=external.size, read=external.read, tag=1, stamp=lambda: stamps[0])
            for _ in range(2):
                assert_blob(await self._got(other, external, one), BLOB)
            external.holds, stamps[0] = BLOB[:-1] + b"!", 2
            wanted = f"bytes are compared with the hash again when the stamp is another one; {WITHDRAWN}"
            with within(TIMEOUT / 2, wanted), raises(BlobNotFound, wanted):
                await self._got(other, external, one)

    async def test_our_own_offer_needs_nobody(self) -> None:
        async with self.make_mesh(1) as (one,):
            external = ExternalBlob(b"mine")
            await one.offer(external.blob_hash, size=4, read=external.read, tag=1)
            assert_blob(await one.fetch(external.blob_hash, sources=[], max_bytes=4, timeout=TIMEOUT, tag=1), b"mine")
            with raises(BlobRejected, TOO_LARGE):
                await one.fetch(external.blob_hash, sources=[], max_bytes=3, timeout=TIMEOUT, tag=1)

    @pytest.mark.parametrize(
        "now",
        [BLOB[:-1] + b"!", BLOB[:-1], BLOB + b"!", b"", OSError("the disk is gone"), TransportError("gone")],
        ids=["changed", "shorter", "longer", "empty", "disk error", "gone"],
    )
    async def test_an_offer_that_cannot_be_kept_is_answered_with_no_and_withdrawn(self, now: bytes | Exception) -> None:
        """The peer is not penalised: its next blob is accepted."""
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            external, good = ExternalBlob(), ExternalBlob(BLOB[1:])
            for offered in (external, good):
                await one.offer(offered.blob_hash, size=offered.size, read=offered.read, tag=1)
            external.holds = now
            for _ in range(2):
                with within(TIMEOUT / 2, WITHDRAWN), raises(BlobNotFound, WITHDRAWN):
                    await self._got(other, external, one)
            assert len(external.readers) == 1, (
                f"an offer that could not be kept must be withdrawn, and it was read again, {len(external.readers)} times in all"
            )
            assert_blob(await self._got(other, good, one), BLOB[1:])

    async def test_an_offered_blob_over_the_limit_is_rejected_unread(self) -> None:
        async with self.make_mesh(2) as (one, other):
            external = ExternalBlob()
            await one.offer(external.blob_hash, size=external.size, read=external.read, tag=1)
            with raises(BlobRejected, TOO_LARGE):
                await other.fetch(external.blob_hash, sources=[one.peer_id], max_bytes=len(BLOB) - 1, timeout=TIMEOUT, tag=1)
            assert not external.readers, (
                f"an offer's size is known, so one over the limit must not be read, it was read {len(external.readers)} times"
            )

    async def test_offers_expire_with_their_tag_and_the_higher_one_counts(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            old, new, first, second = ExternalBlob(b"old"), ExternalBlob(b"new"), ExternalBlob(b"twice"), ExternalBlob(b"twice")
            for external, tag in ((old, 4), (new, 5), (second, 5), (first, 4)):
                await one.offer(external.blob_hash, size=external.size, read=external.read, tag=tag)
            await one.expire(5)
            for external in (new, second):
                blob = await self._got(other, external, one, tag=5)
                assert blob == external.holds, (
                    f"fetch must return the offered blob, {shown(external.holds)}, got {shown(blob)}; expire(5) keeps tag 5"
                )
            with raises(BlobNotFound, "expire(5) must drop offers of tag 4, so fetch of one must raise BlobNotFound"):
                await self._got(other, old, one, tag=5)
            with raises(TransportError, "offer must raise TransportError for a tag that has expired"):
                await one.offer(old.blob_hash, size=old.size, read=old.read, tag=4)
            assert not first.readers, (
                "if a blob is offered twice, the offer with the higher tag must count, and the one with the lower tag was read"
            )

    async def test_offers_push_out_nothing_and_are_limited_in_number_only(self) -> None:
        """The offers together are larger than any store."""
        async with self.make_mesh(2) as (one, other):
            kept = await one.publish(b"result", tag=1)
            for number in range(1000):
                external = ExternalBlob(b"%d" % number)
                await one.offer(external.blob_hash, size=2**40, read=external.read, tag=9)
            assert_blob(await other.fetch(kept, sources=[one.peer_id], max_bytes=9, timeout=TIMEOUT, tag=1), b"result")

    async def test_what_is_not_to_be_kept_is_handed_over_and_forgotten(self) -> None:
        async with self.make_mesh(3) as (one, other, late):
            await connected((one, other, late))
            await one.publish(BLOB, tag=1)
            external = ExternalBlob()
            assert_blob(await self._got(other, external, one), BLOB)
            await one.aclose()
            await until(
                lambda: one.peer_id not in late.stats.peers and one.peer_id not in other.stats.peers,
                what="aclose must close all connections so that peers notice at once; `stats.peers` of the others still names it",
            )
            await late.set_peers({other.peer_id: other.address})
            await other.set_peers({late.peer_id: late.address})
            wanted = "what was fetched with keep=False must neither be stored nor offered, so fetch must raise BlobNotFound"
            with raises(BlobNotFound, wanted):
                await self._got(late, external, other)
            with raises(BlobNotFound, wanted):
                await self._got(other, external, late)

    async def test_what_all_want_is_fetched_and_kept_and_shares_one_transfer(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            blob_hash = await one.publish(BLOB, tag=1)
            results = []
            fetch = partial(other.fetch, blob_hash, max_bytes=len(BLOB), timeout=TIMEOUT, tag=1)

            async def wanted_by_all() -> None:
                results.append(await fetch(sources=[one.peer_id], wanted_by_all=True))

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(wanted_by_all)

            self._check_one_transfer(results, other)
            await one.aclose()
            assert_blob(await fetch(sources=[]), BLOB)

    async def test_what_all_want_and_nobody_has_is_not_found_within_the_timeout(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            with raises(BlobNotFound, "fetch must raise BlobNotFound after `timeout` seconds in which nothing came"):
                await other.fetch(b"n" * 32, sources=[one.peer_id], max_bytes=9, timeout=0.3, tag=1, wanted_by_all=True)

    async def test_fetches_that_do_not_keep_share_one_transfer_too(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            blob_hash = await one.publish(BLOB, tag=1)
            results = []

            async def fetch() -> None:
                results.append(
                    await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=len(BLOB), timeout=TIMEOUT, tag=1, keep=False)
                )

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(fetch)

            self._check_one_transfer(results, other)

    @staticmethod
    def _check_one_transfer(results: list[bytes], fetcher: Transport) -> None:
        """Check what five fetches of BLOB at the same time returned and cost."""
        right = results.count(BLOB)
        assert results == [BLOB] * 5, f"5 fetches at the same time must all return the blob, {right} of {len(results)} did"
        received = fetcher.stats.bytes_received
        assert received < 2 * len(BLOB), (
            f"concurrent fetches of one hash must share one transfer of {len(BLOB)} bytes, stats.bytes_received is {received}"
        )
