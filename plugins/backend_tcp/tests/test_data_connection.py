"""The connection to a data server: lost, silent, slow, of another version, or given up half way."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from anyio.abc import IPSockAddrType, SocketAttribute, SocketStream

from plugins.backend_tcp.tests.data_parts import LENGTH, TIMEOUT, Numbers, data_of, expected, holder, own, playing
from psyche_backend_tcp.connections.addresses import parse_address
from psyche_backend_tcp.data.protocol import (
    AtWork,
    Cancel,
    DataBye,
    SamplesChunk,
    SamplesHead,
    SamplesRequest,
    decode_data,
    encode_client,
)
from psyche_backend_tcp.data.provider import ServerData, ServerSettings
from psyche_backend_tcp.limits import Limits
from psyche_core.errors import DataError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId, total_samples
from psyche_core.wire.codec import encode
from psyche_core.wire.signing import SecretKey


class Wide(DataProvider):
    """Samples far larger than what a connection's buffers take in."""

    sequence_length = 24 * 1024 * 1024
    num_sequences = 1

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        count = total_samples(tuple(batches))
        return Samples(bytes(2 * self.sequence_length * count), count, self.sequence_length, 2)

    async def aclose(self) -> None:
        """Nothing is open."""


class Relay:
    """Passes bytes on both ways; those of the first connection vanish while `swallow` is set, and nobody is told."""

    def __init__(self, target: str) -> None:
        self._target = parse_address(target)
        self.swallow = False
        self.connections = 0
        self.address = ""

    async def serve(self, near: SocketStream) -> None:
        self.connections += 1
        first = self.connections == 1
        async with near, await anyio.connect_tcp(self._target.host, self._target.port) as far:
            async with anyio.create_task_group() as group:
                group.start_soon(self._pass_on, near, far, first)
                group.start_soon(self._pass_on, far, near, first)

    async def _pass_on(self, source: SocketStream, target: SocketStream, first: bool) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                chunk = await source.receive()
                if not (first and self.swallow):
                    await target.send(chunk)


@asynccontextmanager
async def silent_relay(target: str) -> AsyncIterator[Relay]:
    relay = Relay(target)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        host, port = cast("IPSockAddrType", listener.extra(SocketAttribute.local_address))
        relay.address = f"{host}:{port}{target[target.index('#') :]}" if "#" in target else f"{host}:{port}"
        group.start_soon(listener.serve, relay.serve)
        yield relay
        group.cancel_scope.cancel()


async def test_b60_answer_to_a_given_up_request_is_not_taken_for_the_next(serving: Any, keys: list[SecretKey]) -> None:
    state = playing(keys)
    slot = holder(state, 14)
    numbers = Numbers()
    first = own(state, slot)[0].first
    wanted = first if first != 14 else 15
    async with serving(state=state, data=numbers) as server, data_of(server, keys[slot]) as data:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: data.read([BatchId(14, 14)], timeout=TIMEOUT))
            await numbers.blocked.wait()
            group.cancel_scope.cancel()
        numbers.go.set()
        assert (await data.read([BatchId(wanted, wanted)], timeout=TIMEOUT)).tokens == expected([wanted])


async def test_cancelled_request_is_not_read_on_and_the_next_one_is(serving: Any, keys: list[SecretKey]) -> None:
    """The provider hangs on 14 for ever: only a server that hears the cancel gets to anything after it."""
    state = playing(keys)
    slot = holder(state, 14)
    wanted = next(n for batch in own(state, slot) for n in range(batch.first, batch.last + 1) if n not in (13, 14))
    numbers = Numbers()
    async with serving(state=state, data=numbers) as server, data_of(server, keys[slot]) as data:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: data.read([BatchId(14, 14)], timeout=TIMEOUT))
            await numbers.blocked.wait()
            group.cancel_scope.cancel()
        assert (await data.read([BatchId(wanted, wanted)], timeout=TIMEOUT)).tokens == expected([wanted])
        assert not numbers.go.is_set()


async def test_slow_read_is_told_by_signs_of_life(serving: Any, keys: list[SecretKey], monkeypatch: pytest.MonkeyPatch) -> None:
    """The read takes several silences, during which the server only says that it is at work; the connection is kept."""
    monkeypatch.setattr("psyche_backend_tcp.data.shared_connection.SILENCE_SECONDS", 0.6)
    state = playing(keys)
    slot = holder(state, 14)
    numbers = Numbers()
    limits = Limits(data_alive_seconds=0.05)
    async with serving(state=state, data=numbers, limits=limits) as server, data_of(server, keys[slot]) as data:
        link = data._connection
        async with anyio.create_task_group() as group:

            async def let_go_later() -> None:
                await numbers.blocked.wait()
                await anyio.sleep(2.0)
                numbers.go.set()

            group.start_soon(let_go_later)
            assert (await data.read([BatchId(14, 14)], timeout=TIMEOUT)).tokens == expected([14])
        assert data._connection is link, "one connection, never given up"
        assert numbers.reads == 1 + 1


