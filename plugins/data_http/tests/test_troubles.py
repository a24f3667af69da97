"""Failures while reading, against a real web server that causes them: each row of the README's table of failures."""

import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import anyio
import pytest

from plugins.data_http.tests.conftest import MakeHttpData, WebServer
from psyche_core.errors import DataError
from psyche_core.interfaces.data import DataProvider
from psyche_core.types import BatchId
from psyche_data_http import retries
from psyche_data_http.fetch import range_responses
from psyche_data_http.file_source import RemoteFile

ROWS = [bytes([number]) * 8 for number in range(40)]


async def read(data: DataProvider, first: int, last: int, *, timeout: float = 10.0) -> bytes:
    return (await data.read([BatchId(first, last)], timeout=timeout)).tokens


@pytest.mark.parametrize("fault", ["cut", "short and unsized", "drop", "500", "503", "429", "short range", "ignore range"])
async def test_passing_faults_are_tried_again(web: WebServer, rows: str, http_data: MakeHttpData, fault: str) -> None:
    web.faults.extend([fault] * 3)
    async with http_data([rows]) as data:
        assert await read(data, 10, 29) == b"".join(ROWS[10:30])


async def test_a_cut_read_goes_on_where_it_stopped(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    web.faults.extend(["cut", "cut"])
    async with http_data([rows]) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)

    assert web.gets() == ["bytes=0-319", "bytes=160-319", "bytes=240-319"]


async def test_a_server_that_falls_silent_counts_as_cut(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    web.faults.append("stall")
    async with http_data([rows], stall_seconds=0.1) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)

    assert web.gets()[1] == "bytes=160-319"


async def test_a_slow_server_is_not_a_silent_one(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    """Each byte comes sooner than the limit of silence, all of them take longer than it."""
    web.faults.append("slow")
    async with http_data([rows], stall_seconds=0.5) as data:
        assert await read(data, 0, 3) == b"".join(ROWS[:4])

    assert len(web.gets()) == 1


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("404", r"rows\.bin does not exist \(404\); check the address in data_location"),
        ("403", r"rows\.bin refuses access \(403\); make the file public, use an address that contains its permission"),
        ("401", r"rows\.bin refuses access \(401\)"),
        ("416", r"no longer has the bytes asked for \(416\)"),
        ("418", r"unexpected answer 418"),
        ("long", r"announced 10 bytes for the range"),
        ("long and unsized", r"sent more bytes than it announced"),
        ("other range", r"sent bytes 2 to 9; asked for 0 to 7"),
        ("inner range", r"sent bytes 1 to 7; asked for 0 to 7"),
        ("longer range", r"sent bytes 0 to 8; asked for 0 to 7"),
        ("other size", r"changed while it was in use \(it had 320 bytes, now 328\)"),
        ("no content range", r"answered 206 with Content-Range ''"),
        ("gzip", r"is sent as gzip"),
    ],
)
async def test_faults_that_stay_are_one_sentence(
    web: WebServer, rows: str, http_data: MakeHttpData, fault: str, sentence: str
) -> None:
    web.always = fault
    async with http_data([rows]) as data:
        with pytest.raises(DataError, match=sentence):
            await read(data, 0, 0)

        web.always = ""
        assert await read(data, 0, 0) == ROWS[0], "the provider is usable after an error"


async def test_one_failure_among_many_requests_is_raised_as_it_is(web: WebServer, http_data: MakeHttpData) -> None:
    for number in range(20):
        (web.folder / f"{number:02}.bin").write_bytes(ROWS[number])
    web.faults.extend(["", "404", ""])
    async with http_data(web.urls()) as data:
        with pytest.raises(DataError, match="404"):
            await read(data, 0, 19)


@pytest.mark.parametrize(("validators", "always"), [(True, ""), (False, ""), (False, "ignore range")])
async def test_a_changed_file_is_noticed(
    web: WebServer, rows: str, http_data: MakeHttpData, validators: bool, always: str
) -> None:
    web.validators, web.always = validators, always
    async with http_data([rows]) as data:
        await read(data, 0, 3)
        content = b"".join(reversed(ROWS)) if validators else b"".join(ROWS) + b"more"
        (web.folder / "rows.bin").write_bytes(content)
        with pytest.raises(DataError, match="changed while it was in use"):
            await read(data, 0, 3)


