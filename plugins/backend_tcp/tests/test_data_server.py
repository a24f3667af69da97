from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from psyche_backend_tcp.addresses import parse_address
from psyche_backend_tcp.data_client import ServerData, ServerSettings
from psyche_backend_tcp.data_protocol import (
    DataBye,
    RequestRefused,
    SamplesRefusal,
    SamplesRequest,
    check_request,
    decode_data,
    decode_request,
    encode_request,
)
from psyche_backend_tcp.limits import Limits
from psyche_core.coordinator.assignment import shares
from psyche_core.coordinator.state import Client, CoordinatorState, Epoch, Round
from psyche_core.errors import DataError, WireError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.testing.backend import small_state
from psyche_core.types import BatchId, ClientState, NodeIdentity, RunState, total_samples
from psyche_core.wire.codec import encode
from psyche_core.wire.signing import SecretKey

TIMEOUT = 10.0
LENGTH = 8


class Numbers(DataProvider):
    """Sample n is LENGTH times the number n mod 100; reading 13 fails, 14 blocks until `go`."""

    def __init__(self) -> None:
        self.go = anyio.Event()
        self.blocked = anyio.Event()
        self.reads = 0

    @property
    def sequence_length(self) -> int:
        return LENGTH

    @property
    def num_sequences(self) -> int:
        return 100

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        self.reads += 1
        numbers = [n % 100 for batch in batches for n in range(batch.first, batch.last + 1)]
        if 13 in numbers:
            message = "the disk is broken at /secret/path"
            raise IndexError(message)
        if 14 in numbers:
            self.blocked.set()
            with anyio.fail_after(timeout):
                await self.go.wait()
        return Samples(expected(numbers), len(numbers), LENGTH, 2)

    async def aclose(self) -> None:
        self.go.set()


def expected(numbers: Sequence[int]) -> bytes:
    return b"".join((n % 100).to_bytes(2, "little") * LENGTH for n in numbers)


def playing(keys: Sequence[SecretKey], *, samples: int = 30) -> CoordinatorState:
    """A state in the first round of an epoch of the first two keys, with samples 0.. to train."""
    clients = tuple(Client(NodeIdentity(key.public, key.public)) for key in keys[:2])
    round_ = Round(height=0, step=1, seed=7, slots=(0, 1), batches=(BatchId(0, samples - 1),))
    state = small_state()
    return replace(state, run_state=RunState.RoundTrain, epoch=Epoch(clients=clients, rounds=(round_,), start_time=state.since))


def own(state: CoordinatorState, slot: int) -> tuple[BatchId, ...]:
    return shares(state, state.epoch.rounds[0])[slot]


@asynccontextmanager
async def data_of(server: Any, key: SecretKey, *, length: int = LENGTH) -> AsyncIterator[ServerData]:
    context = DataContext(settings=ServerSettings(location=server.data_address), sequence_length=length, key=key)
    async with ServerData(context) as data:
        yield data


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
        host, port = listener.extra(SocketAttribute.local_address)
        relay.address = f"{host}:{port}{target[target.index('#') :]}" if "#" in target else f"{host}:{port}"
        group.start_soon(listener.serve, relay.serve)
        yield relay
        group.cancel_scope.cancel()


async def test_member_reads_its_share(serving: Any, keys: list[SecretKey]) -> None:
    state = playing(keys, samples=12)
    async with serving(state=state, data=Numbers()) as server:
        for slot in (0, 1):
            async with data_of(server, keys[slot]) as data:
                assert (data.sequence_length, data.num_sequences) == (LENGTH, 100)
                share = own(state, slot)
                samples = await data.read(share, timeout=TIMEOUT)
                numbers = [n for batch in share for n in range(batch.first, batch.last + 1)]
                assert samples == Samples(expected(numbers), len(numbers), LENGTH, 2)
                one = [BatchId(numbers[1], numbers[1])] * 3
                assert (await data.read(one, timeout=TIMEOUT)).tokens == expected([numbers[1]] * 3)