async def test_idle_connection_is_closed_and_opened_again_unnoticed(serving: Any, keys: list[SecretKey]) -> None:
    state = playing(keys, samples=12)
    async with serving(state=state, data=Numbers(), limits=Limits(data_idle_seconds=0.05)) as server:
        async with data_of(server, keys[0]) as data:
            first = data._connection
            with anyio.fail_after(TIMEOUT):
                while server._data._listener._inside:
                    await anyio.sleep(0.01)
            assert (await data.read(own(state, 0), timeout=TIMEOUT)).count == total_samples(own(state, 0))
            assert data._connection is not first


async def test_client_of_version_1_is_told_so(serving: Any, raw: Any, login: Any, keys: list[SecretKey]) -> None:
    async with serving(state=playing(keys), data=Numbers()) as server:
        frames = await raw(server.data_address)
        await login(frames, keys[0], server)
        await frames.send(encode([1, 1, [[0, 0]]]))
        with anyio.fail_after(TIMEOUT):
            assert decode_data(await frames.receive()) == DataBye(
                "VersionMismatch", "the client speaks version 1 of the data protocol, we speak 2; install matching releases"
            )
        await frames.aclose()


async def test_server_of_version_1_is_refused(serving: Any, keys: list[SecretKey]) -> None:
    async with serving(state=playing(keys), data=Numbers()) as server:
        server._data._listener.facts = {"sequence_length": LENGTH, "num_sequences": 100, "token_size": 2}
        with pytest.raises(DataError, match="speaks version 1 of the data protocol, we speak 2"):
            async with data_of(server, keys[0]):
                pass


async def test_lost_connection_is_opened_again(serving: Any, keys: list[SecretKey]) -> None:
    state = playing(keys, samples=12)
    async with serving(state=state, data=Numbers()) as server, data_of(server, keys[0]) as data:
        assert data._connection is not None
        await data._connection._frames.aclose()
        assert (await data.read(own(state, 0), timeout=TIMEOUT)).count == total_samples(own(state, 0))


async def test_half_open_connection_is_given_up_after_a_silence(
    serving: Any, keys: list[SecretKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut link can leave our end of a connection open for ever: the request is sent again on a new one."""
    monkeypatch.setattr("psyche_backend_tcp.data.shared_connection.SILENCE_SECONDS", 0.5)
    state = playing(keys, samples=12)
    async with serving(state=state, data=Numbers()) as server, silent_relay(server.data_address) as relay:
        context = DataContext(settings=ServerSettings(location=relay.address), sequence_length=LENGTH, key=keys[0])
        async with ServerData(context) as data:
            relay.swallow = True
            with anyio.fail_after(TIMEOUT):
                assert (await data.read(own(state, 0), timeout=TIMEOUT)).count == total_samples(own(state, 0))
    assert relay.connections == 2


async def test_unreachable_server_is_a_data_error_with_the_reason(serving: Any, keys: list[SecretKey]) -> None:
    state = playing(keys, samples=12)
    async with serving(state=state, data=Numbers()) as server, data_of(server, keys[0]) as data:
        await server.aclose()
        with pytest.raises(DataError, match=r"no samples from the data server at 127.*within 0\.5 s: "):
            await data.read(own(state, 0), timeout=0.5)
    with pytest.raises(DataError, match="cannot be used: cannot connect to"):
        async with data_of(server, keys[0]):
            pass


async def test_slow_server_is_a_timeout(serving: Any, keys: list[SecretKey]) -> None:
    state = playing(keys)
    slot = holder(state, 14)
    async with serving(state=state, data=Numbers()) as server, data_of(server, keys[slot]) as data:
        with pytest.raises(TimeoutError):
            await data.read([BatchId(14, 14)], timeout=0.1)


async def test_coordinator_port_is_told_apart(serving: Any, keys: list[SecretKey]) -> None:
    async with serving(state=playing(keys), data=Numbers()) as server:
        context = DataContext(settings=ServerSettings(location=server.address), sequence_length=LENGTH, key=keys[0])
        with pytest.raises(DataError, match="this is a coordinator server, expected a data server"):
            async with ServerData(context):
                pass


async def test_cancelled_answer_stops_coming(serving: Any, raw: Any, login: Any, keys: list[SecretKey]) -> None:
    """The peer reads nothing until it has cancelled: what the system's buffers hold comes, then nothing more."""
    state = playing(keys, samples=2000)
    share = own(state, 0)
    first = share[0].first + 20
    wide = Wide()
    async with serving(state=state, data=wide) as server:
        frames = await raw(server.data_address)
        await login(frames, keys[0], server)
        await frames.send(encode_client(SamplesRequest(1, (BatchId(first, first),))))
        with anyio.fail_after(TIMEOUT):
            assert isinstance(decode_data(await frames.receive()), SamplesHead)
            await frames.send(encode_client(Cancel(1)), encode_client(SamplesRequest(2, (BatchId(first, first),))))
            got = 0
            while not isinstance(message := decode_data(await frames.receive()), SamplesHead):
                got += len(message.chunk) if isinstance(message, SamplesChunk) else 0
                assert isinstance(message, SamplesChunk | AtWork)
        assert got < wide.sequence_length * 2, "the first answer was not sent to its end"
        await frames.aclose()
