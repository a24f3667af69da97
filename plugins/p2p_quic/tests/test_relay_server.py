"""The relay over real sockets, against clients of another WebSocket implementation: service, limits, attacks, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys
from pathlib import Path

import pytest
from nacl.signing import SigningKey
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.frames import Frame, Opcode

from plugins.p2p_quic.tests.relay_parts import TIMEOUT, Refused, RelayClient, answer, open_socket, random_bytes, received, serving
from plugins.p2p_quic.tests.relay_sockets import until
from psyche_core.errors import UserError
from psyche_p2p_quic.relay.access import MemberAccess, OpenAccess, TokenAccess
from psyche_p2p_quic.relay.server import RelayServer

KEY = SigningKey(b"\x01" * 32)

pytestmark = pytest.mark.anyio


async def ask(url: str, path: str) -> tuple[int, str, str]:
    """Status, head and body of a page."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    async with asyncio.timeout(TIMEOUT):
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split(" ")[1]), head, body


# ---------------------------------------------------------------------------------------------------------------- service
async def test_two_clients_talk_in_either_version() -> None:
    async with serving() as (server, url), RelayClient.login(url) as alice:
        async with RelayClient.login(url, versions=["iroh-relay-v1"]) as bob:
            assert (alice.socket.subprotocol, bob.socket.subprotocol) == ("iroh-relay-v2", "iroh-relay-v1")
            for size in (1, 1200, 13_000, 65_500):
                payload = random_bytes(size)
                await alice.send(bob, payload)
                assert await bob.frame() == b"\x07" + alice.id + b"\x00\x04\xb0" + payload
                await bob.send(alice, payload)
                assert await alice.frame() == b"\x07" + bob.id + b"\x00\x04\xb0" + payload
        assert await alice.frame() == b"\x08" + bob.id
        assert server.router.counters.frames_forwarded == 8


async def test_thousands_of_frames_arrive_whole_and_in_order() -> None:
    async with serving() as (server, url), RelayClient.login(url) as alice, RelayClient.login(url) as bob:
        sent = [number.to_bytes(2, "big") + random_bytes(number * 31 % 3000) for number in range(3000)]

        async def speak() -> None:
            for place, payload in enumerate(sent):
                while place - len(got) > 100:  # below the queue's bound, so that nothing is dropped
                    await asyncio.sleep(0)
                await alice.send(bob, payload)

        got: list[bytes] = []
        speaking = asyncio.create_task(speak())
        while len(got) < len(sent):
            got.append((await bob.frame())[36:])
        await speaking
        assert got == sent
        assert server.router.counters.frames_dropped == 0


async def test_a_second_login_of_an_id_takes_over_and_gives_back() -> None:
    async with serving() as (_, url), RelayClient.login(url, key=KEY) as first, RelayClient.login(url) as other:
        async with RelayClient.login(url, key=KEY) as second:
            assert await first.frame() == b"\x0d\x01"
            await other.send(first, b"to the newest")
            assert (await second.frame()).endswith(b"to the newest")
        assert await first.frame() == b"\x0d\x00"
        await other.send(first, b"to the one left")
        assert (await first.frame()).endswith(b"to the one left")


async def test_pages() -> None:
    async with serving() as (_, url):
        assert (await ask(url, "/ping"))[::2] == (200, "")
        status, head, body = await ask(url, "/healthz")
        assert (status, body) == (200, '{"status": "ok", "clients": 0}\n')
        assert "application/json" in head
        assert (await ask(url, "/generate_204"))[0] == 204
        assert (await ask(url, "/favicon.ico"))[0] == 404
        async with RelayClient.login(url) as alice:
            await alice.send(bytes(32), b"to nobody")
            await alice.socket.send(b"\x0912345678")
            assert await alice.frame() == b"\x0a12345678"
            _, head, body = await ask(url, "/metrics")
            assert "text/plain; version=0.0.4" in head
            assert "\npsyche_relay_clients 1\n" in body
            assert "\npsyche_relay_frames_without_receiver_total 1\n" in body
            assert alice.id.hex()[:8] not in body