async def test_b16_refusals_and_failing_reads_do_not_stop_the_server(serving: Any, keys: list[SecretKey]) -> None:
    """The reference's server crashed on an out-of-range or inverted batch, and gave everybody everything."""
    state = playing(keys, samples=12)
    mine, other = own(state, 0), own(state, 1)
    async with serving(state=state, data=Numbers()) as server:
        async with data_of(server, keys[2]) as stranger:
            with pytest.raises(DataError, match="NotInEpoch"):
                await stranger.read(mine, timeout=TIMEOUT)
        async with data_of(server, keys[0]) as data:
            for batches in (other, [BatchId(0, 2**63 - 2)], [BatchId(0, 11)], [BatchId(5000, 5000)]):
                with pytest.raises(DataError, match=r"NotYours|TooLarge"):
                    await data.read(batches, timeout=TIMEOUT)
            assert (await data.read(mine, timeout=TIMEOUT)).count == total_samples(mine)


async def test_b16_inverted_and_malformed_requests_cost_only_their_connection(
    serving: Any, raw: Any, login: Any, keys: list[SecretKey]
) -> None:
    state = playing(keys)
    async with serving(state=state, data=Numbers()) as server:
        for bad in ([[5, 3]], [[-1, 3]], [[0, 2**63 - 1]], [[0, 2**64 - 1, 1]], [], [["a", 1]], [[0.5, 1.0]], [[0, 0]] * 1025):
            frames = await raw(server.data_address)
            await login(frames, keys[0], server)
            await frames.send(encode([1, 1, bad]))
            with anyio.fail_after(TIMEOUT):
                bye = decode_data(await frames.receive())
                assert isinstance(bye, DataBye)
                assert bye.code == "BadMessage"
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await frames.receive()
            await frames.aclose()
        async with data_of(server, keys[0]) as data:
            await data.read([BatchId(own(state, 0)[0].first, own(state, 0)[0].first)], timeout=TIMEOUT)


async def test_unreadable_samples_are_refused_without_details(serving: Any, keys: list[SecretKey]) -> None:
    state = playing(keys)
    slot = next(slot for slot in (0, 1) if any(batch.first <= 13 <= batch.last for batch in own(state, slot)))
    async with serving(state=state, data=Numbers()) as server, data_of(server, keys[slot]) as data:
        with pytest.raises(DataError, match="DataUnreadable") as refused:
            await data.read([BatchId(13, 13)], timeout=TIMEOUT)
        assert "secret" not in str(refused.value)


async def test_b60_answer_to_a_given_up_request_is_not_taken_for_the_next(serving: Any, keys: list[SecretKey]) -> None:
    state = playing(keys)
    slot = next(slot for slot in (0, 1) if any(batch.first <= 14 <= batch.last for batch in own(state, slot)))
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


