"""Opening, counting and reading, against a real web server that does what it should."""

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import numpy
import pytest

from plugins.data_http.tests.conftest import MakeHttpData, WebServer
from psyche_core.data.ordering.data_shuffle import shuffled_order
from psyche_core.errors import DataError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider
from psyche_core.types import BatchId
from psyche_data_http.fetch import range_plan
from psyche_data_http.fetch import sequences as fetching
from psyche_data_http.fetch.client import RangeClient
from psyche_data_http.hooks import psyche_register_data
from psyche_data_http.provider import HttpData
from psyche_data_http.settings import HttpSettings
from psyche_data_http.shared_resources import SharedResources

ROWS = [bytes([number]) * 8 for number in range(40)]


async def read(data: DataProvider, first: int, last: int, *, timeout: float = 10.0) -> bytes:
    return (await data.read([BatchId(first, last)], timeout=timeout)).tokens


@pytest.fixture
def runs_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets gap and longest run, in bytes."""

    def change(**limits: Any) -> None:
        monkeypatch.setattr(fetching, "joined", partial(range_plan.joined, **limits))

    return change


async def test_neighbouring_samples_are_one_request(
    web: WebServer, rows: str, http_data: MakeHttpData, runs_of: Callable[..., None]
) -> None:
    runs_of(gap=0)
    async with http_data([rows]) as data:
        samples = await data.read([BatchId(4, 6), BatchId(7, 7), BatchId(20, 20), BatchId(5, 5)], timeout=5.0)

    assert samples.tokens == b"".join(ROWS[number] for number in (4, 5, 6, 7, 20, 5))
    assert sorted(web.gets()) == ["bytes=160-167", "bytes=32-63"]


async def test_samples_close_to_each_other_are_one_request(
    web: WebServer, rows: str, http_data: MakeHttpData, runs_of: Callable[..., None]
) -> None:
    runs_of(gap=16)
    async with http_data([rows]) as data:
        samples = await data.read([BatchId(9, 9), BatchId(3, 3), BatchId(6, 6)], timeout=5.0)

    assert samples.tokens == ROWS[9] + ROWS[3] + ROWS[6]
    assert web.gets() == ["bytes=24-79"]


async def test_long_runs_are_cut(web: WebServer, rows: str, http_data: MakeHttpData, runs_of: Callable[..., None]) -> None:
    runs_of(longest=100)
    async with http_data([rows]) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)

    assert len(web.gets()) == 4


async def test_connections_are_reused_and_limited(
    web: WebServer, rows: str, http_data: MakeHttpData, runs_of: Callable[..., None]
) -> None:
    runs_of(gap=0)
    scattered = [BatchId(number, number) for number in range(0, 40, 2)]
    async with http_data([rows], connections=3) as data:
        for _ in range(3):
            await data.read(scattered, timeout=5.0)

    assert len(web.gets()) == 60
    assert len(web.connections) <= 3
    assert web.most_running <= 3


async def test_shuffled_like_every_other_provider(rows: str, http_data: MakeHttpData) -> None:
    seed = bytes(range(1, 33))
    async with http_data([rows], seed=seed) as data:
        assert await read(data, 0, 39) == b"".join(ROWS[place] for place in shuffled_order(40, seed))


async def test_reads_are_bound_to_the_file_that_was_found(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    async with http_data([rows]) as data:
        await read(data, 0, 0)

    assert [condition is not None and condition.startswith('"') for condition in web.conditions] == [True]


async def test_overlapping_reads_fetch_what_they_share_once(
    web: WebServer, rows: str, http_data: MakeHttpData, runs_of: Callable[..., None]
) -> None:
    runs_of(gap=0)
    web.always = "hold"
    results = {}
    async with http_data([rows]) as data, anyio.create_task_group() as tasks:

        async def keep(name: str, first: int, last: int) -> None:
            results[name] = await read(data, first, last)

        tasks.start_soon(keep, "early", 0, 19)
        with anyio.fail_after(10):
            while not web.gets():
                await anyio.sleep(0.005)
        tasks.start_soon(keep, "late", 10, 29)
        with anyio.fail_after(10):
            while len(web.gets()) < 2:
                await anyio.sleep(0.005)
        web.hold.set()

    assert results == {"early": b"".join(ROWS[:20]), "late": b"".join(ROWS[10:30])}
    assert web.gets() == ["bytes=0-159", "bytes=160-239"]


async def test_a_read_takes_over_what_another_gave_up(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    web.faults.append("hold")
    async with http_data([rows]) as data, anyio.create_task_group() as tasks:

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await read(data, 0, 9, timeout=0.3)

        tasks.start_soon(give_up)
        with anyio.fail_after(10):
            while not web.gets():
                await anyio.sleep(0.005)
        assert await read(data, 5, 12) == b"".join(ROWS[5:13])


@pytest.mark.parametrize("head_fault", ["405", "501", "403"])
async def test_size_is_found_without_head(web: WebServer, rows: str, http_data: MakeHttpData, head_fault: str) -> None:
    web.head_fault = head_fault
    async with http_data([rows]) as data:
        assert data.num_sequences == 40


@pytest.mark.parametrize("head_fault", ["", "405"])
async def test_b55_short_and_empty_files_have_no_sequences(web: WebServer, http_data: MakeHttpData, head_fault: str) -> None:
    web.head_fault = head_fault
    (web.folder / "a.bin").write_bytes(b"123")
    (web.folder / "b.bin").write_bytes(b"")
    (web.folder / "c.bin").write_bytes(ROWS[1] + ROWS[2])

    async with http_data(web.urls()) as data:
        assert data.num_sequences == 2
        assert await read(data, 0, 1) == ROWS[1] + ROWS[2]

    with pytest.raises(DataError, match=r"2 files \(.*a\.bin, …\) contain no whole sequence of 4 tokens"):
        async with http_data(web.urls()[:2]):
            pass


async def test_numpy_header_is_not_tokens(web: WebServer, http_data: MakeHttpData) -> None:
    stream = io.BytesIO()
    numpy.save(stream, numpy.arange(8, dtype="<u2"))
    (web.folder / "a.npy").write_bytes(stream.getvalue())

    async with http_data(web.urls()) as data:
        assert data.num_sequences == 2
        assert await read(data, 0, 1) == numpy.arange(8, dtype="<u2").tobytes()


async def test_a_numpy_file_that_is_cut_short_is_refused(web: WebServer, http_data: MakeHttpData) -> None:
    stream = io.BytesIO()
    numpy.save(stream, numpy.arange(800, dtype="<u2"))
    (web.folder / "a.npy").write_bytes(stream.getvalue()[:-2])

    with pytest.raises(DataError, match=r"a\.npy is cut short"):
        async with http_data(web.urls()):
            pass


async def test_hundreds_of_files_are_found(web: WebServer, http_data: MakeHttpData) -> None:
    for number in range(150):
        (web.folder / f"{number:03}.bin").write_bytes(number.to_bytes(8, "little"))

    async with http_data(web.urls()) as data:
        assert await read(data, 0, 149) == b"".join(number.to_bytes(8, "little") for number in range(150))


async def test_registration_makes_a_provider_from_settings(rows: str) -> None:
    registration = psyche_register_data()[0]
    assert registration.settings is not None
    settings = registration.settings.model_validate({"location": rows, "shuffle": {"Seeded": [7] * 32}})
    context = DataContext(settings=settings, sequence_length=4)

    async with registration.create(context) as data:
        assert data.num_sequences == 40
        assert (await data.read([BatchId(0, 39)], timeout=5.0)).tokens == b"".join(
            ROWS[place] for place in shuffled_order(40, bytes([7] * 32))
        )
    assert registration.name == "Http"
    assert registration.settings is HttpSettings


async def test_reading_after_closing_is_a_programming_error(rows: str, http_data: MakeHttpData) -> None:
    async with http_data([rows]) as data:
        pass

    with pytest.raises(RuntimeError, match="enter the provider"):
        await read(data, 0, 0)


async def test_providers_that_share_connections_close_them_last(web: WebServer, rows: str) -> None:
    resources = SharedResources(RangeClient())
    one, other = (HttpData.of_urls([rows], resources, sequence_length=4, token_size=2) for _ in range(2))
    async with other:
        async with one:
            assert await read(one, 0, 0) == ROWS[0]
        assert await read(other, 1, 1) == ROWS[1]

    assert len(web.connections) == 1


async def test_a_closed_provider_can_be_entered_again(rows: str, http_data: MakeHttpData) -> None:
    data = http_data([rows])
    for _ in range(2):
        async with data:
            assert await read(data, 1, 1) == ROWS[1]
