"""Requests, faults and changes, against a real web server."""

import io
from functools import partial

import anyio
import numpy
import pytest

from psyche_core.errors import DataError
from psyche_core.formats.data_shuffle import shuffled_order
from psyche_core.hookspecs import DataContext
from psyche_core.types import BatchId
from psyche_data_http import client, provider
from psyche_data_http.hooks import psyche_register_data
from psyche_data_http.provider import HttpData
from psyche_data_http.settings import HttpSettings

ROWS = [bytes([number]) * 8 for number in range(40)]
HttpRows = partial(HttpData, sequence_length=4, token_size=2)


@pytest.fixture
def rows(web):
    """The address of one file of 40 sequences of 8 bytes."""
    (web.folder / "rows.bin").write_bytes(b"".join(ROWS))
    return web.url("rows.bin")


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.001)


async def read(data: HttpData, first: int, last: int, *, timeout: float = 10.0) -> bytes:
    return (await data.read([BatchId(first, last)], timeout=timeout)).tokens


async def test_neighbouring_samples_are_one_request(web, rows):
    async with HttpRows([rows]) as data:
        samples = await data.read([BatchId(4, 6), BatchId(7, 7), BatchId(20, 20), BatchId(5, 5)], timeout=5.0)

    assert samples.tokens == b"".join(ROWS[number] for number in (4, 5, 6, 7, 20, 5))
    assert sorted(web.gets()) == ["bytes=160-167", "bytes=32-63"]


async def test_long_runs_are_cut(web, rows, monkeypatch):
    monkeypatch.setattr(provider, "RUN_BYTES", 100)
    async with HttpRows([rows]) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)

    assert len(web.gets()) == 4


async def test_connections_are_reused_and_limited(web, rows):
    scattered = [BatchId(number, number) for number in range(0, 40, 2)]
    async with HttpRows([rows], connections=3) as data:
        for _ in range(3):
            await data.read(scattered, timeout=5.0)

    assert len(web.gets()) == 60
    assert len(web.connections) <= 3
    assert web.most_running <= 3


async def test_shuffled_like_every_other_provider(web, rows):
    seed = bytes(range(1, 33))
    async with HttpRows([rows], seed=seed) as data:
        assert await read(data, 0, 39) == b"".join(ROWS[place] for place in shuffled_order(40, seed))


@pytest.mark.parametrize("fault", ["cut", "short and unsized", "drop", "500", "503", "429", "short range", "ignore range"])
async def test_passing_faults_are_tried_again(web, rows, fault):
    web.faults.extend([fault] * 3)
    async with HttpRows([rows]) as data:
        assert await read(data, 10, 29) == b"".join(ROWS[10:30])


async def test_a_cut_read_goes_on_where_it_stopped(web, rows):
    web.faults.extend(["cut", "cut"])
    async with HttpRows([rows]) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)

    assert web.gets() == ["bytes=0-319", "bytes=160-319", "bytes=240-319"]


async def test_a_server_that_falls_silent_counts_as_cut(web, rows):
    web.faults.append("stall")
    async with HttpRows([rows], stall_seconds=0.1) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)

    assert web.gets()[1] == "bytes=160-319"


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("404", r"rows\.bin does not exist \(404\); check data_location"),
        ("403", r"rows\.bin refuses access \(403\)"),
        ("416", r"no longer has the bytes asked for \(416\)"),
        ("418", r"unexpected answer 418"),
        ("long", r"announced 10 bytes for the range"),
        ("long and unsized", r"sent more bytes than it announced"),
        ("other range", r"sent bytes 2 to 9; asked for 0 to 7"),
        ("inner range", r"sent bytes 1 to 7; asked for 0 to 7"),
        ("other size", r"changed while it was in use \(it had 320 bytes, now 328\)"),
        ("no content range", r"answered 206 with Content-Range ''"),
        ("gzip", r"is sent as gzip"),
    ],
)
async def test_faults_that_stay_are_one_sentence(web, rows, fault, sentence):
    web.always = fault
    async with HttpRows([rows]) as data:
        with pytest.raises(DataError, match=sentence):
            await read(data, 0, 0)

        web.always = ""
        assert await read(data, 0, 0) == ROWS[0], "the provider is usable after an error"


async def test_one_failure_among_many_requests_is_raised_as_it_is(web, rows):
    web.faults.extend(["", "404", ""])
    async with HttpRows([rows]) as data:
        with pytest.raises(DataError, match="404"):
            await data.read([BatchId(number, number) for number in range(0, 40, 2)], timeout=5.0)


@pytest.mark.parametrize(("validators", "always"), [(True, ""), (False, ""), (False, "ignore range")])
async def test_a_changed_file_is_noticed(web, rows, validators, always):
    web.validators, web.always = validators, always
    async with HttpRows([rows]) as data:
        await read(data, 0, 3)
        content = b"".join(reversed(ROWS)) if validators else b"".join(ROWS) + b"more"
        (web.folder / "rows.bin").write_bytes(content)
        with pytest.raises(DataError, match="changed while it was in use"):
            await read(data, 0, 3)


async def test_a_file_changed_in_the_middle_of_a_read_is_noticed(web, rows):
    web.faults.append("stall")
    with anyio.fail_after(10):
        async with HttpRows([rows], stall_seconds=0.3) as data, anyio.create_task_group() as tasks:

            async def change() -> None:
                while len(web.gets()) < 1:
                    await anyio.sleep(0.005)
                (web.folder / "rows.bin").write_bytes(b"".join(reversed(ROWS)))

            tasks.start_soon(change)
            with pytest.raises(DataError, match="its ETag was"):
                await read(data, 0, 39)


