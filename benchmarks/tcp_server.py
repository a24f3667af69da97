"""One real coordinator server against many clients over loopback: how fast a change reaches everybody, in how many bytes.

    python -m benchmarks.tcp_server --clients 256 [--rounds 5] [--json]
    python -m benchmarks.tcp_server --flood [--rate 550] [--newcomers 20] [--json]      see `benchmarks.tcp_flood`

The server is a process of its own: TLS, login, limits and saving to disk as in a real run; only its clock is moved by hand, so
that a round of 30 s takes less. The clients are fake in what they train, not in what they say: real TLS, real logins, real joins,
and per round the statements of 32 elected witnesses, one after the other so that no two merge into one message (the most bytes
and the most changes a round can cause). All clients take in every frame, apply the patch and check the hash.

What is measured:
    fanout_p99_ms               from the server's state change (before it is saved) until a client has decoded it, 99th percentile
                                over all changes and clients
    bytes_per_client_per_round  received on the wire, TLS included, plus the three pings of 30 s
    reference_…                 computed: the reference sends its 94,048-byte state twice a second to everybody
    server_rss_mb               resident memory of the server process at the end

All clients live in one process here, on machines of their own there: what they compute from equal bytes (the decoded state) is
computed once and shared, so that the figure is not 256 clients' work on our cores. TLS and bookkeeping of each is still in it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks import tcp_flood
from benchmarks.tcp_clients import STEP_SECONDS, Client, Fleet, Mark, Server, mark
from psyche_backend_tcp.connections.addresses import ServerAddress, parse_address
from psyche_backend_tcp.server import hosted_state
from psyche_backend_tcp.server.tcp_server import TcpServer
from psyche_core.coordinator import apply, new_state
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.hookspecs import ServerContext
from psyche_core.testing.backend import small_state

REFERENCE_STATE_BYTES = 94_048
REFERENCE_SENDS_PER_ROUND = 60
WITNESSES = 32
PINGS_PER_ROUND = 3
PING_BYTES = 2 + 4 + 22
"""A ping's CBOR, its length, and what TLS 1.3 adds to a record."""


# ---------------------------------------------------------------- the server process


def first_state(clients: int) -> CoordinatorState:
    small = small_state(clients=clients, run_id="benchmark")
    changes = {
        "min_clients": clients,
        "witness_nodes": min(WITNESSES, clients),
        "total_steps": 1_000_000,
        "warmup_time": 10_000,
        "max_round_train_time": 10_000,
        "round_witness_time": 10_000,
        "epoch_time": 1_000_000,
        "rounds_per_epoch": 1_000_000,
        "global_batch_size_start": 4 * clients,
        "global_batch_size_end": 4 * clients,
    }
    return new_state("benchmark", small.config.model_copy(update=changes), small.model, now=small.since, instance=small.instance)


async def serve(clients: int, folder: Path) -> None:
    """Host the run; stdin moves the clock, stdout tells each change and when it was made."""
    state = first_state(clients)
    now = state.since

    def tell(**facts: Any) -> None:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

    def timed_apply(before: CoordinatorState, *rest: Any) -> Any:
        after, events = apply(before, *rest)
        if after is not before and mark(after) != mark(before):
            tell(change=mark(after), at=time.monotonic())
        return after, events

    setattr(hosted_state, "apply", timed_apply)  # noqa: B010  # the moment of a change is nobody's business but this benchmark's
    server = TcpServer(ServerContext(state=state, state_dir=folder), clock=lambda: now)
    async with server, anyio.create_task_group() as group:
        group.start_soon(server.serve)
        tell(address=server.address)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            order = json.loads(line)
            if "seconds" in order:
                now += order["seconds"]
                server.tick()
            else:
                tell(rss_mb=resident_mb(), cpu_seconds=time.process_time())
        group.cancel_scope.cancel()


def resident_mb() -> float:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


# ---------------------------------------------------------------- measuring


def latencies(changes: list[tuple[Mark, float]], clients: list[Client]) -> list[float]:
    """Milliseconds from each change to each client that has it, or something newer. changes: in order, marks distinct."""
    places = {seen: place for place, (seen, _) in enumerate(changes)}
    found = []
    for client in clients:
        done = 0
        for seen, at in client.seen:
            place = places.get(seen, -1)
            found += [1000 * (at - changes[number][1]) for number in range(done, place + 1)]
            done = max(done, place + 1)
    return found


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextlib.asynccontextmanager
async def hosted(clients: int) -> AsyncIterator[tuple[Server, ServerAddress]]:
    with tempfile.TemporaryDirectory(prefix="psyche-benchmark-") as folder:
        command = [sys.executable, "-m", "benchmarks.tcp_server", "--serve", folder, "--clients", str(clients)]
        async with await anyio.open_process(command, stderr=None) as process:
            assert process.stdout is not None
            lines = BufferedByteReceiveStream(process.stdout)
            try:
                with anyio.fail_after(STEP_SECONDS):
                    address = json.loads(await lines.receive_until(b"\n", 1 << 16))["address"]
                yield Server(process, lines), parse_address(address)
            finally:
                process.terminate()