async def test_metrics_are_for_this_machine_unless_they_are_public() -> None:
    async with serving() as (server, _):
        assert server.router.pages["/metrics"]("192.0.2.1") is None
        assert server.router.pages["/metrics"]("127.0.0.1") is not None
    async with RelayServer(OpenAccess(), hosts=["127.0.0.2"], port=0) as server:  # who comes from our own address is here, too
        assert server.router.pages["/metrics"]("127.0.0.2") is not None
        assert server.router.pages["/metrics"]("127.0.0.3") is None
    async with serving(public_metrics=True) as (server, _):
        assert server.router.pages["/metrics"]("192.0.2.1") is not None


async def test_a_port_that_is_taken_is_named() -> None:
    async with serving() as (server, _):
        with pytest.raises(UserError, match=f"port {server.port} of 127.0.0.1: .*in use"):
            async with RelayServer(OpenAccess(), hosts=["127.0.0.1"], port=server.port):
                pass


async def test_both_families_have_one_port() -> None:
    async with RelayServer(OpenAccess(), hosts=["127.0.0.1", "::1"], port=0) as server:
        for host in ("127.0.0.1", "[::1]"):
            async with RelayClient.login(f"http://{host}:{server.port}"):
                pass


# ------------------------------------------------------------------------------------------------------------------ access
async def test_tokens() -> None:
    async with serving(TokenAccess(["secret"])) as (server, url):
        async with RelayClient.login(url, token="secret"):
            pass
        for token in ("wrong", None):
            with pytest.raises(Refused, match="needs a token: not authorized"):
                async with RelayClient.login(url, token=token):
                    pass
        assert server.router.counters.logins_denied == 2


async def test_a_member_that_is_removed_is_disconnected_and_stays_out() -> None:
    members = MemberAccess()
    async with serving(members, admission_seconds=0.2) as (server, url):
        members.replace([bytes(KEY.verify_key)])
        async with RelayClient.login(url, key=KEY) as client:
            members.replace([])
            server.reconsider()
            assert await client.closed() == 1008
        with pytest.raises(Refused, match="members of a run only"):
            async with RelayClient.login(url, key=KEY):
                pass


async def test_a_client_may_come_a_little_before_it_is_a_member() -> None:
    members = MemberAccess()
    async with serving(members) as (server, url):
        login = asyncio.create_task(_log_in_and_out(url))
        await until(lambda: any(connection.client and connection.client.key for connection in server._connections))
        members.replace([bytes(KEY.verify_key)])
        server.reconsider()
        await asyncio.wait_for(login, TIMEOUT)


async def _log_in_and_out(url: str) -> None:
    async with RelayClient.login(url, key=KEY):
        pass


# ------------------------------------------------------------------------------------------------------------------ limits
async def test_too_many_connections_of_an_address_are_closed_before_a_word() -> None:
    async with serving(connections_per_address=2) as (server, url):
        async with RelayClient.login(url) as alice, RelayClient.login(url) as bob:
            with pytest.raises((ConnectionError, InvalidMessage)):
                async with RelayClient.login(url):
                    pass
            assert server.router.counters.connections_refused >= 1
            await alice.send(bob, b"still here")
            assert (await bob.frame()).endswith(b"still here")
        await until(lambda: not server._connections)
        async with RelayClient.login(url):
            pass


async def test_who_proves_a_key_gets_in_while_silent_connections_fill_every_place() -> None:
    """Sixteen places for who has proved nothing, all taken, and as many more come meanwhile."""
    async with serving(MemberAccess(), clients=4, connections=20, connections_per_address=16) as (server, url):
        access = server.router.access
        assert isinstance(access, MemberAccess)
        keys = [SigningKey.generate() for _ in range(4)]
        access.replace(bytes(key.verify_key) for key in keys)
        port = int(url.rpartition(":")[2])

        async def silent() -> asyncio.StreamWriter:
            return (await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)))[1]

        strangers = [await silent() for _ in range(16)]
        await until(lambda: server._admission.waiting == 16)
        async with contextlib.AsyncExitStack() as stack:
            members = [await stack.enter_async_context(RelayClient.login(url, key=key)) for key in keys]
            strangers += [await silent() for _ in range(16)]
            await until(lambda: server.router.counters.crowded_out >= 16)
            assert server.router.client_count == 4
            await members[0].send(members[1], b"still here")
            assert (await members[1].frame()).endswith(b"still here")
        for stranger in strangers:
            stranger.close()
        await until(lambda: not server._connections)
        assert server._admission.total == server._admission.waiting == 0