async def test_large_share_comes_in_chunks_and_pieces(
    serving: Any, keys: list[SecretKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psyche_backend_tcp.data_server.CHUNK_BYTES", 48)
    state = playing([keys[0], keys[1]], samples=2300)
    share = own(state, 0)
    safe = [BatchId(n, n) for batch in share for n in range(batch.first, batch.last + 1) if n % 100 not in (13, 14)]
    numbers = Numbers()
    async with serving(state=state, data=numbers) as server, data_of(server, keys[0]) as data:
        samples = await data.read(safe, timeout=TIMEOUT)
    assert samples.tokens == expected([batch.first for batch in safe])
    assert numbers.reads == 1 + 2, "one read to learn the token size, then at most 1024 intervals a request"


async def test_lost_connection_is_opened_again(serving: Any, keys: list[SecretKey]) -> None:
    state = playing(keys, samples=12)
    async with serving(state=state, data=Numbers()) as server, data_of(server, keys[0]) as data:
        assert data._link is not None
        await data._link.frames.aclose()
        assert (await data.read(own(state, 0), timeout=TIMEOUT)).count == total_samples(own(state, 0))


async def test_half_open_connection_is_given_up_after_a_silence(
    serving: Any, keys: list[SecretKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut link can leave our end of a connection open for ever: the request is sent again on a new one."""
    monkeypatch.setattr("psyche_backend_tcp.data_client.SILENCE_SECONDS", 0.5)
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
    slot = next(slot for slot in (0, 1) if any(batch.first <= 14 <= batch.last for batch in own(state, slot)))
    async with serving(state=state, data=Numbers()) as server, data_of(server, keys[slot]) as data:
        with pytest.raises(TimeoutError):
            await data.read([BatchId(14, 14)], timeout=0.1)


async def test_other_sequence_length_is_refused_with_both(serving: Any, keys: list[SecretKey]) -> None:
    async with serving(state=playing(keys), data=Numbers()) as server:
        with pytest.raises(DataError, match="has sequences of 8 tokens, the run trains on 16"):
            async with data_of(server, keys[0], length=16):
                pass


async def test_coordinator_port_is_told_apart(serving: Any, keys: list[SecretKey]) -> None:
    async with serving(state=playing(keys), data=Numbers()) as server:
        context = DataContext(settings=ServerSettings(location=server.address), sequence_length=LENGTH, key=keys[0])
        with pytest.raises(DataError, match="this is a coordinator server, expected a data server"):
            async with ServerData(context):
                pass


async def test_requests_under_way_are_bounded(serving: Any, raw: Any, login: Any, keys: list[SecretKey]) -> None:
    state = playing(keys)
    slot = next(slot for slot in (0, 1) if any(batch.first <= 14 <= batch.last for batch in own(state, slot)))
    numbers = Numbers()
    async with serving(state=state, data=numbers, limits=Limits(data_requests=2)) as server:
        frames = await raw(server.data_address)
        await login(frames, keys[slot], server)
        await frames.send(*[encode_request(SamplesRequest(n, (BatchId(14, 14),))) for n in range(100)])
        await numbers.blocked.wait()
        await anyio.wait_all_tasks_blocked()
        assert numbers.reads == 2, "the one for the token size and one of this connection"
        await frames.aclose()


def test_who_may_read_what(keys: list[SecretKey]) -> None:
    state = playing(keys)
    alice = state.epoch.clients[0].id
    share = own(state, 0)

    def refusal(state: CoordinatorState, batches: Sequence[BatchId], who: NodeIdentity = alice, limit: int = 10**6) -> str:
        with pytest.raises(RequestRefused) as refused:
            check_request(state, who, batches, sample_bytes=16, max_bytes=limit)
        return refused.value.code

    check_request(state, alice, share, sample_bytes=16, max_bytes=10**6)
    check_request(state, alice, [BatchId(share[0].first, share[0].first)], sample_bytes=16, max_bytes=1)
    assert refusal(state, share, limit=16) == "TooLarge"
    assert refusal(state, [BatchId(share[0].first, share[-1].last + 1)]) == "NotYours"
    assert refusal(state, share, who=NodeIdentity(bytes(32), bytes(32))) == "NotInEpoch"
    withdrawn = replace(state.epoch.clients[0], state=ClientState.Withdrawn)
    state = replace(state, epoch=replace(state.epoch, clients=(withdrawn, state.epoch.clients[1])))
    assert refusal(state, share) == "NotInEpoch"


def test_data_messages_are_strict() -> None:
    request = SamplesRequest(3, (BatchId(1, 2), BatchId(9, 9)))
    assert decode_request(encode_request(request)) == request
    with pytest.raises(WireError):
        decode_data(encode([4, 1]))
    assert decode_data(encode([3, 1, "Code", "why"])) == SamplesRefusal(1, "Code", "why")


def test_missing_key_is_a_data_error() -> None:
    with pytest.raises(DataError, match="identity key"):
        ServerData(DataContext(settings=ServerSettings(location="127.0.0.1:1"), sequence_length=8))