async def measure(clients: int, rounds: int) -> dict[str, Any]:
    """All figures, those of `--json` and what the table shows besides."""
    async with hosted(clients) as (server, address), anyio.create_task_group() as tasks:
        fleet = Fleet(clients, server)
        tasks.start_soon(server.follow, fleet.stir)
        began = time.monotonic()
        await fleet.gather(address, tasks)
        gathered = time.monotonic() - began
        await fleet.play_round()  # the first round of an epoch has nothing to attest
        await fleet.play_round()

        gc.collect()
        gc.freeze()
        first = len(server.changes)
        fleet.decoder.seconds.clear()
        for client in fleet.clients:
            client.seen.clear()
        received = [client.wire.received if client.wire is not None else 0 for client in fleet.clients]
        _, cpu_before = await server.weigh()
        began = time.monotonic()
        for _ in range(rounds):
            await fleet.play_round()
        played = time.monotonic() - began
        total = sum(client.wire.received for client in fleet.clients if client.wire is not None) - sum(received)
        rss_mb, cpu_after = await server.weigh()
        times = latencies(server.changes[first:], fleet.clients)
        bytes_received = total / clients / rounds + PINGS_PER_ROUND * PING_BYTES
        reference = REFERENCE_STATE_BYTES * REFERENCE_SENDS_PER_ROUND
        figures = {
            "fanout_p99_ms": round(percentile(times, 0.99), 2),
            "bytes_per_client_per_round": round(bytes_received),
            "reference_bytes_per_client_per_round": reference,
            "server_rss_mb": round(rss_mb, 1),
            "fanout_p50_ms": round(percentile(times, 0.5), 2),
            "fanout_max_ms": round(max(times), 2),
            "share_of_reference_percent": round(100 * bytes_received / reference, 3),
            "server_cpu_ms_per_round": round(1000 * (cpu_after - cpu_before) / rounds, 1),
            "changes_per_round": round((len(server.changes) - first) / rounds, 1),
            "decode_ms": round(1000 * percentile(fleet.decoder.seconds, 0.5), 2),
            "gather_seconds": round(gathered, 1),
            "real_seconds_per_round": round(played / rounds, 2),
        }
        tasks.cancel_scope.cancel()
    for client in fleet.clients:
        await client.aclose()
    return figures


JSON_FIGURES = ("fanout_p99_ms", "bytes_per_client_per_round", "reference_bytes_per_client_per_round", "server_rss_mb")
MOST_RATE = 5000


def show_floods(options: argparse.Namespace) -> int:
    figures = anyio.run(functools.partial(tcp_flood.measure, hosted, rate=options.rate, newcomers=options.newcomers))
    if options.json:
        print(json.dumps(figures))
        return 0

    print(f"{options.rate:g} connections a second, {options.newcomers} newcomers, {os.cpu_count()} cores")
    for name, values in figures.items():
        print(f"  {name:26}" + "".join(f"  {figure} {value}" for figure, value in values.items()))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tcp_server", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--clients", type=int, default=256, help="fake clients, 1 to 256 (256)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (5)")
    parser.add_argument("--flood", action="store_true", help="instead: newcomers and members while the server is flooded")
    parser.add_argument("--rate", type=float, default=550.0, help="of a flood: connections a second (550)")
    parser.add_argument("--newcomers", type=int, default=20, help="of a flood: those who try to get in (20)")
    parser.add_argument("--json", action="store_true", help="one line of JSON with the figures")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 1 <= options.clients <= 256 or options.rounds < 1:
        parser.error("expected 1 to 256 clients and at least one round")
    if not 0 < options.rate <= MOST_RATE or options.newcomers < 1:
        parser.error(f"expected up to {MOST_RATE} connections a second and at least one newcomer")

    if options.serve is not None:
        with contextlib.suppress(KeyboardInterrupt):
            anyio.run(serve, options.clients, options.serve)
        return 0

    if options.flood:
        return show_floods(options)

    figures = anyio.run(measure, options.clients, options.rounds)
    if options.json:
        print(json.dumps({name: figures[name] for name in JSON_FIGURES}))
    else:
        print(f"{options.clients} clients, {options.rounds} rounds of {WITNESSES} statements, {os.cpu_count()} cores")
        for name, value in figures.items():
            print(f"  {name:38} {value:>14,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
