"""How fast each data provider gives samples, beside the plainest way to read the same samples.

    python -m benchmarks.data [--seconds 1.0] [--only Local,Server] [--json]

Everything runs on this machine: 16,384 sequences of 2048 two-byte tokens in four files, just written and so in the page cache, in
a seeded order, 256 to a read, as a member of a run reads its share. The ways read the same samples in turns, for about
`--seconds` each time; the best of five turns counts, so that other work on the machine counts little.

    provider      baseline                                                         goal
    Local         numpy.memmap, one slice copied per sequence into one array       90 %
    Preprocessed  pyarrow reads the whole file into memory, as one flat array      (none)
    Server        the same bytes from another process over TLS and nothing else    60 %

Preprocessed reads a Parquet file of 4096 rows in row groups of 512, all rows in order, opened anew each time. Http and
WeightedHttp are `benchmarks.data_http`. Server also says what plain TCP reaches. cpu_s: CPU seconds of this process for 10,000
samples of ours.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from psyche_core.builtin.local_data import LocalData
from psyche_core.builtin.preprocessed_data import PreprocessedData
from psyche_core.data.ordering.data_shuffle import shuffled_order
from psyche_core.types import BatchId

Figures = dict[str, float]

TOKENS = 2048
SAMPLE_BYTES = 2 * TOKENS
NAMES = ("0.bin", "1.bin", "2.bin", "3.bin")
FILE_SAMPLES = 4096
SAMPLES = len(NAMES) * FILE_SAMPLES
READ = 256
TURNS = 5
SEED = bytes(range(1, 33))
ROWS, GROUP = 4096, 512
GOALS = {"Local": 0.9, "Http": 0.8, "Server": 0.6}


async def measure_local(folder: Path, seconds: float) -> Figures:
    """The `Local` provider beside numpy.memmap."""
    maps = [np.memmap(folder / name, dtype="<u2", mode="r") for name in NAMES]
    places = [divmod(place, FILE_SAMPLES) for place in shuffled_order(SAMPLES, SEED)]

    async def plain(first: int) -> int:
        batch = np.empty((READ, TOKENS), np.uint16)
        for row in range(READ):
            file, at = places[first + row]
            batch[row] = maps[file][at * TOKENS : (at + 1) * TOKENS]
        return batch.nbytes

    async with LocalData(folder, sequence_length=TOKENS, token_size=2, seed=SEED) as provider:
        return await compared(reader(provider), plain, seconds)


async def measure_server(folder: Path, seconds: float) -> Figures:
    """The `Server` provider beside a connection with TLS alone, and one without; all served by another process."""
    from psyche_backend_tcp.connections.tls import client_context
    from psyche_backend_tcp.data.provider import ServerData, ServerSettings
    from psyche_core.hookspecs import DataContext

    async def bare(port: str, context: ssl.SSLContext | None) -> Callable[[int], Awaitable[int]]:
        name = None if context is None else ""
        receive, send = await asyncio.open_connection("127.0.0.1", int(port), ssl=context, server_hostname=name)

        async def read(first: int) -> int:
            send.write(first.to_bytes(8, "little"))
            return len(await receive.readexactly(READ * SAMPLE_BYTES))

        return read

    with serving(folder) as (address, tls_port, plain_port):
        settings = ServerSettings(location=address)
        tls, plain = await bare(tls_port, client_context()), await bare(plain_port, None)
        async with ServerData(DataContext(settings=settings, sequence_length=TOKENS, key=_key())) as provider:
            return await compared(reader(provider), tls, seconds, beside={"plain_tcp_samples_per_s": plain})


async def measure_preprocessed(folder: Path, seconds: float) -> Figures:
    """The `Preprocessed` provider beside pyarrow alone."""
    import pyarrow.parquet as pq

    path = folder / "train.parquet"

    async def plain(_first: int) -> int:
        inputs = pq.read_table(path, columns=["inputs"], use_threads=False).column("inputs").combine_chunks()
        return len(inputs.flatten().to_numpy().astype("<u4").tobytes())

    async def ours(_first: int) -> int:
        size = 0
        async with PreprocessedData(str(path), sequence_length=TOKENS) as provider:
            for first in range(0, ROWS, READ):
                size += len((await provider.read([BatchId(first, first + READ - 1)], timeout=60.0)).tokens)
        return size

    return await compared(ours, plain, seconds, samples=ROWS)


def reader(provider: Any) -> Callable[[int], Awaitable[int]]:
    """Reads of READ samples from a number on; how many bytes came."""

    async def read(first: int) -> int:
        return len((await provider.read([BatchId(first, first + READ - 1)], timeout=60.0)).tokens)

    return read


async def compared(
    ours: Callable[[int], Awaitable[int]],
    plain: Callable[[int], Awaitable[int]],
    seconds: float,
    *,
    samples: int = READ,
    beside: Mapping[str, Callable[[int], Awaitable[int]]] | None = None,
) -> Figures:
    """Both ways in turns. samples: given by each call. beside: further ways, by the names of their figures."""
    calls = {"ours": ours, "plain": plain, **(beside or {})}
    sizes = {name: await call(0) for name, call in calls.items()}
    assert len(set(sizes.values())) == 1, f"all ways must give the same: {sizes}"

    best = dict.fromkeys(calls, 0.0)
    cpu = read = 0.0
    for _ in range(TURNS):
        for name, call in calls.items():
            count, started, started_cpu = 0, time.perf_counter(), time.process_time()
            while (passed := time.perf_counter() - started) < seconds:
                await call(count * samples % (SAMPLES - READ + 1))
                count += 1
            best[name] = max(best[name], count * samples / passed)
            if name == "ours":
                cpu += time.process_time() - started_cpu
                read += count * samples

    return {
        "samples_per_s": round(best["ours"], 1),
        "baseline_samples_per_s": round(best["plain"], 1),
        "cpu_s": round(10_000 * cpu / read, 4),
        **{name: round(best[name], 1) for name in beside or {}},
    }


def write_samples(folder: Path) -> None:
    """The token files and the Parquet file everything is measured with."""
    numbers = np.random.default_rng(0)
    for name in NAMES:
        numbers.integers(0, 60_000, FILE_SAMPLES * TOKENS, dtype=np.uint16).tofile(folder / name)

    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        return

    values = pa.array(numbers.integers(0, 60_000, ROWS * TOKENS, dtype=np.int32))
    rows = pa.ListArray.from_arrays(pa.array(np.arange(0, ROWS * TOKENS + 1, TOKENS, dtype=np.int32)), values)
    pq.write_table(pa.table({"inputs": rows}), folder / "train.parquet", row_group_size=GROUP)


# ---------------------------------------------------------------- the other process of `Server`


def _key() -> Any:
    from psyche_core.wire.signing import SecretKey

    return SecretKey(b"b" * 32)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Another process that serves the folder: address of its data server, ports of its bare ones with and without TLS."""
    command = [sys.executable, "-m", "benchmarks.data", "--serve", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address, tls_port, plain_port = process.stdout.readline().split()
            yield address, tls_port, plain_port
        finally:
            process.kill()


async def serve(folder: Path) -> None:
    """Serve until killed."""
    from psyche_backend_tcp.connections.tls import server_context

    tls_port, plain_port = _serve_barely(folder, server_context(_key())), _serve_barely(folder, None)
    async with _data_server(folder) as server:
        sys.stdout.write(f"{server.address} {tls_port} {plain_port}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


@asynccontextmanager
async def _data_server(folder: Path) -> AsyncIterator[Any]:
    from dataclasses import replace

    from psyche_backend_tcp.data.server import DataServer
    from psyche_backend_tcp.limits import Limits
    from psyche_core.coordinator.state import Client, Epoch, Round
    from psyche_core.testing.backend import small_state
    from psyche_core.types import NodeIdentity, RunState
    from psyche_core.wire.signing import SecretKey

    public = _key().public
    round_ = Round(height=0, step=1, seed=7, slots=(0,), batches=(BatchId(0, 2**63 - 2),))
    epoch = Epoch(clients=(Client(NodeIdentity(public, public)),), rounds=(round_,), start_time=1)
    state = replace(small_state(), run_state=RunState.RoundTrain, epoch=epoch)
    async with LocalData(folder, sequence_length=TOKENS, token_size=2, seed=SEED) as provider:
        server = await DataServer.bind(
            provider, "127.0.0.1", 0, run_id=state.run_id, key=SecretKey.generate(), limits=Limits(), state=lambda: state
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            yield server
            tasks.cancel_scope.cancel()


def _serve_barely(folder: Path, context: ssl.SSLContext | None) -> int:
    """A thread that answers each number of 8 bytes with READ samples from that one on. Returns its port."""
    maps = [memoryview((folder / name).read_bytes()) for name in NAMES]
    places = [divmod(place, FILE_SAMPLES) for place in shuffled_order(SAMPLES, SEED)]
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
        with connection:
            while len(number := connection.recv(8)) == 8:
                first = int.from_bytes(number, "little")
                rows = places[first : first + READ]
                connection.sendall(b"".join([maps[file][at * SAMPLE_BYTES : (at + 1) * SAMPLE_BYTES] for file, at in rows]))

    threading.Thread(target=answer, daemon=True).start()
    return int(listener.getsockname()[1])


# ---------------------------------------------------------------- command line


PROVIDERS: dict[str, Callable[[Path, float], Coroutine[Any, Any, Figures]]] = {
    "Local": measure_local,
    "Preprocessed": measure_preprocessed,
    "Server": measure_server,
}


def measure(*, seconds: float = 1.0, only: tuple[str, ...] = ()) -> dict[str, Figures]:
    """Figures by provider. seconds: of each of the turns; only: these providers, all when empty."""
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="psyche-bench-") as name:
        folder = Path(name)
        write_samples(folder)
        for provider, run in PROVIDERS.items():
            if not only or provider in only:
                try:
                    found[provider] = asyncio.run(run(folder, seconds))
                except ModuleNotFoundError as error:
                    sys.stderr.write(f"{provider} is left out: {error}\n")

    if not only or set(only) - set(PROVIDERS):
        found |= {name: figures for name, figures in _measure_http().items() if not only or name in only}
    return found


def _measure_http() -> dict[str, Figures]:
    try:
        measure_http: Callable[[], dict[str, Figures]] = importlib.import_module("benchmarks.data_http").measure
    except ImportError as error:
        sys.stderr.write(f"Http is left out: {error}\n")
        return {}

    return measure_http()


def main() -> None:
    """Print the figures, as JSON or as a table."""
    parser = argparse.ArgumentParser(description="Samples per second of every data provider.")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of the five turns")
    parser.add_argument("--only", default="", help="providers, separated by commas")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve))
        return

    found = measure(seconds=arguments.seconds, only=tuple(filter(None, arguments.only.split(","))))
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return

    sys.stdout.write(f"{'provider':<14}{'samples/s':>14}{'baseline':>14}{'share':>8}{'goal':>8}{'CPU s/10k':>12}\n")
    for name, figures in found.items():
        share = figures["samples_per_s"] / figures["baseline_samples_per_s"]
        goal = f"{GOALS[name]:.0%}" if name in GOALS else ""
        sys.stdout.write(
            f"{name:<14}{figures['samples_per_s']:>14,.0f}{figures['baseline_samples_per_s']:>14,.0f}"
            f"{share:>8.0%}{goal:>8}{figures['cpu_s']:>12.3f}\n"
        )


if __name__ == "__main__":
    main()