async def test_reads_are_bound_to_the_file_that_was_found(web, rows):
    async with HttpRows([rows]) as data:
        await read(data, 0, 0)

    assert [condition.startswith('"') for condition in web.conditions] == [True]


async def test_a_late_piece_of_a_whole_file_is_the_right_one(web):
    (web.folder / "large.bin").write_bytes(b"".join(number.to_bytes(8, "little") for number in range(200_000)))
    web.always = "ignore range"
    async with HttpRows(web.urls()) as data:
        assert await read(data, 150_000, 150_000) == (150_000).to_bytes(8, "little")


async def test_whole_files_are_refused_when_too_large(web, rows, monkeypatch):
    monkeypatch.setattr(client, "MAX_SKIPPED_BYTES", 100)
    web.always = "ignore range"
    async with HttpRows([rows]) as data:
        assert await read(data, 3, 4) == b"".join(ROWS[3:5])
        with pytest.raises(DataError, match="sends whole files instead of ranges"):
            await read(data, 20, 20)


async def test_deadline_names_the_last_trouble(web, rows):
    web.always = "503"
    async with HttpRows([rows]) as data:
        with pytest.raises(TimeoutError, match=r"did not arrive within 0\.1 s; .*rows\.bin: the server answered 503"):
            await read(data, 0, 0, timeout=0.1)

        web.always = ""
        assert await read(data, 0, 0) == ROWS[0]


async def test_a_server_that_asks_for_time_gets_it(web, rows):
    web.faults.append("503 for long")
    async with HttpRows([rows]) as data:
        with pytest.raises(TimeoutError, match="503"):
            await read(data, 0, 0, timeout=0.5)

    assert len(web.gets()) == 1


async def test_answers_that_always_end_early_are_a_timeout_with_the_reason(web, rows):
    web.always = "short and unsized"
    async with HttpRows([rows]) as data:
        with pytest.raises(TimeoutError, match=r"ended after 0 of 1 bytes"):
            await read(data, 0, 0, timeout=0.5)


async def test_deadline_holds_against_a_silent_server(web, rows):
    async with HttpRows([rows]) as data:
        web.always = "hold"
        with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
            await read(data, 0, 0, timeout=0.05)


async def test_nobody_listening_is_a_timeout_with_the_reason():
    with pytest.raises(TimeoutError, match=r"http://127\.0\.0\.1:1/x: "):
        async with HttpRows(["http://user:secret@127.0.0.1:1/x?token=secret"], open_seconds=0.2):
            pass


@pytest.mark.parametrize("head_fault", ["405", "501", "403"])
async def test_size_is_found_without_head(web, rows, head_fault):
    web.head_fault = head_fault
    async with HttpRows([rows]) as data:
        assert data.num_sequences == 40


async def test_missing_file_is_found_on_entering(web):
    web.head_fault = "404"
    with pytest.raises(DataError, match="does not exist"):
        async with HttpRows([web.url("nothing.bin")]):
            pass


async def test_unknown_size_is_a_clear_error(web, rows):
    web.head_fault, web.always = "405", "unsized"
    with pytest.raises(DataError, match="does not say how long it is"):
        async with HttpRows([rows]):
            pass


@pytest.mark.parametrize("head_fault", ["", "405"])
async def test_b55_short_and_empty_files_have_no_sequences(web, head_fault):
    web.head_fault = head_fault
    (web.folder / "a.bin").write_bytes(b"123")
    (web.folder / "b.bin").write_bytes(b"")
    (web.folder / "c.bin").write_bytes(ROWS[1] + ROWS[2])

    async with HttpRows(web.urls()) as data:
        assert data.num_sequences == 2
        assert await read(data, 0, 1) == ROWS[1] + ROWS[2]

    with pytest.raises(DataError, match=r"2 files \(.*a\.bin, …\) have not one whole sequence of 4 tokens"):
        async with HttpRows(web.urls()[:2]):
            pass


async def test_numpy_header_is_not_tokens(web):
    stream = io.BytesIO()
    numpy.save(stream, numpy.arange(8, dtype="<u2"))
    (web.folder / "a.npy").write_bytes(stream.getvalue())

    async with HttpRows(web.urls()) as data:
        assert data.num_sequences == 2
        assert await read(data, 0, 1) == numpy.arange(8, dtype="<u2").tobytes()


async def test_registration_makes_a_provider_from_settings(web, rows):
    (registration,) = psyche_register_data()
    settings = registration.settings.model_validate({"location": rows, "shuffle": {"Seeded": [7] * 32}})
    context = DataContext(settings=settings, sequence_length=4)

    async with registration.create(context) as data:
        assert data.num_sequences == 40
        assert (await data.read([BatchId(0, 39)], timeout=5.0)).tokens == b"".join(
            ROWS[place] for place in shuffled_order(40, bytes([7] * 32))
        )
    assert registration.name == "Http"
    assert registration.settings is HttpSettings


async def test_reading_after_closing_is_a_programming_error(rows):
    async with HttpRows([rows]) as data:
        pass

    with pytest.raises(RuntimeError, match="enter the provider"):
        await read(data, 0, 0)