async def test_a_file_that_shrank_is_noticed(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    async with http_data([rows]) as data:
        (web.folder / "rows.bin").write_bytes(b"".join(ROWS[:20]))
        with pytest.raises(DataError, match=r"changed while it was in use|no longer has the bytes"):
            await read(data, 30, 39)


async def test_a_file_changed_in_the_middle_of_a_read_is_noticed(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    def change(number: int) -> None:
        if number == 2:
            (web.folder / "rows.bin").write_bytes(b"".join(reversed(ROWS)))

    web.faults.append("cut")
    web.before_answer = change
    async with http_data([rows]) as data:
        with pytest.raises(DataError, match="its ETag was"):
            await read(data, 0, 39)


async def test_a_file_taken_away_is_noticed(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    async with http_data([rows]) as data:
        (web.folder / "rows.bin").unlink()
        with pytest.raises(DataError, match=r"does not exist \(404\)"):
            await read(data, 0, 0)


async def test_a_late_piece_of_a_whole_file_is_the_right_one(web: WebServer, http_data: MakeHttpData) -> None:
    (web.folder / "large.bin").write_bytes(b"".join(number.to_bytes(8, "little") for number in range(200_000)))
    web.always = "ignore range"
    async with http_data(web.urls()) as data:
        assert await read(data, 150_000, 150_000) == (150_000).to_bytes(8, "little")


async def test_whole_files_are_refused_when_too_large(
    web: WebServer, rows: str, http_data: MakeHttpData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_responses, "MAX_WHOLE_BYTES", 319)
    web.always = "ignore range"
    async with http_data([rows]) as data:
        with pytest.raises(DataError, match=r"sends whole files instead of ranges.*320 bytes.*over 319 bytes"):
            await read(data, 0, 0)


async def test_a_server_that_says_it_has_no_ranges_is_refused_on_entering(
    web: WebServer, rows: str, http_data: MakeHttpData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_responses, "MAX_WHOLE_BYTES", 319)
    web.accept_ranges = "none"
    with pytest.raises(DataError, match="sends whole files instead of ranges"):
        async with http_data([rows]):
            pass


async def test_of_a_server_that_ignores_ranges_a_read_asks_each_file_once(web: WebServer, http_data: MakeHttpData) -> None:
    size = 1 << 20
    (web.folder / "rows.bin").write_bytes(bytes(size) + ROWS[7] * 2)
    web.accept_ranges, web.always = "none", "ignore range"
    async with http_data(web.urls()) as data:
        samples = await data.read([BatchId(size // 8, size // 8), BatchId(0, 0), BatchId(size // 16, size // 16)], timeout=10.0)

    assert samples.tokens == ROWS[7] + bytes(16)
    assert len(web.gets()) == 1


async def test_a_server_that_ignores_ranges_is_remembered(web: WebServer, http_data: MakeHttpData) -> None:
    size = 1 << 20
    (web.folder / "rows.bin").write_bytes(bytes(size) + ROWS[7])
    web.always = "ignore range"
    async with http_data(web.urls()) as data:
        await read(data, 0, 0)
        samples = await data.read([BatchId(size // 8, size // 8), BatchId(0, 0)], timeout=10.0)

    assert samples.tokens == ROWS[7] + bytes(8)
    assert len(web.gets()) == 2


async def test_pauses_grow_to_a_limit_and_begin_again_with_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(anyio, "sleep", sleep)
    monkeypatch.setattr(retries, "FIRST_PAUSE", 1.0)
    between = retries.Backoff(last_failure := retries.LastFailure())
    for number in range(6):
        await between.after(retries.TransientError(f"trouble {number}"))
    between.begin_again()
    await between.after(retries.TransientError("again"))
    await between.after(retries.TransientError("busy", pause=60.0))

    for pause, most in zip(pauses, [1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 1.0], strict=False):
        assert most / 2 <= pause <= most
    assert pauses[-1] == 60.0
    assert len(set(pauses)) == len(pauses), "at random, so that clients do not come back together"
    assert last_failure.message == "busy"


@pytest.mark.parametrize(
    ("etag", "condition"),
    [('"strong"', '"strong"'), ('W/"weak"', "Sat, 01 Jan 2000 00:00:00 GMT"), (None, "Sat, 01 Jan 2000 00:00:00 GMT")],
)
def test_a_range_is_bound_to_a_strong_etag_or_else_the_date(etag: str | None, condition: str) -> None:
    assert RemoteFile("https://h/a", 1, etag, "Sat, 01 Jan 2000 00:00:00 GMT").condition == condition


def test_an_equal_etag_says_more_than_another_date() -> None:
    file = RemoteFile("https://h/a", 1, '"a"', "Sat, 01 Jan 2000 00:00:00 GMT")

    range_responses.refuse_change(file, {"ETag": '"a"', "Last-Modified": "Sun, 02 Jan 2000 00:00:00 GMT"})
    with pytest.raises(DataError, match="its Last-Modified was"):
        range_responses.refuse_change(file, {"Last-Modified": "Sun, 02 Jan 2000 00:00:00 GMT"})


async def test_deadline_names_the_last_trouble(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    web.always = "503"
    async with http_data([rows]) as data:
        with pytest.raises(TimeoutError, match=r"did not arrive within 0\.1 s; .*rows\.bin: the server answered 503"):
            await read(data, 0, 0, timeout=0.1)

        web.always = ""
        assert await read(data, 0, 0) == ROWS[0]


async def test_the_reason_of_one_read_is_not_that_of_another(web: WebServer, http_data: MakeHttpData) -> None:
    (web.folder / "good.bin").write_bytes(ROWS[1])
    (web.folder / "bad.bin").write_bytes(ROWS[2])
    reasons = {}
    async with http_data([web.url("bad.bin"), web.url("good.bin")]) as data:
        web.faults.extend(["503"] * 3)
        web.always = "hold"

        async def fail(name: str, number: int, timeout: float) -> None:
            with pytest.raises(TimeoutError) as caught:
                await read(data, number, number, timeout=timeout)
            reasons[name] = str(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail, "bad", 0, 0.4)
            with anyio.fail_after(10):
                while len(web.gets()) < 4:
                    await anyio.sleep(0.005)
            tasks.start_soon(fail, "good", 1, 0.1)

    assert "503" in reasons["bad"]
    assert reasons["good"].endswith("the server is slow")


@pytest.mark.parametrize("kind", ["seconds", "date", "for ever"])
async def test_a_server_that_asks_for_time_gets_it_within_the_callers(
    web: WebServer, rows: str, http_data: MakeHttpData, kind: str
) -> None:
    until = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    web.pause = {"seconds": "30", "date": until, "for ever": "9" * 19}[kind]
    web.faults.append("busy")
    async with http_data([rows]) as data:
        with pytest.raises(TimeoutError, match="429"):
            await read(data, 0, 0, timeout=0.5)

    assert len(web.gets()) == 1


@pytest.mark.parametrize("pause", ["1", "0", "soon", "", "-1", "Fri, 01 Jan 1999 00:00:00 GMT"])
async def test_after_the_pause_the_read_goes_on(web: WebServer, rows: str, http_data: MakeHttpData, pause: str) -> None:
    web.pause = pause
    web.faults.append("busy")
    async with http_data([rows]) as data:
        assert await read(data, 3, 4) == ROWS[3] + ROWS[4]

    assert len(web.gets()) == 2


async def test_answers_that_always_end_early_are_a_timeout_with_the_reason(
    web: WebServer, rows: str, http_data: MakeHttpData
) -> None:
    web.always = "short and unsized"
    async with http_data([rows]) as data:
        with pytest.raises(TimeoutError, match=r"ended after 0 of 1 bytes"):
            await read(data, 0, 0, timeout=0.5)


async def test_deadline_holds_against_a_silent_server(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    async with http_data([rows]) as data:
        web.always = "hold"
        with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
            await read(data, 0, 0, timeout=0.05)


async def test_nobody_listening_is_a_timeout_with_the_reason(http_data: MakeHttpData) -> None:
    with pytest.raises(TimeoutError, match=r"http://127\.0\.0\.1:1/x: "):
        async with http_data(["http://user:secret@127.0.0.1:1/x?token=secret"], open_seconds=0.2):
            pass


async def test_missing_file_is_found_on_entering(web: WebServer, http_data: MakeHttpData) -> None:
    web.head_fault = "404"
    with pytest.raises(DataError, match="does not exist"):
        async with http_data([web.url("nothing.bin")]):
            pass


async def test_unknown_size_is_a_clear_error(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    web.head_fault, web.always = "405", "unsized"
    with pytest.raises(DataError, match="does not say how long it is"):
        async with http_data([rows]):
            pass


async def test_no_connection_is_left_open_after_trouble(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    before = threading.active_count()
    web.faults.extend(["cut", "404", "hold"])
    async with http_data([rows]) as data:
        with pytest.raises(DataError):
            await read(data, 0, 39)
        with pytest.raises(TimeoutError):
            await read(data, 0, 39, timeout=0.1)
    web.hold.set()
    with anyio.fail_after(10):
        while web.running:
            await anyio.sleep(0.005)

    assert threading.active_count() <= before + 2  # anyio's idle worker


def test_every_trouble_of_the_readme_is_tested_here() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    tests = Path(__file__).parent
    known = "".join(path.read_text() for path in tests.glob("test_*.py"))
    named = [line.rsplit("|", 2)[1].strip().strip("`") for line in text.splitlines() if "| `test_" in line]

    assert len(named) >= 15
    assert [name for name in named if f"def {name}(" not in known] == []
