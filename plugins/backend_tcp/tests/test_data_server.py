"""The data server: who reads what, in which pieces, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from plugins.backend_tcp.tests.data_parts import LENGTH, TIMEOUT, Numbers, data_of, expected, holder, own, playing
from psyche_backend_tcp.data.protocol import (
    DataBye,
    RequestRefused,
    SamplesChunk,
    SamplesRequest,
    check_request,
    decode_data,
    encode_client,
)
from psyche_backend_tcp.data.provider import ServerData, ServerSettings
from psyche_backend_tcp.limits import Limits
from psyche_core.config.run_config import Choice
from psyche_core.coordinator.commands import Pause, UpdateConfig
from psyche_core.coordinator.state import CoordinatorState, OpenChallenge, Progress
from psyche_core.errors import DataError, NothingForUs
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import IGNORED_LABEL, DataProvider, Samples
from psyche_core.testing.backend import small_state
from psyche_core.types import BatchId, ClientState, NodeIdentity, total_samples
from psyche_core.wire.codec import encode
from psyche_core.wire.signing import SecretKey


class Conversations(DataProvider):
    """Rows of two texts, of which only the second is learnt; of every third sample the whole row is one text."""

    sequence_length = LENGTH
    num_sequences = 100

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        numbers = [n for batch in batches for n in range(batch.first, batch.last + 1)]
        learnt = [n if place > 3 else IGNORED_LABEL for n in numbers for place in range(LENGTH)]
        labels = b"".join(label.to_bytes(4, "little", signed=True) for label in learnt)
        positions = b"".join((place % 4).to_bytes(4, "little") for _ in numbers for place in range(LENGTH))
        lengths = tuple((LENGTH,) if n % 3 == 0 else (4, n % 4 + 1) for n in numbers)
        return Samples(expected(numbers), len(numbers), LENGTH, 2, labels, positions, lengths)

    async def aclose(self) -> None:
        """Nothing is open."""


async def test_what_the_owner_changes_leaves_the_data_server_its_key(serving: Any) -> None:
    """The place with its key is longer than a run's file allows: every change of a run with a data server was refused."""
    state = small_state()
    place = "data.example.org:20001"
    llm = state.model.LLM.model_copy(update={"data_location": Choice("Server", {"location": place})})
    model = state.model.model_copy(update={"LLM": llm})
    async with serving(state=replace(state, model=model), data=Numbers()) as server:
        published = server.state.model.LLM.data_location.settings["location"]
        assert published.startswith(f"{place}#")
        server.submit(Pause())
        stored = llm.model_copy(update={"checkpoint": Choice("Hub", {"repo_id": "friend/model"})})
        for changed in (None, server.state.model, model.model_copy(update={"LLM": stored})):
            server.submit(UpdateConfig(model=changed, progress=Progress(0, 2, 3)))
            assert server.state.model.LLM.data_location.settings == {"location": published}
        assert server.state.progress == Progress(0, 2, 3)
        assert server.state.model.LLM.checkpoint == Choice("Hub", {"repo_id": "friend/model"})


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


async def test_a_share_that_a_restored_coordinator_does_not_know_is_no_error_of_ours(serving: Any, keys: list[SecretKey]) -> None:
    """Its round is another one there; people saw an error, with nothing to do about it."""
    state = playing(keys, samples=12)
    async with serving(state=state, data=Numbers()) as server, data_of(server, keys[0]) as data:
        with pytest.raises(NothingForUs, match=r"nothing for us now \(NotYours\): .* Nothing has to be done"):
            await data.read(own(state, 1), timeout=TIMEOUT)


async def test_who_is_no_member_now_is_told_that_it_passes(serving: Any, keys: list[SecretKey]) -> None:
    """Withdrawn after a lost connection, say. It is given samples again as soon as the coordinator takes it back."""
    state = playing(keys, samples=12)
    mine = own(state, 0)
    lost = replace(state.epoch.clients[0], state=ClientState.Withdrawn)
    out = replace(state, epoch=replace(state.epoch, clients=(lost, *state.epoch.clients[1:])))
    async with serving(state=out, data=Numbers()) as server, data_of(server, keys[0]) as data:
        with pytest.raises(DataError) as refused:
            await data.read(mine, timeout=TIMEOUT)
        said = str(refused.value)
        assert isinstance(refused.value, NothingForUs)
        assert "has nothing for us now (NotInEpoch): the coordinator does not count us among the healthy members" in said
        assert "Nothing has to be done: these samples are trained by others, and we ask again" in said
        assert server._data is not None
        server._data._state = lambda: state
        assert (await data.read(mine, timeout=TIMEOUT)).count == total_samples(mine)


