"""Messages, peers and closing, as tests; and `TransportConformance`, which has all tests of a transport."""

# ruff: noqa: D102  # the tests' names describe them

from __future__ import annotations

import anyio
import anyio.lowlevel

from psyche_core.errors import BlobNotFound
from psyche_core.interfaces.transport import MAX_MESSAGE_BYTES, Incoming, Opened, Transport
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.sentences import raises, shown, within
from psyche_core.testing.transport.blobs import BlobTests
from psyche_core.testing.transport.mesh import (
    assert_messages,
    by_its_first_bytes,
    by_its_round,
    connected,
    received,
    until,
)


@pytest.mark.anyio
class TransportConformance(BlobTests):
    """Inherit from it and write `make_mesh`; also `can_cut`, `cut` and `mend` if links can be cut.

    Attributes:
        capabilities: `checked-messages` if it has `check_messages`; None leaves out what it does not show.
    """

    async def test_capabilities_are_those_that_were_declared(self) -> None:
        async with self.make_mesh(1) as (one,):
            self.compare_capabilities({"checked-messages": type(one).check_messages is not Transport.check_messages})

    # ------------------------------------------------------------------------------------------------- identity

    async def test_identity_and_address_fit_the_contract(self) -> None:
        async with self.make_mesh(2) as (one, other):
            assert len(one.peer_id) == 32, f"peer_id must be a public key of 32 bytes, got {shown(one.peer_id)}"
            assert one.peer_id != other.peer_id, f"endpoints of two keys must have two peer_ids, both have {shown(one.peer_id)}"
            assert len(one.address) <= 1024, f"address must be at most 1024 bytes, got {len(one.address)}"

    async def test_stats_name_the_peers_and_count_bytes(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            before = one.stats.bytes_sent, other.stats.bytes_received
            await one.broadcast(b"x" * 1000, tag=1)
            await received(other, 1)
            assert one.stats.peers == (other.peer_id,), (
                f"stats.peers must have the keys of the connected peers, {shown((other.peer_id,))}, got {shown(one.stats.peers)}"
            )
            sent, came = one.stats.bytes_sent - before[0], other.stats.bytes_received - before[1]
            assert sent >= 1000, f"stats.bytes_sent must grow by what is sent, a message of 1000 bytes, it grew by {sent}"
            assert came >= 1000, f"stats.bytes_received must grow by what comes, a message of 1000 bytes, it grew by {came}"

    # ------------------------------------------------------------------------------------------------- messages

    async def test_broadcast_reaches_all_exactly_once(self) -> None:
        async with self.make_mesh(4) as mesh:
            for number, endpoint in enumerate(mesh):
                for part in range(5):
                    await endpoint.broadcast(f"{number}.{part}".encode(), tag=1)

            for number, endpoint in enumerate(mesh):
                expected = sorted(f"{n}.{p}".encode() for n in range(4) for p in range(5) if n != number)
                got = sorted(await received(endpoint, 15), key=lambda incoming: incoming.message)
                assert_messages(got, expected, "receive must give each message of every other member once")

            await self._nothing_more(mesh)

    async def test_via_names_a_member(self) -> None:
        async with self.make_mesh(3) as mesh:
            await mesh[0].broadcast(b"hello", tag=1)
            (incoming,) = await received(mesh[1], 1)
            assert incoming.via in {mesh[0].peer_id, mesh[2].peer_id}, (
                f"Incoming.via must be the key of the member that sent it to us, got {shown(incoming.via)}"
            )

    async def test_a_message_broadcast_again_is_delivered_once(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await one.broadcast(b"same", tag=1)
            await one.broadcast(b"same", tag=1)
            await one.broadcast(b"same", tag=2)
            assert_messages(await received(other, 1), [b"same"], "receive must give each distinct message once")
            await self._nothing_more([one, other])

    async def test_the_longest_message_passes_and_a_longer_one_is_a_value_error(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await one.broadcast(b"m" * MAX_MESSAGE_BYTES, tag=1)
            wanted = f"a message of MAX_MESSAGE_BYTES, {MAX_MESSAGE_BYTES}, must arrive as it is"
            assert_messages(await received(other, 1), [b"m" * MAX_MESSAGE_BYTES], wanted)
            wanted = "broadcast must raise ValueError for a message longer than MAX_MESSAGE_BYTES"
            with raises(ValueError, wanted, match=str(MAX_MESSAGE_BYTES)):
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
            wanted = "who connects late must get the messages whose tag is not expired, and no other"
            assert_messages(await received(late, 1), [b"live"], wanted)
            await self._nothing_more([one, other, late])

    async def test_what_one_member_knows_reaches_others_through_it(self) -> None:
        async with self.make_mesh(3) as (author, between, far):
            await connected((author, between, far))
            await author.set_peers({between.peer_id: between.address})
            await far.set_peers({between.peer_id: between.address})
            await author.broadcast(b"pass it on", tag=1)
            (incoming,) = await received(far, 1)
            assert incoming == Incoming(between.peer_id, b"pass it on"), (
                "a message must reach members that are connected through others, as it was sent, with the last sender as via, "
                f"got {shown(incoming)}"
            )

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
            wanted = "a live message must reach who connects late, from any member that has it"
            assert_messages(await received(late, 1), [b"testament"], wanted)

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
                opened = {incoming.opened for incoming in got}
                assert opened == {Opened(author.peer_id, text) for text in (b"first", b"last")}, (
                    "with a check a message must be delivered with what the check returned, and not at all if it cannot be "
                    f"opened; got {shown(opened)}"
                )
                assert {incoming.via for incoming in got} == {giver.peer_id}, (
                    f"Incoming.via must be the key of the member that sent it to us, got {shown([each.via for each in got])}"
                )
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
            wanted = "a message's tag must be brought between the tags that the check returned, so one of round 1 has expired"
            assert_messages(await received(late, 1), [author.peer_id + b"of round 9"], wanted)
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
            opened = [incoming.opened for incoming in got]
            assert opened == [Opened(author.peer_id, b"I am new")] * 2, (
                "a message signed by a key that is not in set_peers must be delivered, with what the check returned, got "
                f"{shown(opened)}"
            )
            await late.broadcast(late.peer_id + b"after", tag=1)
            opened = [incoming.opened for incoming in await received(far, 1)]
            assert opened == [Opened(late.peer_id, b"after")], (
                "a message signed by a key that is not in set_peers must not be forwarded before the key is there, got "
                f"{shown(opened)}"
            )
            await self._nothing_more([far])
            await late.set_peers({e.peer_id: e.address for e in (early, far)} | {author.peer_id: b""})
            incoming = (await received(far, 1))[0]
            assert incoming == Incoming(late.peer_id, author.peer_id + b"I am new", got[0].opened), (
                f"a message must be forwarded once the key that signed it is in set_peers, as it was sent, got {shown(incoming)}"
            )

    async def test_receive_may_be_cancelled_without_loss(self) -> None:
        async with self.make_mesh(2) as (one, other):
            for number in range(10):
                with anyio.move_on_after(0.001 * number):
                    early = await other.receive()
                    pytest.fail(f"receive must wait for a message; there was none, and it gave {shown(early.message)}")
                await one.broadcast(b"%d" % number, tag=1)
                assert_messages(await received(other, 1), [b"%d" % number], "a cancelled receive must lose no message")

    async def test_unread_messages_expire(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await one.broadcast(b"old", tag=1)
            await one.broadcast(b"mark", tag=2)
            await received(other, 2)
            await one.broadcast(b"unread", tag=2)
            await other.expire(9)
            await one.expire(9)
            await one.broadcast(b"new", tag=9)
            assert_messages(await received(other, 1), [b"new"], "expire must drop messages of lower tags that were not read")

    # -------------------------------------------------------------------------------------------------- members

    async def test_who_is_no_member_is_not_talked_to(self) -> None:
        async with self.make_mesh(3) as (one, other, stranger):
            await connected((one, other, stranger))
            for endpoint in (one, other):
                await endpoint.set_peers({e.peer_id: e.address for e in (one, other)})
            await until(
                lambda: not stranger.stats.peers,
                what="peers left out of set_peers must be disconnected; `stats.peers` of one still names others",
            )
            await stranger.broadcast(b"let me in", tag=1)
            await one.broadcast(b"between us", tag=1)
            wanted = "an endpoint must communicate only with peers named by set_peers"
            assert_messages(await received(other, 1), [b"between us"], wanted)
            blob_hash = await one.publish(b"ours", tag=1)
            with raises(BlobNotFound, f"{wanted}, so fetch of a stranger must raise BlobNotFound"):
                await stranger.fetch(blob_hash, sources=[one.peer_id], max_bytes=100, timeout=0.5, tag=1)

            await self._nothing_more([one, other, stranger])

    async def test_our_own_key_among_the_members_is_ignored(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await self._all_members((one, other), with_self=True)
            await one.broadcast(b"hello", tag=1)
            await received(other, 1)
            assert one.peer_id not in one.stats.peers, "our own key in set_peers must be ignored, and stats.peers names it"
            await self._nothing_more([one, other])

    # ---------------------------------------------------------------------------------------------------- ending

    async def test_closing_is_idempotent_and_seen_at_once(self) -> None:
        async with self.make_mesh(2) as (one, other):
            await connected((one, other))
            with within(3, "aclose must close all connections so that peers notice at once, twice as well as once"):
                await one.aclose()
                await one.aclose()
                await until(lambda: not other.stats.peers)

    # ------------------------------------------------------------------------------------------------- cut links

    async def test_messages_find_their_way_around_a_cut_link(self) -> None:
        self._needs_cuts()
        async with self.make_mesh(3) as (one, between, far):
            self.cut(one, far)
            await one.broadcast(b"around", tag=1)
            incoming = (await received(far, 1))[0]
            assert incoming == Incoming(between.peer_id, b"around"), (
                f"a message must find its way around a cut link, through the member between, got {shown(incoming)}"
            )

    async def test_a_mended_link_brings_what_was_missed(self) -> None:
        self._needs_cuts()
        async with self.make_mesh(2) as (one, other):
            self.cut(one, other)
            await one.broadcast(b"missed", tag=1)
            blob_hash = await one.publish(b"blob", tag=1)
            with raises(BlobNotFound, "fetch must raise BlobNotFound after its timeout when the link is cut"):
                await other.fetch(blob_hash, sources=[one.peer_id], max_bytes=4, timeout=0.05, tag=1)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._fetched, other, blob_hash, one.peer_id)
                await anyio.lowlevel.checkpoint()
                self.mend(one, other)

            assert_messages(
                await received(other, 1), [b"missed"], "a live message must reach a member once it can be reached again"
            )