async def test_members_of_one_address_are_not_counted_against_it() -> None:
    async with serving(MemberAccess(), connections_per_address=2) as (server, url), contextlib.AsyncExitStack() as stack:
        access = server.router.access
        assert isinstance(access, MemberAccess)
        keys = [SigningKey.generate() for _ in range(5)]
        access.replace(bytes(key.verify_key) for key in keys)
        for key in keys:
            await stack.enter_async_context(RelayClient.login(url, key=key))
        assert server.router.client_count == 5


async def test_a_rate_limit_slows_a_client_down_and_says_so() -> None:
    async with serving(client_rate=400_000.0) as (server, url), RelayClient.login(url) as alice, RelayClient.login(url) as bob:

        async def speak() -> None:
            for _ in range(60):
                await alice.send(bob, random_bytes(10_000))

        speaking = asyncio.create_task(speak())
        for _ in range(60):
            assert len(await bob.frame()) == 10_036
        await speaking
        assert server.router.counters.rate_limited > 0
        assert await alice.frame() == b"\x0d\x02"
        assert server.router.counters.frames_dropped == 0, "the sender waits, nothing is lost"


async def test_who_says_nothing_is_disconnected() -> None:
    async with serving(handshake_seconds=0.3) as (server, url):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await asyncio.wait_for(reader.read(), TIMEOUT) == b""
        writer.close()
        async with open_socket(url) as socket:
            await received(socket)
            with pytest.raises(ConnectionClosed):
                await received(socket)
        assert server.router.counters.handshake_timeouts == 2


async def test_a_silent_client_must_answer_pings() -> None:
    async with serving(ping_seconds=0.2, ping_jitter_seconds=0.0, pong_seconds=0.4) as (server, url):
        async with RelayClient.login(url) as alice:
            for _ in range(2):
                ping = await alice.frame()
                assert (ping[0], len(ping)) == (9, 9)
                await alice.socket.send(b"\x0a" + ping[1:])
            assert await alice.closed() == 1001
        assert server.router.counters.ping_timeouts == 1


# ----------------------------------------------------------------------------------------------------------------- attacks
async def test_a_reader_that_stalls_costs_its_queue_and_is_closed_while_others_go_on() -> None:
    async with serving(write_seconds=0.5, queue_bytes=2**20) as (server, url):
        async with RelayClient.login(url) as alice, RelayClient.login(url) as bob:
            async with RelayClient.login(url, max_queue=1) as stalled:
                stalled.socket.transport.pause_reading()
                peak = 0
                while not server.router.counters.write_timeouts:
                    await alice.send(stalled, bytes(60_000))
                    await alice.send(bob, b"and you?")
                    assert (await bob.frame()).endswith(b"and you?")
                    peak = max(peak, server.router.queued_bytes)
                assert peak <= 2**20 + 100_000
                assert server.router.counters.frames_dropped > 0
            await until(lambda: server.router.client_count == 2)
            assert server.router.queued_bytes == 0


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what its kernel keeps")
async def test_the_kernel_keeps_little_for_a_reader_that_stalls_and_nothing_once_it_is_cut_off() -> None:
    async with serving(write_seconds=0.5) as (server, url), RelayClient.login(url) as alice:
        async with RelayClient.login(url, max_queue=1) as stalled:
            stalled.socket.transport.pause_reading()
            sockets = [
                connection._transport.get_extra_info("socket") for connection in server._connections if connection._transport
            ]
            most = 0
            while not server.router.counters.write_timeouts:
                await alice.send(stalled, bytes(60_000))
                await asyncio.sleep(0)
                most = max(most, *(kept_for(each) for each in sockets if each.fileno() >= 0))
            assert 100_000 < most < 2 * server.limits.send_buffer_bytes + 100_000
            await until(lambda: len(server._connections) == 1)
            assert closed_with_bytes_to_send(server.port) == 0


