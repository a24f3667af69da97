"""The disk cache: what is kept is served, what is damaged never is, the limit holds, and processes may share a folder."""

import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugins.data_http.tests.conftest import MakeHttpData, WebServer
from psyche_core.interfaces.data import DataProvider
from psyche_core.types import BatchId
from psyche_data_http.fetch import cache as cache_module
from psyche_data_http.fetch.cache import CHECKSUM_BYTES, Block, BlockCache
from psyche_data_http.file_source import RemoteFile

FILE = "0123456789abcdef" * 2
OTHER = "f" * 32
ROWS = [bytes([number]) * 8 for number in range(40)]


@pytest.fixture
def cache_folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def block_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def filled(folder: Path, contents: Iterable[bytes], *, limit: int = 1 << 20) -> None:
    """Keep contents as blocks 0, 1, … and close."""
    cache = BlockCache(folder, limit=limit)
    cache.keep([(Block(FILE, number), content) for number, content in enumerate(contents)])
    cache.close()


async def read(data: DataProvider, first: int, last: int) -> bytes:
    return (await data.read([BatchId(first, last)], timeout=10.0)).tokens


def test_what_was_kept_is_found_by_the_next_process(tmp_path: Path) -> None:
    filled(tmp_path, [b"one.", b"two."])

    found = BlockCache(tmp_path).find([Block(FILE, number) for number in range(3)], size=4)

    assert found == {Block(FILE, 0): b"one.", Block(FILE, 1): b"two."}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_block_is_never_served(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("cache")
    filled(folder, [b"sixteen bytes ok"])
    (path,) = block_files(folder)
    stored = bytearray(path.read_bytes())
    match data.draw(st.sampled_from(["flip", "cut", "longer", "misplaced"])):
        case "flip":
            at = data.draw(st.integers(0, len(stored) - 1))
            stored[at] ^= data.draw(st.integers(1, 255))
            path.write_bytes(stored)
        case "cut":
            path.write_bytes(stored[: data.draw(st.integers(0, len(stored) - 1))])
        case "longer":
            path.write_bytes(stored + b"x")
        case "misplaced":
            path = path.rename(path.with_name("1"))

    cache = BlockCache(folder)
    assert cache.find([Block(FILE, 0), Block(FILE, 1), Block(OTHER, 0)], size=16) == {}
    assert not path.exists(), "it is taken away, so that it can be fetched again"


def test_a_block_of_another_size_is_not_served(tmp_path: Path) -> None:
    filled(tmp_path, [b"sixteen bytes ok"])

    assert BlockCache(tmp_path).find([Block(FILE, 0)], size=8) == {}


def disk_bytes(folder: Path) -> int:
    return sum(max(path.stat().st_size, path.stat().st_blocks * 512) for path in block_files(folder))


def test_the_limit_holds(tmp_path: Path) -> None:
    limit = 1 << 18
    cache = BlockCache(tmp_path, limit=limit)
    for number in range(300):
        cache.keep([(Block(FILE, number), random.Random(number).randbytes(4000))])
    cache.close()

    assert limit / 2 < disk_bytes(tmp_path) <= limit * 17 / 16


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    filled(tmp_path, [bytes([number]) * 4000 for number in range(20)])
    for number, path in enumerate(sorted(block_files(tmp_path), key=lambda path: int(path.name))):
        os.utime(path, (1000 + number, 1000 + number))
    BlockCache(tmp_path).find([Block(FILE, 0), Block(FILE, 1)], size=4000)

    total = disk_bytes(tmp_path)
    cache = BlockCache(tmp_path, limit=total)
    cache.keep([(Block(OTHER, 0), bytes(4000))])
    cache.close()

    left = {int(path.name) for path in block_files(tmp_path) if path.parent.name == FILE}
    assert {0, 1} < left
    assert left - {0, 1} == set(range(20 - len(left) + 2, 20)), "what is gone was used longest ago"
    assert disk_bytes(tmp_path) <= total


def test_a_limit_of_nothing_keeps_nothing(tmp_path: Path) -> None:
    filled(tmp_path, [b"one."], limit=0)

    assert block_files(tmp_path) == []


def test_what_does_not_keep_up_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_WAITING", 10)
    filled(tmp_path, [b"twelve bytes"])

    assert block_files(tmp_path) == []


def test_files_of_a_process_that_died_are_taken_away(tmp_path: Path) -> None:
    filled(tmp_path, [b"one."])
    folder = block_files(tmp_path)[0].parent
    (folder / ".dead").write_bytes(b"half")
    os.utime(folder / ".dead", (1000, 1000))
    (folder / ".alive").write_bytes(b"half")

    cache = BlockCache(tmp_path)
    cache.keep([(Block(OTHER, 0), b"one.")])
    cache.close()

    assert not (folder / ".dead").exists()
    assert (folder / ".alive").exists()


def test_a_folder_that_cannot_be_written_is_said_once_and_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "http-blocks").write_text("in the way")
    cache = BlockCache(tmp_path)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            cache.keep([(Block(FILE, number), b"one.")])
            assert cache.find([Block(FILE, number)], size=4) == {}
        cache.close()

    assert [record for record in caplog.records if "continuing without it" in record.getMessage()] == caplog.records
    assert len(caplog.records) == 1


