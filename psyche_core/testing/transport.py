"""Conformance of transports: what `psyche_core.interfaces.transport` promises, as tests a plugin author inherits.

    class TestMyTransport(TransportConformance):
        @asynccontextmanager
        async def make_mesh(self, count: int) -> AsyncIterator[list[Transport]]:
            ...  # enter `count` endpoints, tell each about all, yield them, leave them

No test assumes that the mesh is already connected when it is yielded. Every wait is for an event, with a deadline. If links can
be cut (a simulated network), override `cut` and `mend` and set `can_cut = True`.
"""

# ruff: noqa: D102  # the tests' names describe them

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import anyio
import anyio.lowlevel
import pytest

from psyche_core.errors import BlobNotFound, BlobRejected, TransportError, WireError
from psyche_core.interfaces.transport import MAX_MESSAGE_BYTES, Incoming, Opened, Transport

TIMEOUT = 30.0
BLOB = bytes(range(256)) * 12_000
"""3 072 000 bytes."""


async def until(condition: Callable[[], bool]) -> None:
    """Poll until a condition on snapshots (`stats`) holds, since there is no event to wait for."""
    with anyio.fail_after(TIMEOUT):
        while not condition():  # noqa: ASYNC110  # see above
            await anyio.sleep(0.005)


async def connected(endpoints: Sequence[Transport]) -> None:
    """Wait until every endpoint sees all the others."""
    everybody = {endpoint.peer_id for endpoint in endpoints}
    await until(lambda: all(everybody - {endpoint.peer_id} <= set(endpoint.stats.peers) for endpoint in endpoints))


async def received(endpoint: Transport, count: int) -> list[Incoming]:
    """Wait for `count` messages."""
    with anyio.fail_after(TIMEOUT):
        return [await endpoint.receive() for _ in range(count)]


def by_its_first_bytes(message: bytes) -> Opened:
    """A check for `Transport.check_messages`. A message is its author's key, then its content; an unknown content is false."""
    if message[32:] == b"false":
        error = "nobody said this"
        raise WireError(error)

    return Opened(message[:32], message[32:])


def by_its_round(message: bytes) -> Opened:
    """A check as above, of contents that end with the only tag they can have."""
    tag = int(message.rpartition(b" ")[2])
    return Opened(message[:32], message[32:], (tag, tag))


class ExternalBlob:
    """A blob stored outside a transport. Tests can change the result of `read`, and every read is recorded."""

    def __init__(self, blob: bytes = BLOB) -> None:
        self.blob_hash: bytes = hashlib.sha256(blob).digest()
        self.size: int = len(blob)
        self.holds: bytes | Exception = blob
        self.readers: list[int] = []

    def read(self) -> bytes:
        """Return the current bytes, or raise the exception set in their place."""
        self.readers.append(threading.get_ident())
        if isinstance(self.holds, Exception):
            raise self.holds

        return self.holds