def kept_for(connection: socket.socket) -> int:
    """The bytes of kernel memory that wait to be sent, the kernel's structures included."""
    so_meminfo, write_queue = 55, 5
    return int(struct.unpack("9I", connection.getsockopt(socket.SOL_SOCKET, so_meminfo, 36))[write_queue])


def closed_with_bytes_to_send(port: int) -> int:
    """How many sockets of this port are closed, and still hold bytes for the other side."""
    fin_wait = "04"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == fin_wait for row in rows)


@pytest.mark.parametrize("before", [False, True])
async def test_an_empty_frame_is_called_one(before: bool) -> None:
    async with serving() as (_, url), contextlib.AsyncExitStack() as stack:
        if before:
            socket = await stack.enter_async_context(open_socket(url))
            await received(socket)
        else:
            socket = (await stack.enter_async_context(RelayClient.login(url))).socket
        await socket.send(b"")
        reasons = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                reasons.append((await received(socket)).decode(errors="replace"))
        reasons.append(socket.close_reason or "")
        assert "got an empty frame" in " ".join(reasons)


HOSTILE = {
    "unknown type": (b"\x3f" + bytes(40), 1002),
    "too large for a frame": (b"\x04" + bytes(65_537), 1009),
    "too large for a message": (bytes(2**20 + 1), 1009),
    "short": (b"\x04" + bytes(20), 1002),
    "empty": (b"", 1002),
    "a frame of the relay": (b"\x02", 1002),
    "no payload": (b"\x04" + bytes(33), 1002),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_forbidden_frame_closes_its_sender_and_nobody_else(name: str) -> None:
    frame, code = HOSTILE[name]
    async with serving() as (server, url), RelayClient.login(url) as alice, RelayClient.login(url) as bob:
        async with RelayClient.login(url) as mallory:
            with contextlib.suppress(ConnectionClosed):  # while it still writes
                await mallory.socket.send(frame)
            assert await mallory.closed() in {code, 1006}
        assert server.router.counters.protocol_errors == 1
        await alice.send(bob, b"undisturbed")
        assert (await bob.frame()).endswith(b"undisturbed")


async def test_an_id_cannot_be_forged_nor_a_login_replayed() -> None:
    async with serving() as (server, url):
        async with open_socket(url) as socket:
            seen = answer(KEY, await received(socket))
            await socket.send(seen)
            assert await received(socket) == b"\x02"
        forged = answer(SigningKey(b"\x02" * 32), b"\x00" + bytes(16))
        for frame in (seen, seen[:1] + bytes(32) + seen[33:], forged, b"\x01" + bytes(KEY.verify_key) + b"\x40" + bytes(64)):
            async with open_socket(url) as socket:
                await received(socket)
                await socket.send(frame)
                assert (await received(socket))[0] == 3
        assert (server.router.counters.logins, server.router.counters.logins_failed) == (1, 4)


async def test_a_sender_s_id_is_the_proven_one_whatever_it_writes() -> None:
    async with serving() as (_, url), RelayClient.login(url) as alice, RelayClient.login(url) as mallory:
        await mallory.socket.send(b"\x06" + alice.id + b"\x00as if from alice")
        assert await mallory.closed() == 1002
        async with RelayClient.login(url) as bob:
            await bob.send(alice, b"\x07" + mallory.id)
            frame = b""
            while not frame.startswith(b"\x07"):
                frame = await alice.frame()
            assert frame[1:33] == bob.id


async def test_without_a_known_version_there_is_no_websocket() -> None:
    async with serving() as (_, url):
        with pytest.raises(InvalidStatus) as refused:
            async with open_socket(url, versions=["iroh-relay-v9"]):
                pass
        assert refused.value.response.status_code == 400


async def test_raw_websocket_attacks_end_the_connection() -> None:
    async with serving() as (server, url):
        for number, attack in enumerate(
            (
                Frame(Opcode.BINARY, bytes(98)).serialize(mask=False),
                b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff" + bytes(4),
                b"\xf2\x80" + bytes(4),
                b"".join(Frame(Opcode.CONT if n else Opcode.BINARY, b"x", False).serialize(mask=True) for n in range(100)),
                Frame(Opcode.PING, bytes(125)).serialize(mask=True) * 100,
            ),
            1,
        ):
            async with open_socket(url) as socket:
                await received(socket)
                socket.transport.write(attack)
                await RelayClient(socket, KEY).closed()
            assert server.router.counters.protocol_errors == number


# ------------------------------------------------------------------------------------------------------------------ its end
async def test_draining_tells_the_clients_sends_what_waits_and_closes() -> None:
    async with serving() as (server, url), RelayClient.login(url) as alice, RelayClient.login(url) as bob:
        await alice.send(bob, b"before the end")
        await until(lambda: server.router.counters.frames_forwarded == 1)
        draining = asyncio.create_task(server.drain(seconds=TIMEOUT))
        assert (await bob.frame()).endswith(b"before the end")
        assert (await bob.frame())[:1] == b"\x0c"
        assert await bob.closed() == 1001
        assert await alice.closed() == 1001
        await draining
        with pytest.raises(ConnectionRefusedError):
            async with RelayClient.login(url):
                pass


async def test_draining_does_not_wait_for_who_never_leaves() -> None:
    async with serving(linger_seconds=0.3) as (server, url):
        async with RelayClient.login(url) as alice:
            alice.socket.transport.pause_reading()
            await asyncio.wait_for(server.drain(seconds=TIMEOUT), TIMEOUT / 2)
            alice.socket.transport.resume_reading()


async def test_who_comes_and_goes_is_logged_without_strangers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "psyche.relay"):
        async with serving() as (server, url):
            async with RelayClient.login(url, key=KEY):
                pass
            async with open_socket(url) as socket:
                await received(socket)
                await socket.send(b"nonsense")
                await socket.wait_closed()
            await until(lambda: not server._connections)
    short = bytes(KEY.verify_key).hex()[:10]
    assert [record.getMessage() for record in caplog.records if record.name == "psyche.relay"] == [
        f"{short} connected from 127.0.0.1 (iroh-relay-v2)",
        f"{short} disconnected: it closed the connection",
    ]


