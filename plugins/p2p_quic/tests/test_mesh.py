"""Connections that come and go, the mended copy, and a loop that is never blocked."""

import importlib.metadata
import sys
import warnings

import anyio
import pytest
from blockbuster import blockbuster_ctx

from psyche_core.errors import TransportError
from psyche_core.hookspecs import TransportContext
from psyche_core.testing.transport import connected, received, until
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic import hooks
from psyche_p2p_quic.addresses.peer_address import PeerAddress
from psyche_p2p_quic.connections.mesh import Mesh
from psyche_p2p_quic.endpoint import ffi_copy
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.settings import QuicSettings
from psyche_p2p_quic.transport import QuicTransport

pytestmark = pytest.mark.quic

QUICK = QuicSettings(heartbeat_seconds=0.05, silent_beats=40, dial_grace_seconds=0.0)


def mesh_of(endpoint: QuicTransport) -> Mesh:
    assert endpoint._mesh is not None
    return endpoint._mesh


async def all_members(*endpoints: QuicTransport) -> None:
    for endpoint in endpoints:
        await endpoint.set_peers({other.peer_id: other.address for other in endpoints})


async def test_crossing_dials_leave_one_connection_that_works() -> None:
    for _ in range(5):
        async with (
            QuicTransport("run", SecretKey.generate(), settings=QUICK) as one,
            QuicTransport("run", SecretKey.generate(), settings=QUICK) as other,
        ):
            await all_members(one, other)
            await one.broadcast(b"to and", tag=1)
            await other.broadcast(b"fro", tag=1)
            assert [i.message for i in await received(other, 1)] == [b"to and"]
            assert [i.message for i in await received(one, 1)] == [b"fro"]
            await until(lambda: one.stats.peers == (other.peer_id,) and other.stats.peers == (one.peer_id,))
            await until(lambda: mesh_of(one).sessions[other.peer_id].dialled != mesh_of(other).sessions[one.peer_id].dialled)


@pytest.mark.parametrize("smaller_dials", [True, False])
async def test_it_is_enough_that_one_side_knows_the_address(smaller_dials: bool) -> None:
    keys = sorted((SecretKey.generate() for _ in range(2)), key=lambda key: key.public)
    async with (
        QuicTransport("run", keys[not smaller_dials], settings=QUICK) as dialler,
        QuicTransport("run", keys[smaller_dials], settings=QUICK) as waiter,
    ):
        await waiter.set_peers({dialler.peer_id: b""})
        await dialler.set_peers({waiter.peer_id: waiter.address})
        await connected((dialler, waiter))


async def test_a_member_the_other_learns_of_late_is_let_in_then() -> None:
    async with (
        QuicTransport("run", SecretKey.generate(), settings=QUICK) as one,
        QuicTransport("run", SecretKey.generate(), settings=QUICK) as other,
    ):
        await one.set_peers({other.peer_id: other.address})
        await one.broadcast(b"early", tag=1)
        await anyio.sleep(0.3)
        assert one.stats.peers == ()
        await other.set_peers({one.peer_id: b""})
        assert [i.message for i in await received(other, 1)] == [b"early"]


CRASHING_MEMBER = """
import sys, anyio
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.transport import QuicTransport

async def main(seed, peer, address):
    async with QuicTransport("run", SecretKey(bytes.fromhex(seed))) as transport:
        await transport.set_peers({bytes.fromhex(peer): bytes.fromhex(address)})
        print(transport.address.hex(), flush=True)
        await anyio.sleep_forever()

anyio.run(main, *sys.argv[1:])
"""


async def test_a_crashed_and_restarted_member_is_back_in_a_few_beats() -> None:
    key = SecretKey.generate()
    async with QuicTransport("run", SecretKey.generate(), settings=QUICK) as survivor:
        arguments = [key.seed.hex(), survivor.peer_id.hex(), survivor.address.hex()]
        async with await anyio.open_process([sys.executable, "-c", CRASHING_MEMBER, *arguments], stderr=None) as process:
            assert process.stdout is not None
            line = await process.stdout.receive()
            await survivor.set_peers({key.public: bytes.fromhex(line.decode().strip())})
            await until(lambda: survivor.stats.peers == (key.public,))
            process.kill()  # it says no goodbye: the library alone would notice after half a minute
            await process.wait()
        async with QuicTransport("run", key, settings=QUICK) as second:
            await second.set_peers({survivor.peer_id: survivor.address})
            await survivor.broadcast(b"welcome back", tag=1)
            with anyio.fail_after(10):
                assert [i.message for i in await received(second, 1)] == [b"welcome back"]


