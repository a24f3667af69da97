"""How fast `Http` and `WeightedHttp` give samples, beside a plain httpx download of the same ranges from the same server.

    python -m benchmarks.data_http [--seconds 1.0] [--json]          also part of python -m benchmarks.data

The server is another process on this machine that holds two files of 8192 sequences of 2048 two-byte tokens in memory and answers
range requests, nothing else. 256 samples to a read; both ways read the same in turns, the best of five counts.

    Http          samples in the order of the files: each read is one range of 1 MiB. Goal: 80 %
    HttpShuffled  in a seeded order: some 230 ranges of mostly 4 KiB
    HttpCached    the same order, from a disk cache that has all of it (the baseline still downloads)
    WeightedHttp  both files mixed 3 to 1, in the order of drawing: two ranges a read, or three

The plain download has eight requests at once over one client, like ours, and only receives; it neither joins nor orders. cpu_s:
CPU seconds of this process for 10,000 samples of ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from psyche_core.data.ordering.data_shuffle import shuffled_order
from psyche_core.data.ordering.mixture import MixtureIndex
from psyche_core.hookspecs import DataContext
from psyche_core.types import BatchId
from psyche_data_http.fetch.range_plan import joined
from psyche_data_http.provider import HttpData
from psyche_data_http.settings import HttpSettings, WeightedHttpSettings
from psyche_data_http.weighted import WeightedHttpData

Figures = dict[str, float]
Locate = Callable[[int], tuple[int, int]]

TOKENS = 2048
SAMPLE_BYTES = 2 * TOKENS
FILES = 2
FILE_SAMPLES = 8192
SAMPLES = FILES * FILE_SAMPLES
READ = 256
TURNS = 5
SEED = bytes(range(1, 33))
AT_ONCE = 8


async def measure_http(base: str, seconds: float, *, seed: bytes | None = None, cache: Path | None = None) -> Figures:
    """`Http` beside httpx."""
    order = range(SAMPLES) if seed is None else shuffled_order(SAMPLES, seed)
    shuffle = "DontShuffle" if seed is None else {"Seeded": list(seed)}
    settings = HttpSettings.model_validate({"location": {"Urls": _urls(base)}, "shuffle": shuffle})
    data = HttpData.from_context(DataContext(settings=settings, sequence_length=TOKENS, cache=cache))
    if cache is not None:
        async with data:
            for first in range(0, SAMPLES, READ):
                await data.read([BatchId(first, first + READ - 1)], timeout=60.0)

    async with data, _plain(base, lambda number: divmod(order[number], FILE_SAMPLES)) as plain:
        return await _compared(_reader(data), plain, seconds)


async def measure_weighted(base: str, folder: Path, seconds: float) -> Figures:
    """`WeightedHttp` beside httpx."""
    weights = [3.0, 1.0]
    sources = [{"location": url} for url in _urls(base)]
    (folder / "mixture.json").write_text(json.dumps({"providers": list(zip(sources, weights, strict=True))}))
    index = MixtureIndex([FILE_SAMPLES] * FILES, weights)
    settings = WeightedHttpSettings(location="mixture.json")
    data = WeightedHttpData.from_context(DataContext(settings=settings, sequence_length=TOKENS, base=folder))
    async with data, _plain(base, index.locate) as plain:
        return await _compared(_reader(data), plain, seconds)


def _urls(base: str) -> list[str]:
    return [f"{base}/{number}" for number in range(FILES)]


def _reader(data: Any) -> Callable[[int], Awaitable[int]]:
    async def read(first: int) -> int:
        return len((await data.read([BatchId(first, first + READ - 1)], timeout=60.0)).tokens)

    return read


@asynccontextmanager
async def _plain(base: str, locate: Locate) -> AsyncIterator[Callable[[int], Awaitable[int]]]:
    """Downloads the ranges of READ samples from a number on."""
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    urls = _urls(base)
    slots = asyncio.Semaphore(AT_ONCE)
    ranges: dict[int, list[tuple[str, str]]] = {}

    def wanted(first: int) -> list[tuple[str, str]]:
        if first not in ranges:
            places = sorted({locate(number) for number in range(first, first + READ)})
            ranges[first] = [
                (
                    urls[run.file],
                    f"bytes={run.first * SAMPLE_BYTES}-{(run.first + run.count) * SAMPLE_BYTES - 1}",
                )
                for run in joined(places, size=SAMPLE_BYTES, serves_ranges=lambda _file: True)
            ]
        return ranges[first]

    async with httpx.AsyncClient(limits=limits) as client:

        async def get(url: str, span: str) -> None:
            async with slots:
                answer = await client.get(url, headers={"Range": span, "Accept-Encoding": "identity"})
            assert answer.status_code == 206
            assert answer.content

        async def download(first: int) -> int:
            await asyncio.gather(*(get(url, span) for url, span in wanted(first)))
            return READ * SAMPLE_BYTES

        for first in range(0, SAMPLES - READ + 1, READ):
            wanted(first)  # planning is not what is measured
        yield download


async def _compared(ours: Callable[[int], Awaitable[int]], plain: Callable[[int], Awaitable[int]], seconds: float) -> Figures:
    calls = {"ours": ours, "plain": plain}
    sizes = {name: await call(0) for name, call in calls.items()}
    assert len(set(sizes.values())) == 1, f"both ways must give the same: {sizes}"

    best = dict.fromkeys(calls, 0.0)
    cpu = read = 0.0
    for _ in range(TURNS):
        for name, call in calls.items():
            count, started, started_cpu = 0, time.perf_counter(), time.process_time()
            while (passed := time.perf_counter() - started) < seconds:
                await call(count * READ % (SAMPLES - READ + 1) // READ * READ)
                count += 1
            best[name] = max(best[name], count * READ / passed)
            if name == "ours":
                cpu += time.process_time() - started_cpu
                read += count * READ

    return {
        "samples_per_s": round(best["ours"], 1),
        "baseline_samples_per_s": round(best["plain"], 1),
        "cpu_s": round(10_000 * cpu / read, 4),
    }


# ---------------------------------------------------------------- the server


class RangeServer(asyncio.Protocol):
    """Answers HEAD and range GET for /0, /1, … from memory; as little else as possible, so that it is not what is measured."""

    contents: tuple[memoryview, ...] = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        while b"\r\n\r\n" in self.received:
            head, _, self.received = self.received.partition(b"\r\n\r\n")
            self.answer(head.lower())

    def answer(self, head: bytes) -> None:
        line, _, fields = head.partition(b"\r\n")
        method, path, _ = line.split()
        number = int(path[1:])
        content = self.contents[number]
        etag = b'ETag: "v%d"\r\n' % number
        if method == b"head":
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n" % (len(content), etag))
            return

        first, last = (int(part) for part in fields.partition(b"range: bytes=")[2].partition(b"\r\n")[0].split(b"-"))
        piece = content[first : last + 1]
        self.transport.write(
            b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n%s\r\n"
            % (len(piece), first, last, len(content), etag)
        )
        self.transport.write(piece)


async def serve() -> None:
    """Serve until killed; says the port on standard output."""
    RangeServer.contents = tuple(memoryview(bytes([number + 1]) * FILE_SAMPLES * SAMPLE_BYTES) for number in range(FILES))
    server = await asyncio.get_running_loop().create_server(RangeServer, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


@contextmanager
def serving() -> Iterator[str]:
    """Another process that serves; its address."""
    command = [sys.executable, "-m", "benchmarks.data_http", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


# ---------------------------------------------------------------- command line


def measure(*, seconds: float = 1.0) -> dict[str, Figures]:
    """Figures by provider. seconds: of each of the turns."""
    with serving() as base, tempfile.TemporaryDirectory(prefix="psyche-bench-") as name:
        folder = Path(name)
        return {
            "Http": asyncio.run(measure_http(base, seconds)),
            "HttpShuffled": asyncio.run(measure_http(base, seconds, seed=SEED)),
            "HttpCached": asyncio.run(measure_http(base, seconds, seed=SEED, cache=folder)),
            "WeightedHttp": asyncio.run(measure_weighted(base, folder, seconds)),
        }


def main() -> None:
    """Print the figures, as JSON or as a table."""
    parser = argparse.ArgumentParser(description="Samples per second of the data providers over HTTP.")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of the five turns")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve())
        return

    found = measure(seconds=arguments.seconds)
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return

    sys.stdout.write(f"{'provider':<14}{'samples/s':>14}{'baseline':>14}{'share':>8}{'CPU s/10k':>12}\n")
    for name, figures in found.items():
        share = figures["samples_per_s"] / figures["baseline_samples_per_s"]
        sys.stdout.write(
            f"{name:<14}{figures['samples_per_s']:>14,.0f}{figures['baseline_samples_per_s']:>14,.0f}{share:>8.0%}"
            f"{figures['cpu_s']:>12.3f}\n"
        )


if __name__ == "__main__":
    main()