@pytest.mark.anyio
class TransportConformance:
    """Inherit from it and write `make_mesh`; also `can_cut`, `cut` and `mend` if links can be cut."""

    can_cut = False

    def make_mesh(self, count: int) -> AbstractAsyncContextManager[list[Transport]]:
        """`count` entered endpoints. Each knows all others through `set_peers`; they are closed at the end."""
        raise NotImplementedError

    def cut(self, one: Transport, other: Transport) -> None:
        """Cut the link between two endpoints."""
        raise NotImplementedError

    def mend(self, one: Transport, other: Transport) -> None:
        """Restore a link that was cut."""
        raise NotImplementedError

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop for the tests."""
        return "asyncio"

    # ------------------------------------------------------------------------------------------------- identity

    async def test_identity_and_address_fit_the_contract(self) -> None:
        async with self.make_mesh(2) as (one, other):
            assert len(one.peer_id) == 32
            assert one.peer_id != other.peer_id
            assert len(one.address) <= 1024

    async def test_stats_name_the_peers_and_count_bytes(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            before = one.stats.bytes_sent, other.stats.bytes_received
            await one.broadcast(b"x" * 1000, tag=1)
            await received(other, 1)
            assert one.stats.peers == (other.peer_id,)
            assert one.stats.bytes_sent >= before[0] + 1000
            assert other.stats.bytes_received >= before[1] + 1000

    # ------------------------------------------------------------------------------------------------- messages

    async def test_broadcast_reaches_all_exactly_once(self) -> None:
        async with self.make_mesh(4) as mesh:
            for number, endpoint in enumerate(mesh):
                for part in range(5):
                    await endpoint.broadcast(f"{number}.{part}".encode(), tag=1)

            for number, endpoint in enumerate(mesh):
                expected = sorted(f"{n}.{p}".encode() for n in range(4) for p in range(5) if n != number)
                assert sorted(incoming.message for incoming in await received(endpoint, 15)) == expected

            await self._nothing_more(mesh)

    async def test_via_names_a_member(self) -> None:
        async with self.make_mesh(3) as mesh:
            await mesh[0].broadcast(b"hello", tag=1)
            (incoming,) = await received(mesh[1], 1)
            assert incoming.via in {mesh[0].peer_id, mesh[2].peer_id}

    async def test_a_message_broadcast_again_is_delivered_once(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await one.broadcast(b"same", tag=1)
            await one.broadcast(b"same", tag=1)
            await one.broadcast(b"same", tag=2)
            assert [incoming.message for incoming in await received(other, 1)] == [b"same"]
            await self._nothing_more([one, other])

    async def test_the_longest_message_passes_and_a_longer_one_is_a_value_error(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await one.broadcast(b"m" * MAX_MESSAGE_BYTES, tag=1)
            assert [len(incoming.message) for incoming in await received(other, 1)] == [MAX_MESSAGE_BYTES]
            with pytest.raises(ValueError, match=str(MAX_MESSAGE_BYTES)):
                await one.broadcast(b"m" * (MAX_MESSAGE_BYTES + 1), tag=1)

    async def test_a_late_connector_gets_what_is_live_and_nothing_expired(self) -> None:
        async with self.make_mesh(3) as (one, other, late):
            await connected((one, other, late))
            for endpoint in (one, other):
                await endpoint.set_peers({e.peer_id: e.address for e in (one, other)})
            await late.set_peers({})
            await one.broadcast(b"expired", tag=4)
            await one.broadcast(b"live", tag=5)
            await received(other, 2)
            await one.expire(5)
            await other.expire(5)
            await self._all_members((one, other, late))
            assert [incoming.message for incoming in await received(late, 1)] == [b"live"]
            await self._nothing_more([one, other, late])

    async def test_what_one_member_knows_reaches_others_through_it(self) -> None:
        async with self.make_mesh(3) as (author, between, far):
            await connected((author, between, far))
            await author.set_peers({between.peer_id: between.address})
            await far.set_peers({between.peer_id: between.address})
            await author.broadcast(b"pass it on", tag=1)
            (incoming,) = await received(far, 1)
            assert incoming == Incoming(between.peer_id, b"pass it on")

    async def test_a_message_of_a_gone_member_reaches_a_late_connector(self) -> None:
        async with self.make_mesh(3) as (author, keeper, late):
            await connected((author, keeper, late))
            await late.set_peers({})
            for endpoint in (author, keeper):
                await endpoint.set_peers({e.peer_id: e.address for e in (author, keeper)})
            await author.broadcast(b"testament", tag=1)
            await received(keeper, 1)
            await author.aclose()
            await self._all_members((keeper, late))
            assert [incoming.message for incoming in await received(late, 1)] == [b"testament"]

    async def test_with_a_check_what_cannot_be_opened_is_delivered_to_nobody_and_passed_on_by_nobody(self) -> None:
        async with self.make_mesh(3) as (author, between, far):
            self._needs_checks(author)
            for endpoint in (author, between, far):
                endpoint.check_messages(by_its_first_bytes)
            await connected((author, between, far))
            await author.set_peers({between.peer_id: between.address})
            await far.set_peers({between.peer_id: between.address})
            for text in (b"first", b"false", b"last"):
                await author.broadcast(author.peer_id + text, tag=1)
            for giver, endpoint in ((author, between), (between, far)):
                got = await received(endpoint, 2)
                assert {incoming.opened for incoming in got} == {Opened(author.peer_id, text) for text in (b"first", b"last")}
                assert {incoming.via for incoming in got} == {giver.peer_id}
            await self._nothing_more((author, between, far))

    async def test_with_a_check_nobody_can_prolong_a_message(self) -> None:
        """What a member hands over with a higher tag than its content allows expires as if the tag were right."""
        async with self.make_mesh(3) as (author, keeper, late):
            self._needs_checks(author)
            for endpoint in (author, keeper, late):
                endpoint.check_messages(by_its_round)
            await connected((author, keeper, late))
            await late.set_peers({})
            for endpoint in (author, keeper):
                await endpoint.set_peers({e.peer_id: e.address for e in (author, keeper)})
            for text in (b"of round 1", b"of round 9"):
                await author.broadcast(author.peer_id + text, tag=9)
            await received(keeper, 2)
            await keeper.expire(2)
            everybody = {e.peer_id: e.address for e in (author, keeper, late)}
            await author.aclose()
            await keeper.set_peers(everybody)
            await late.set_peers(everybody)
            assert [incoming.message for incoming in await received(late, 1)] == [author.peer_id + b"of round 9"]
            await self._nothing_more([late])

    async def test_with_a_check_what_an_unknown_key_signed_is_passed_on_once_it_is_a_members(self) -> None:
        async with self.make_mesh(4) as (author, early, late, far):
            self._needs_checks(author)
            for endpoint in (author, early, late, far):
                endpoint.check_messages(by_its_first_bytes)
            await connected((author, early, late, far))
            await author.set_peers({early.peer_id: early.address})
            await early.set_peers({author.peer_id: author.address, late.peer_id: late.address})
            await late.set_peers({early.peer_id: early.address, far.peer_id: far.address})
            await far.set_peers({late.peer_id: late.address})
            await late.expire(1)  # who has left, as the author at `late`, may count as a member until its time has expired
            await author.broadcast(author.peer_id + b"I am new", tag=1)
            got = [(await received(endpoint, 1))[0] for endpoint in (early, late)]
            assert [incoming.opened for incoming in got] == [Opened(author.peer_id, b"I am new")] * 2
            await late.broadcast(late.peer_id + b"after", tag=1)
            assert [incoming.opened for incoming in await received(far, 1)] == [Opened(late.peer_id, b"after")]
            await self._nothing_more([far])
            await late.set_peers({e.peer_id: e.address for e in (early, far)} | {author.peer_id: b""})
            assert await received(far, 1) == [Incoming(late.peer_id, author.peer_id + b"I am new", got[0].opened)]

    async def test_receive_may_be_cancelled_without_loss(self) -> None:
        async with self.make_mesh(2) as (one, other):
            for number in range(10):
                with anyio.move_on_after(0.001 * number):
                    await other.receive()
                    pytest.fail("there was nothing to receive")
                await one.broadcast(b"%d" % number, tag=1)
                assert [incoming.message for incoming in await received(other, 1)] == [b"%d" % number]

    async def test_unread_messages_expire(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await one.broadcast(b"old", tag=1)
            await one.broadcast(b"mark", tag=2)
            await received(other, 2)
            await one.broadcast(b"unread", tag=2)
            await other.expire(9)
            await one.expire(9)
            await one.broadcast(b"new", tag=9)
            messages = [incoming.message for incoming in await received(other, 1)]
            assert messages == [b"new"]

    # -------------------------------------------------------------------------------------------------- members

    async def test_who_is_no_member_is_not_talked_to(self) -> None:
        async with self.make_mesh(3) as (one, other, stranger):
            await connected((one, other, stranger))
            for endpoint in (one, other):
                await endpoint.set_peers({e.peer_id: e.address for e in (one, other)})
            await until(lambda: not stranger.stats.peers)
            await stranger.broadcast(b"let me in", tag=1)
            await one.broadcast(b"between us", tag=1)
            assert [incoming.message for incoming in await received(other, 1)] == [b"between us"]
            blob_hash = await one.publish(b"ours", tag=1)
            with pytest.raises(BlobNotFound):
                await stranger.fetch(blob_hash, sources=[one.peer_id], max_bytes=100, timeout=0.5, tag=1)

            await self._nothing_more([one, other, stranger])

    async def test_our_own_key_among_the_members_is_ignored(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await self._all_members((one, other), with_self=True)
            await one.broadcast(b"hello", tag=1)
            await received(other, 1)
            assert one.peer_id not in one.stats.peers
            await self._nothing_more([one, other])

    # ---------------------------------------------------------------------------------------------------- blobs

    async def test_a_blob_is_fetched_and_verified(self) -> None:
        async with self.make_mesh(3) as (one, other, _):
            blob_hash = await one.publish(BLOB, tag=1)
            assert blob_hash == hashlib.sha256(BLOB).digest()
            blob = await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=len(BLOB), timeout=TIMEOUT, tag=1)
            assert blob == BLOB

    @pytest.mark.parametrize("size", [0, 1, 65_537])
    async def test_small_blobs(self, size: int) -> None:
        async with self.make_mesh(2) as (one, other):
            blob_hash = await one.publish(b"b" * size, tag=1)
            blob = await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=size, timeout=TIMEOUT, tag=1)
            assert blob == b"b" * size

    async def test_our_own_blob_needs_nobody(self) -> None:
        async with self.make_mesh(1) as (one,):
            blob_hash = await one.publish(b"mine", tag=1)
            assert await one.fetch(blob_hash, sources=[], max_bytes=4, timeout=TIMEOUT, tag=1) == b"mine"
            with pytest.raises(BlobRejected):
                await one.fetch(blob_hash, sources=[], max_bytes=3, timeout=TIMEOUT, tag=1)

    async def test_other_members_are_asked_when_the_sources_have_not_got_it(self) -> None:
        async with self.make_mesh(3) as (one, other, holder):
            await connected((one, other, holder))
            blob_hash = await holder.publish(b"found", tag=1)
            blob = await one.fetch(blob_hash, sources=[other.peer_id], max_bytes=5, timeout=TIMEOUT, tag=1)
            assert blob == b"found"

    async def test_who_fetched_a_blob_offers_it_when_the_announcer_is_gone(self) -> None:
        async with self.make_mesh(3) as (announcer, holder, late):
            await connected((announcer, holder, late))
            blob_hash = await announcer.publish(BLOB, tag=1)
            await holder.fetch(blob_hash, sources=[announcer.peer_id], max_bytes=len(BLOB), timeout=TIMEOUT, tag=1)
            await announcer.aclose()
            blob = await late.fetch(blob_hash, sources=[announcer.peer_id], max_bytes=len(BLOB), timeout=TIMEOUT, tag=1)
            assert blob == BLOB

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

            assert results == [BLOB] * 5
            assert other.stats.bytes_received < 2 * len(BLOB)

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

            assert BLOB in results

    async def test_a_blob_nobody_has_is_not_found_at_once(self) -> None:
        async with self.make_mesh(3) as mesh:
            await connected(mesh)
            with anyio.fail_after(TIMEOUT / 2), pytest.raises(BlobNotFound):
                await mesh[0].fetch(b"n" * 32, sources=[mesh[1].peer_id], max_bytes=9, timeout=TIMEOUT, tag=1)

    async def test_a_blob_of_nobody_reachable_is_not_found_within_the_timeout(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            await other.aclose()
            with anyio.fail_after(TIMEOUT), pytest.raises(BlobNotFound):
                await one.fetch(b"n" * 32, sources=[other.peer_id], max_bytes=9, timeout=0.3, tag=1)

    async def test_a_blob_over_the_limit_is_rejected(self) -> None:
        async with self.make_mesh(2) as (one, other):
            blob_hash = await one.publish(BLOB, tag=1)
            with pytest.raises(BlobRejected):
                await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=len(BLOB) - 1, timeout=TIMEOUT, tag=1)

            assert await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=len(BLOB), timeout=TIMEOUT, tag=1) == BLOB

    async def test_expired_blobs_are_forgotten(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            old = await one.publish(b"old", tag=4)
            new = await one.publish(b"new", tag=5)
            await one.expire(5)
            assert await other.fetch(new, sources=[one.peer_id], max_bytes=9, timeout=TIMEOUT, tag=5) == b"new"
            with pytest.raises(BlobNotFound):
                await other.fetch(old, sources=[one.peer_id], max_bytes=9, timeout=TIMEOUT, tag=5)

    # --------------------------------------------------------------------------------------------------- offers

    async def test_an_offered_blob_is_read_when_it_is_asked_for_and_in_a_worker_thread(self) -> None:
        async with self.make_mesh(2) as (one, other):
            external = ExternalBlob()
            await one.offer(external.blob_hash, size=external.size, read=external.read, tag=1)
            assert not external.readers
            for _ in range(2):
                assert await self._got(other, external, one) == BLOB
            assert len(external.readers) == 2
            assert threading.get_ident() not in external.readers

    async def test_an_offer_is_compared_with_its_hash_again_when_its_stamp_is_another(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            external, stamps = ExternalBlob(), [1]
            await one.offer(external.blob_hash, size=external.size, read=external.read, tag=1, stamp=lambda: stamps[0])
            for _ in range(2):
                assert await self._got(other, external, one) == BLOB
            external.holds, stamps[0] = BLOB[:-1] + b"!", 2
            with anyio.fail_after(TIMEOUT / 2), pytest.raises(BlobNotFound):
                await self._got(other, external, one)

    async def test_our_own_offer_needs_nobody(self) -> None:
        async with self.make_mesh(1) as (one,):
            external = ExternalBlob(b"mine")
            await one.offer(external.blob_hash, size=4, read=external.read, tag=1)
            assert await one.fetch(external.blob_hash, sources=[], max_bytes=4, timeout=TIMEOUT, tag=1) == b"mine"
            with pytest.raises(BlobRejected):
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
                with anyio.fail_after(TIMEOUT / 2), pytest.raises(BlobNotFound):
                    await self._got(other, external, one)
            assert len(external.readers) == 1, "an offer that was void is asked again"
            assert await self._got(other, good, one) == BLOB[1:]

    async def test_an_offered_blob_over_the_limit_is_rejected_unread(self) -> None:
        async with self.make_mesh(2) as (one, other):
            external = ExternalBlob()
            await one.offer(external.blob_hash, size=external.size, read=external.read, tag=1)
            with pytest.raises(BlobRejected):
                await other.fetch(external.blob_hash, sources=[one.peer_id], max_bytes=len(BLOB) - 1, timeout=TIMEOUT, tag=1)
            assert not external.readers

    async def test_offers_expire_with_their_tag_and_the_higher_one_counts(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            old, new, first, second = ExternalBlob(b"old"), ExternalBlob(b"new"), ExternalBlob(b"twice"), ExternalBlob(b"twice")
            for external, tag in ((old, 4), (new, 5), (second, 5), (first, 4)):
                await one.offer(external.blob_hash, size=external.size, read=external.read, tag=tag)
            await one.expire(5)
            for external in (new, second):
                assert await self._got(other, external, one, tag=5) == external.holds
            with pytest.raises(BlobNotFound):
                await self._got(other, old, one, tag=5)
            with pytest.raises(TransportError):
                await one.offer(old.blob_hash, size=old.size, read=old.read, tag=4)
            assert not first.readers

    async def test_offers_push_out_nothing_and_are_limited_in_number_only(self) -> None:
        """The offers together are larger than any store."""
        async with self.make_mesh(2) as (one, other):
            kept = await one.publish(b"result", tag=1)
            for number in range(1000):
                external = ExternalBlob(b"%d" % number)
                await one.offer(external.blob_hash, size=2**40, read=external.read, tag=9)
            assert await other.fetch(kept, sources=[one.peer_id], max_bytes=9, timeout=TIMEOUT, tag=1) == b"result"

    async def test_what_is_not_to_be_kept_is_handed_over_and_forgotten(self) -> None:
        async with self.make_mesh(3) as (one, other, late):
            await connected((one, other, late))
            await one.publish(BLOB, tag=1)
            external = ExternalBlob()
            assert await self._got(other, external, one) == BLOB
            await one.aclose()
            await until(lambda: one.peer_id not in late.stats.peers and one.peer_id not in other.stats.peers)
            await late.set_peers({other.peer_id: other.address})
            await other.set_peers({late.peer_id: late.address})
            with pytest.raises(BlobNotFound):
                await self._got(late, external, other)
            with pytest.raises(BlobNotFound):
                await self._got(other, external, late)

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

            assert results == [BLOB] * 5
            assert other.stats.bytes_received < 2 * len(BLOB)

    # ---------------------------------------------------------------------------------------------------- ending

    async def test_closing_is_idempotent_and_seen_at_once(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            with anyio.fail_after(3):
                await one.aclose()
                await one.aclose()
                await until(lambda: not other.stats.peers)

    # ------------------------------------------------------------------------------------------------- cut links

    async def test_messages_find_their_way_around_a_cut_link(self) -> None:
        self._needs_cuts()
        async with self.make_mesh(3) as (one, between, far):
            self.cut(one, far)
            await one.broadcast(b"around", tag=1)
            assert await received(far, 1) == [Incoming(between.peer_id, b"around")]

    async def test_a_mended_link_brings_what_was_missed(self) -> None:
        self._needs_cuts()
        async with self.make_mesh(2) as (one, other):
            self.cut(one, other)
            await one.broadcast(b"missed", tag=1)
            blob_hash = await one.publish(b"blob", tag=1)
            with pytest.raises(BlobNotFound):
                await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=4, timeout=0.05, tag=1)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._fetched, other, blob_hash, one.peer_id)
                await anyio.lowlevel.checkpoint()
                self.mend(one, other)

            assert [incoming.message for incoming in await received(other, 1)] == [b"missed"]

    # --------------------------------------------------------------------------------------------------- helpers

    def _needs_cuts(self) -> None:
        if not self.can_cut:
            pytest.skip("a test cannot cut this transport's links")

    @staticmethod
    def _needs_checks(endpoint: Transport) -> None:
        if type(endpoint).check_messages is Transport.check_messages:
            pytest.skip("this transport does not check messages, and forwards all of them")

    @staticmethod
    async def _got(endpoint: Transport, external: ExternalBlob, source: Transport, *, tag: int = 1) -> bytes:
        """Offer a blob and fetch it without keeping it."""
        return await endpoint.fetch(
            external.blob_hash, sources=[source.peer_id], max_bytes=external.size, timeout=TIMEOUT, tag=tag, keep=False
        )

    @staticmethod
    async def _fetched(endpoint: Transport, blob_hash: bytes, source: bytes) -> None:
        assert await endpoint.fetch(blob_hash, sources=[source], max_bytes=4, timeout=TIMEOUT, tag=1) == b"blob"

    @staticmethod
    async def _all_members(endpoints: Sequence[Transport], *, with_self: bool = False) -> None:
        for endpoint in endpoints:
            await endpoint.set_peers({other.peer_id: other.address for other in endpoints if with_self or other is not endpoint})

    @staticmethod
    async def _nothing_more(endpoints: Sequence[Transport]) -> None:
        """Check that no message is ready to be read. It does not wait for later messages."""
        for endpoint in endpoints:
            with anyio.move_on_after(0.05):
                incoming = await endpoint.receive()
                pytest.fail(f"a message too many: {incoming.message!r}")