async def test_a_goodbye_is_told_from_a_loss() -> None:
    async with (
        QuicTransport("run", SecretKey.generate()) as one,
        QuicTransport("run", SecretKey.generate()) as other,
    ):
        await all_members(one, other)
        await connected((one, other))
        (session,) = mesh_of(one).sessions.values()
        assert not session.peer_left
        await other.aclose()
        await session.ended.wait()
        assert session.peer_left


async def test_an_address_that_makes_no_sense_hurts_nobody() -> None:
    async with (
        QuicTransport("run", SecretKey.generate(), settings=QUICK) as one,
        QuicTransport("run", SecretKey.generate(), settings=QUICK) as other,
    ):
        peers = {other.peer_id: other.address, b"s" * 32: b"\xff nonsense", b"short": other.address, b"x" * 32: other.address}
        await one.set_peers(peers)
        await other.set_peers({one.peer_id: b""})
        await connected((one, other))


async def test_only_the_asked_interface_is_bound() -> None:
    endpoint = await Endpoint.bind(SecretKey.generate().seed, interface="127.0.0.1", port=0)
    sockets = endpoint._endpoint.bound_sockets()
    await endpoint.aclose(timeout=1)
    assert all(socket.startswith(("127.0.0.1:", "[::1]:")) for socket in sockets)
    assert [ip for ip, _ in endpoint.sockets] == ["127.0.0.1"]


async def test_ipv6_works() -> None:
    async with (
        QuicTransport("run", SecretKey.generate(), interface="::1") as one,
        QuicTransport("run", SecretKey.generate(), interface="::1") as other,
    ):
        assert PeerAddress.decode(one.address).sockets[0][0] == "::1"
        await all_members(one, other)
        await connected((one, other))


@pytest.mark.parametrize("interface", ["eth0", "192.0.2.1"])
async def test_an_interface_that_cannot_be_bound_is_named(interface: str) -> None:
    with pytest.raises(TransportError, match=interface):
        async with QuicTransport("run", SecretKey.generate(), interface=interface):
            pass


async def test_use_before_entering_is_one_sentence() -> None:
    transport = QuicTransport("run", SecretKey.generate())
    with pytest.raises(TransportError, match="async with"):
        await transport.set_peers({})
    await transport.aclose()


async def test_the_hook_makes_an_endpoint() -> None:
    (registration,) = hooks.psyche_register_transports()
    key = SecretKey.generate()
    async with registration.create(TransportContext(run_id="run", key=key)) as transport:
        assert transport.peer_id == key.public


async def test_the_loop_is_never_blocked() -> None:
    with blockbuster_ctx():
        async with (
            QuicTransport("run", SecretKey.generate(), settings=QUICK) as one,
            QuicTransport("run", SecretKey.generate(), settings=QUICK) as other,
        ):
            await all_members(one, other)
            await one.broadcast(b"hello", tag=1)
            await received(other, 1)
            blob = bytes(3_000_000)
            blob_hash = await one.publish(blob, tag=1)
            assert await other.fetch(blob_hash, sources=[], max_bytes=len(blob), timeout=20, tag=1) == blob


def test_the_copy_is_mended_in_the_version_at_hand() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ffi_copy.mend()
    assert ffi_copy._copies_right()


def test_another_version_keeps_its_own_copy_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffi_copy._ffi._UniffiRustBufferBuilder, "write", lambda self, value: None)
    shipped = ffi_copy._ffi._UniffiRustBufferBuilder.write
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.3.0")
    with pytest.warns(RuntimeWarning, match=r"slow.*1\.3\.0"):
        assert not ffi_copy.mend()
    assert ffi_copy._ffi._UniffiRustBufferBuilder.write is shipped


def test_a_copy_that_fails_its_test_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffi_copy._ffi._UniffiRustBufferBuilder, "write", lambda self, value: None)
    monkeypatch.setattr(ffi_copy, "_copies_right", lambda: False)
    with pytest.warns(RuntimeWarning, match="test failed"):
        assert not ffi_copy.mend()