async def test_b16_inverted_and_malformed_requests_cost_only_their_connection(
    serving: Any, raw: Any, login: Any, keys: list[SecretKey]
) -> None:
    state = playing(keys)
    async with serving(state=state, data=Numbers()) as server:
        for bad in ([[5, 3]], [[-1, 3]], [[0, 2**63 - 1]], [[0, 2**64 - 1, 1]], [], [["a", 1]], [[0.5, 1.0]], [[0, 0]] * 1025):
            frames = await raw(server.data_address)
            await login(frames, keys[0], server)
            await frames.send(encode([3, 1, bad]))
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
    slot = holder(state, 13)
    async with serving(state=state, data=Numbers()) as server, data_of(server, keys[slot]) as data:
        with pytest.raises(DataError, match="DataUnreadable") as refused:
            await data.read([BatchId(13, 13)], timeout=TIMEOUT)
        assert "secret" not in str(refused.value)


async def test_large_share_comes_in_chunks_and_pieces(
    serving: Any, keys: list[SecretKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psyche_backend_tcp.data.provider.PIECE_BYTES", 50 * LENGTH * 2)
    state = playing([keys[0], keys[1]], samples=2300)
    safe = [BatchId(n, n) for batch in own(state, 0) for n in range(batch.first, batch.last + 1) if n % 100 not in (13, 14)]
    numbers = Numbers()
    limits = Limits(data_chunk=48, data_write=100)
    async with serving(state=state, data=numbers, limits=limits) as server, data_of(server, keys[0]) as data:
        samples = await data.read(safe, timeout=TIMEOUT)
    assert samples.tokens == expected([batch.first for batch in safe])
    assert numbers.reads == 1 + -(-len(safe) // 50), "one to learn the token size, then 50 samples a request"


async def test_scattered_samples_are_asked_for_in_requests_of_bounded_size(serving: Any, keys: list[SecretKey]) -> None:
    state = playing([keys[0], keys[1]], samples=2300)
    safe = [BatchId(n, n) for batch in own(state, 0) for n in range(batch.first, batch.last + 1) if n % 100 not in (13, 14)]
    numbers = Numbers()
    async with serving(state=state, data=numbers) as server, data_of(server, keys[0]) as data:
        assert (await data.read(safe, timeout=TIMEOUT)).count == len(safe) > 1024
    assert numbers.reads == 1 + 2, "at most 1024 intervals a request"


async def test_reads_at_once_share_a_connection_and_are_answered_as_they_come(serving: Any, keys: list[SecretKey]) -> None:
    state = playing(keys)
    slot = holder(state, 14)
    wanted = next(n for batch in own(state, slot) for n in range(batch.first, batch.last + 1) if n not in (13, 14))
    numbers = Numbers()
    found: dict[int, bytes] = {}
    async with serving(state=state, data=numbers) as server, data_of(server, keys[slot]) as data:

        async def read(number: int) -> None:
            found[number] = (await data.read([BatchId(number, number)], timeout=TIMEOUT)).tokens

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(read, 14)
            await numbers.blocked.wait()
            group.start_soon(read, wanted)
            await anyio.wait_all_tasks_blocked()
            assert found == {}
            numbers.go.set()
        assert found == {14: expected([14]), wanted: expected([wanted])}


async def test_labels_positions_and_lengths_are_carried(
    serving: Any, keys: list[SecretKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psyche_backend_tcp.data.provider.PIECE_BYTES", 3 * LENGTH * 2)
    state = playing(keys, samples=40)
    share = own(state, 0)
    provider = Conversations()
    async with serving(state=state, data=provider) as server, data_of(server, keys[0]) as data:
        samples = await data.read(share, timeout=TIMEOUT)
    assert samples == await provider.read(share, timeout=TIMEOUT)
    assert samples.labels is not None
    assert samples.position_ids is not None
    assert samples.sequence_lengths is not None


async def test_other_sequence_length_is_refused_with_both(serving: Any, keys: list[SecretKey]) -> None:
    async with serving(state=playing(keys), data=Numbers()) as server:
        with pytest.raises(DataError, match="has sequences of 8 tokens, the run trains on 16"):
            async with data_of(server, keys[0], length=16):
                pass


async def test_requests_under_way_are_bounded(serving: Any, raw: Any, login: Any, keys: list[SecretKey]) -> None:
    state = playing(keys)
    slot = holder(state, 14)
    numbers = Numbers()
    async with serving(state=state, data=numbers, limits=Limits(data_requests=2)) as server:
        frames = await raw(server.data_address)
        await login(frames, keys[slot], server)
        await frames.send(*[encode_client(SamplesRequest(n, (BatchId(14, 14),))) for n in range(100)])
        await numbers.blocked.wait()
        await anyio.wait_all_tasks_blocked()
        assert numbers.reads == 2, "the one for the token size and one of this connection"
        await frames.aclose()


async def test_answers_come_in_turns_and_a_small_one_need_not_wait(
    serving: Any, raw: Any, login: Any, keys: list[SecretKey]
) -> None:
    state = playing(keys, samples=2000)
    share = own(state, 0)
    numbers = Numbers()
    first = share[0].first + 20
    large = (BatchId(first, first),) * 1000
    async with serving(state=state, data=numbers, limits=Limits(data_chunk=16, data_write=16)) as server:
        frames = await raw(server.data_address)
        await login(frames, keys[0], server)
        await frames.send(encode_client(SamplesRequest(1, large)), encode_client(SamplesRequest(2, large[:1])))
        seen: list[int] = []
        with anyio.fail_after(TIMEOUT):
            while seen.count(1) < 1000 or 2 not in seen:
                message = decode_data(await frames.receive())
                if isinstance(message, SamplesChunk):
                    seen.append(message.number)
        assert seen.index(2) < 999, "the small answer came before the end of the large one"
        await frames.aclose()


def test_who_may_read_what(keys: list[SecretKey]) -> None:
    state = playing(keys)
    alice = state.epoch.clients[0].id
    share = own(state, 0)

    def refusal(state: CoordinatorState, batches: Sequence[BatchId], who: NodeIdentity = alice, limit: int = 10**6) -> str:
        with pytest.raises(RequestRefused) as refused:
            check_request(state, who, batches, at_most=limit)
        return refused.value.code

    check_request(state, alice, share, at_most=total_samples(share))
    assert refusal(state, share, limit=total_samples(share) - 1) == "TooLarge"
    assert refusal(state, [BatchId(share[0].first, share[-1].last + 1)]) == "NotYours"
    assert refusal(state, share, who=NodeIdentity(bytes(32), bytes(32))) == "NotInEpoch"
    theirs = own(state, 1)
    assert refusal(state, theirs) == "NotYours"
    challenge = OpenChallenge(height=0, trainer=1, verifier=0, since=2, share=theirs)
    check_request(replace(state, epoch=replace(state.epoch, challenges=(challenge,))), alice, theirs, at_most=10**6)
    judging = replace(challenge, verifier=5, judges=(0, 7))
    check_request(replace(state, epoch=replace(state.epoch, challenges=(judging,))), alice, theirs, at_most=10**6)
    others = replace(challenge, verifier=5, judges=(7,))
    assert refusal(replace(state, epoch=replace(state.epoch, challenges=(others,))), theirs) == "NotYours"
    withdrawn = replace(state.epoch.clients[0], state=ClientState.Withdrawn)
    state = replace(state, epoch=replace(state.epoch, clients=(withdrawn, state.epoch.clients[1])))
    assert refusal(state, share) == "NotInEpoch"


def test_missing_key_is_a_data_error() -> None:
    with pytest.raises(DataError, match="identity key"):
        ServerData(DataContext(settings=ServerSettings(location="127.0.0.1:1"), sequence_length=8))
