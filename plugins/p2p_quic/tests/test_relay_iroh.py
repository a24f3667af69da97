"""Stock iroh endpoints through our relay, from Python and from node: nothing of our transport is used at their side."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import iroh
import pytest

from plugins.p2p_quic.tests.relay_parts import TIMEOUT, serving
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.address_observer import protocol as observer_protocol
from psyche_p2p_quic.address_observer.protocol import Observation
from psyche_p2p_quic.address_observer.server import Observer, ObserverLimits
from psyche_p2p_quic.relay.access import MemberAccess, TokenAccess

pytestmark = [pytest.mark.quic, pytest.mark.anyio]
ALPN = b"relay-test/1"
MODULES = Path(sys.prefix) / "iroh-node" / "node_modules"
"""Where `make setup` puts the npm package: tests have no network."""

NODE_CLIENT = Path(__file__).with_name("iroh_node_client.cjs")


class _Loopback(iroh.Preset):
    def apply(self, builder: Any) -> None:
        builder.apply_minimal()
        builder.bind_addr("127.0.0.1:0")
        builder.bind_addr("[::1]:0")


@contextlib.asynccontextmanager
async def endpoint(url: str | None, *, token: str | None = None, seed: bytes | None = None) -> AsyncIterator[Any]:
    """An endpoint with that relay."""
    mode = iroh.RelayMode.disabled()
    if url is not None:
        relays = iroh.RelayMap.empty()
        relays.insert(iroh.RelayConfig(url=url, quic_port=None, auth_token=token))
        mode = iroh.RelayMode.custom(relays)
    made = await iroh.Endpoint.bind(
        iroh.EndpointOptions(preset=_Loopback(), relay_mode=mode, secret_key=seed or SecretKey.generate().seed, alpns=[ALPN])
    )
    try:
        yield made
    finally:
        await made.close()


async def within(awaitable: Any, seconds: float = TIMEOUT) -> Any:
    return await asyncio.wait_for(awaitable, seconds)


async def echo_once(server: Any) -> None:
    """Accept one connection and one stream, and send back what comes."""
    incoming = await server.accept_next()
    connection = await (await incoming.accept()).connect()
    stream = await connection.accept_bi()
    await stream.send().write_all(bytes(await stream.recv().read_to_end(2**22)))
    await stream.send().finish()
    await connection.closed()


async def echoed(client: Any, target: Any, payload: bytes) -> bytes:
    connection = await within(client.connect(target, ALPN))
    stream = await within(connection.open_bi())
    await within(stream.send().write_all(payload))
    await within(stream.send().finish())
    answer = bytes(await within(stream.recv().read_to_end(2**22)))
    connection.close(0, b"")
    return answer


async def test_endpoints_meet_through_the_relay_and_know_only_its_url() -> None:
    async with serving() as (relay, url), endpoint(url) as alice, endpoint(url) as bob:
        await within(alice.online())
        await within(bob.online())
        assert relay.router.client_count == 2
        answering = asyncio.create_task(echo_once(bob))
        payload = bytes(range(256)) * 1000
        assert await echoed(alice, iroh.EndpointAddr(bob.id(), url, []), payload) == payload
        assert relay.router.counters.frames_forwarded >= 2
        assert relay.router.counters.protocol_errors == relay.router.counters.logins_failed == 0
        await within(answering)


async def test_an_endpoint_with_a_token_is_online_and_one_without_is_not() -> None:
    async with serving(TokenAccess(["secret"])) as (relay, url):
        async with endpoint(url, token="secret") as alice:
            await within(alice.online())
        async with endpoint(url) as bob:
            online = asyncio.ensure_future(bob.online())
            async with asyncio.timeout(TIMEOUT):
                while relay.router.counters.logins_denied < 2:  # it has been refused, and has tried again
                    await asyncio.sleep(0.01)
            assert not online.done()
            online.cancel()
            await asyncio.gather(online, return_exceptions=True)


async def test_an_endpoint_that_becomes_a_member_is_let_in_and_one_that_is_removed_is_not() -> None:
    members = MemberAccess()
    key = SecretKey.generate()
    async with serving(members, admission_seconds=0.2) as (relay, url), endpoint(url, seed=key.seed) as alice:
        online = asyncio.ensure_future(alice.online())
        async with asyncio.timeout(TIMEOUT):
            while not relay.router.counters.logins_denied:
                await asyncio.sleep(0.01)
            members.replace([key.public])
            relay.reconsider()
            await online
            assert relay.router.is_connected(key.public)
            members.replace([])
            relay.reconsider()
            denied = relay.router.counters.logins_denied
            while relay.router.counters.logins_denied == denied:
                await asyncio.sleep(0.01)
            assert not relay.router.is_connected(key.public)


# ------------------------------------------------------------------------------------------------------- address observer


async def observe(caller: Any, observer: Observer) -> tuple[Any, Observation]:
    target = iroh.EndpointAddr(iroh.EndpointId.from_bytes(observer.location.key), None, [f"127.0.0.1:{observer.location.port}"])
    connection = await within(caller.connect(target, observer_protocol.ALPN))
    stream = await within(connection.accept_uni())
    return connection, Observation.decode(bytes(await within(stream.read_to_end(observer_protocol.MAX_OBSERVATION_BYTES))))


async def test_the_observer_tells_callers_their_address() -> None:
    async with Observer(SecretKey.generate(), hosts=["127.0.0.1"], port=0) as observer, endpoint(None) as alice:
        first, seen = await observe(alice, observer)
        assert str(seen) in alice.bound_sockets()
        assert observer.caller_count == 1
        _, again = await observe(alice, observer)
        assert str(again) in alice.bound_sockets()  # one of two: she may call over IPv4 now and over IPv6 then
        assert f"(code {observer_protocol.CLOSE_REPLACED})" in str(await within(first.closed()))
        assert observer.answered == 2


async def test_callers_prove_their_address_before_the_observer_answers() -> None:
    """Else anybody could make it send to a third party."""

    class Watched:
        """The endpoint; notes of each attempt but the first, which is awaited already, whether its address was proved."""

        def __init__(self, watched: Any) -> None:
            self.watched = watched
            self.proved: list[bool] = []

        async def accept_next(self) -> Any:
            incoming = await self.watched.accept_next()
            if incoming is not None:
                self.proved.append(await incoming.remote_addr_validated())
            return incoming

        def __getattr__(self, name: str) -> Any:
            return getattr(self.watched, name)

    async with Observer(SecretKey.generate(), hosts=["127.0.0.1"], port=0) as observer, endpoint(None) as alice:
        await asyncio.sleep(0)  # the observer waits for its first caller
        observer._endpoint = Watched(observer._endpoint)
        await observe(alice, observer)
        assert observer._endpoint.proved == [True]


async def test_the_observer_refuses_strangers_and_drops_who_is_none_of_its_callers_any_more() -> None:
    allowed = {SecretKey.generate().public}
    async with Observer(SecretKey.generate(), hosts=["127.0.0.1"], port=0, may_call=lambda key: key in allowed) as observer:
        async with endpoint(None) as alice:
            with pytest.raises(iroh.IrohError):
                await observe(alice, observer)
            allowed.add(bytes(alice.id().to_bytes()))
            connection, _ = await observe(alice, observer)
            allowed.clear()
            observer.reconsider()
            assert f"(code {observer_protocol.CLOSE_NOT_ALLOWED})" in str(await within(connection.closed()))


async def test_the_observer_closes_callers_that_speak() -> None:
    async with Observer(SecretKey.generate(), hosts=["127.0.0.1"], port=0) as observer, endpoint(None) as alice:
        connection, _ = await observe(alice, observer)
        stream = await within(connection.open_uni())
        await within(stream.write_all(b"something"))
        await within(connection.closed())
        connection, _ = await observe(alice, observer)
        connection.send_datagram(b"something")
        await within(connection.closed())
        async with asyncio.timeout(TIMEOUT):
            while observer.caller_count:
                await asyncio.sleep(0.01)


async def test_the_observer_has_room_for_so_many() -> None:
    limits = ObserverLimits(callers_per_address=1)
    async with Observer(SecretKey.generate(), hosts=["127.0.0.1"], port=0, limits=limits) as observer:
        async with endpoint(None) as alice, endpoint(None) as bob:
            connection, _ = await observe(alice, observer)
            with pytest.raises(iroh.IrohError):
                await observe(bob, observer)
            connection.close(0, b"")
            async with asyncio.timeout(TIMEOUT):
                while observer.caller_count:
                    await asyncio.sleep(0.01)
            await observe(bob, observer)


class HalfCall(asyncio.DatagramProtocol):
    """A caller that proves its address and never its key: what an endpoint sends passes, of what it gets only the retry."""

    def __init__(self, observer: Observer, source: str) -> None:
        self._to = ("127.0.0.1", observer.port)
        self._source = source
        self._caller: tuple[str, int] | None = None
        self._answers = 0
        self.port = 0

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._inner, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        self._outer, _ = await loop.create_datagram_endpoint(lambda: _Outer(self), local_addr=(self._source, 0))
        self.port = self._inner.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """From the caller."""
        self._caller = addr
        self._outer.sendto(data, self._to)

    def answered(self, data: bytes) -> None:
        """From the observer: the first datagram is the retry."""
        self._answers += 1
        if self._answers == 1:
            self._inner.sendto(data, self._caller)

    def close(self) -> None:
        self._inner.close()
        self._outer.close()


class _Outer(asyncio.DatagramProtocol):
    def __init__(self, half: HalfCall) -> None:
        self._half = half

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._half.answered(data)


async def test_calls_that_prove_no_key_fill_places_of_their_own_and_keep_nobody_out() -> None:
    """A flood of them from several addresses; callers that prove their keys get an answer, also from a flooding address."""
    limits = ObserverLimits(callers=4, handshakes=6, callers_per_address=4, handshake_seconds=TIMEOUT)
    async with contextlib.AsyncExitStack() as stack:
        observer = await stack.enter_async_context(Observer(SecretKey.generate(), hosts=["127.0.0.1"], port=0, limits=limits))
        key = iroh.EndpointId.from_bytes(observer.location.key)
        calls: list[asyncio.Future[Any]] = []
        for number in range(16):
            caller = await stack.enter_async_context(endpoint(None))
            half = HalfCall(observer, f"127.0.0.{1 + number % 4}")
            await half.open()
            stack.callback(half.close)
            target = iroh.EndpointAddr(key, None, [f"127.0.0.1:{half.port}"])
            calls.append(asyncio.ensure_future(caller.connect(target, observer_protocol.ALPN)))
        async with asyncio.timeout(TIMEOUT):
            while observer.crowded_out < 10:
                await asyncio.sleep(0.01)
        assert observer._admission.waiting == observer._admission.total == 6
        for answered in (1, 2):
            alice = await stack.enter_async_context(endpoint(None))
            await observe(alice, observer)
            assert observer.answered == answered
            assert observer._admission.waiting <= 6
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


# ------------------------------------------------------------------------------------------------------------------- node


async def test_an_endpoint_of_node_meets_one_of_python() -> None:
    if shutil.which("node") is None or not (MODULES / "@number0" / "iroh").is_dir():
        pytest.skip("needs node, and @number0/iroh in .venv/iroh-node, where `make setup` installs it when there is npm")

    async with serving() as (relay, url), endpoint(url) as bob:
        await within(bob.online())
        answering = asyncio.create_task(echo_once(bob))
        process = await asyncio.create_subprocess_exec(
            "node", "--no-deprecation", NODE_CLIENT, url, bytes(bob.id().to_bytes()).hex(),
            env={**os.environ, "NODE_PATH": str(MODULES)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await within(process.communicate(), 60)
        assert (process.returncode, output.decode()) == (0, "node is content\n")
        await within(answering)
        assert relay.router.counters.logins == 2
        assert relay.router.counters.frames_forwarded >= 2
        assert relay.router.counters.protocol_errors == relay.router.counters.logins_failed == 0