WRITER = """
import random, sys
from pathlib import Path
from psyche_data_http.fetch.cache import Block, BlockCache
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
content = lambda number: random.Random(number).randbytes(2000)
cache = BlockCache(folder, limit=200_000)
numbers = [random.Random(seed).randrange(100) for _ in range(400)]
for number in numbers:
    block = Block("a" * 32, number)
    found = cache.find([block], size=2000)
    assert all(got == content(number) for got in found.values())
    if not found:
        cache.keep([(block, content(number))])
cache.close()
"""


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    children = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(seed)]) for seed in range(3)]

    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert disk_bytes(tmp_path) <= 200_000 * (1 + 3 / 16)
    assert not [path for path in block_files(tmp_path) if path.name.startswith(".")]


async def test_a_second_client_asks_the_server_for_nothing_but_sizes(
    web: WebServer, rows: str, http_data: MakeHttpData, cache_folder: Path
) -> None:
    async with http_data([rows], cache=cache_folder) as data:
        assert await read(data, 3, 9) == b"".join(ROWS[3:10])

    before = len(web.gets())
    async with http_data([rows], cache=cache_folder) as data:
        assert await read(data, 4, 11) == b"".join(ROWS[4:12])

    assert web.gets()[before:] == ["bytes=80-95"], "only what was not kept"


async def test_damage_on_disk_is_fetched_again(web: WebServer, rows: str, http_data: MakeHttpData, cache_folder: Path) -> None:
    async with http_data([rows], cache=cache_folder) as data:
        await read(data, 0, 39)
    for path in block_files(cache_folder):
        path.write_bytes(path.read_bytes()[:CHECKSUM_BYTES] + b"XXXXXXXX")

    async with http_data([rows], cache=cache_folder) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)
    async with http_data([rows], cache=cache_folder) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)

    assert len(web.gets()) == 2


async def test_another_file_at_the_same_address_is_another_file(
    web: WebServer, rows: str, http_data: MakeHttpData, cache_folder: Path
) -> None:
    async with http_data([rows], cache=cache_folder) as data:
        await read(data, 0, 39)
    (web.folder / "rows.bin").write_bytes(b"".join(reversed(ROWS)))

    async with http_data([rows], cache=cache_folder) as data:
        assert await read(data, 0, 39) == b"".join(reversed(ROWS))


async def test_sequences_of_another_length_are_kept_apart(
    web: WebServer, rows: str, http_data: MakeHttpData, cache_folder: Path
) -> None:
    for size in (4, 2, 4, 2):
        async with http_data([rows], cache=cache_folder, sequence_length=size) as data:
            assert await read(data, 0, 9) == b"".join(ROWS)[: 20 * size]

    assert len(web.gets()) == 2


async def test_a_file_without_validators_is_not_kept(
    web: WebServer, rows: str, http_data: MakeHttpData, cache_folder: Path
) -> None:
    web.validators = False
    async with http_data([rows], cache=cache_folder) as data:
        await read(data, 0, 39)

    assert block_files(cache_folder) == []


async def test_a_cache_of_nothing_is_no_cache(rows: str, http_data: MakeHttpData, cache_folder: Path) -> None:
    async with http_data([rows], cache=cache_folder, cache_bytes=0) as data:
        await read(data, 0, 39)

    assert list(cache_folder.rglob("http-blocks")) == []


async def test_two_clients_read_at_once_with_one_cache(rows: str, http_data: MakeHttpData, cache_folder: Path) -> None:
    async with http_data([rows], cache=cache_folder) as one, http_data([rows], cache=cache_folder) as other:

        async def check(data: DataProvider) -> None:
            for _ in range(5):
                assert await read(data, 0, 39) == b"".join(ROWS)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(check, one)
            tasks.start_soon(check, other)


@pytest.mark.parametrize(
    "other",
    [
        RemoteFile("https://h/b", 10, "e", "m"),
        RemoteFile("https://h/a", 11, "e", "m"),
        RemoteFile("https://h/a", 10, "f", "m"),
        RemoteFile("https://h/a", 10, "e", "n"),
        RemoteFile("https://h/a", 10, "e", "m", "1"),
    ],
)
def test_files_that_differ_in_anything_are_kept_apart(other: RemoteFile) -> None:
    assert RemoteFile("https://h/a", 10, "e", "m").identity != other.identity