async def test_a_refused_login_is_logged_once_with_its_address_until_it_was_admitted(caplog: pytest.LogCaptureFixture) -> None:
    async def refused_times(url: str, times: int) -> None:
        for _ in range(times):
            with pytest.raises(Refused):
                async with RelayClient.login(url, key=KEY, token="wrong"):
                    pass

    with caplog.at_level(logging.INFO, "psyche.relay"):
        access = TokenAccess(["right"])
        async with serving(access) as (_, url):
            await refused_times(url, 5)
            assert len(refusals(caplog)) == 1
            access.replace(["wrong"])
            async with RelayClient.login(url, key=KEY, token="wrong"):
                pass
            access.replace(["right"])
            await refused_times(url, 2)
    short = bytes(KEY.verify_key).hex()[:10]
    assert refusals(caplog) == 2 * [f"{short} refused, from 127.0.0.1: this relay needs a token: not authorized"]


async def test_a_flood_of_refused_logins_is_logged_briefly(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "psyche.relay"):
        async with serving(TokenAccess(["right"])) as (_, url):
            for _ in range(40):
                with pytest.raises(Refused):
                    async with RelayClient.login(url, token="wrong"):
                        pass
    assert 20 <= len(refusals(caplog)) < 40


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]


async def test_who_is_admitted_when_the_members_change_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "psyche.relay"):
        access = MemberAccess()
        async with serving(access) as (server, url):
            coming = asyncio.create_task(_stay(url))
            await until(lambda: any(each.client and each.client.key for each in server._connections))
            access.replace([bytes(KEY.verify_key)])
            server.reconsider()
            await until(lambda: "connected from" in caplog.text)
            assert server._admission.waiting == 0
            access.replace([])
            server.reconsider()
            assert await coming == 1008
    assert "disconnected: this relay serves the members of a run only" in caplog.text


async def _stay(url: str) -> int:
    async with RelayClient.login(url, key=KEY) as client:
        return await client.closed()
