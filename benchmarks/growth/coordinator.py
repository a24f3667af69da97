"""How a coordinator over TCP grows with its members: time until all have a change, bytes, CPU and memory; and with rounds.

The server is a process and its members are real connections, as in `benchmarks.tcp_server`, which has the details.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from benchmarks import tcp_server
from benchmarks.growth.curves import Curve, curve
from benchmarks.tcp_clients import Fleet

ROUNDS = 5
LASTING_MEMBERS = 4
"""Few, because what a round leaves behind in the server does not depend on how many state it."""

Figures = dict[str, Any]


def measure(counts: Sequence[int], rounds: int, *, say: Callable[[str], None]) -> Figures:
    """By number of members the figures of `tcp_server.measure`; `lasting`: resident MB by number of rounds, up to `rounds`."""
    found: Figures = {"members": {}}
    for count in counts:
        say(f"coordinator: {count} members")
        found["members"][str(count)] = anyio.run(tcp_server.measure, count, ROUNDS)
    say(f"coordinator: {rounds} rounds")
    found["lasting"] = {str(played): rss for played, rss in anyio.run(_lasting, rounds).items()}
    return found


def curves(found: Figures) -> list[Curve]:
    """Each cost over the number of members, and memory over rounds."""
    costs = (
        ("fanout_p50_ms", "a change until everybody has it, median", "ms"),
        ("fanout_p99_ms", "a change until everybody has it, 99 %", "ms"),
        ("bytes_per_client_per_round", "received by a client in a round", "bytes"),
        ("server_cpu_ms_per_round", "the server's CPU of a round", "CPU ms"),
        ("decode_ms", "a client decodes the state", "ms"),
        ("server_rss_mb", "the server's memory", "MB"),
    )
    by_members = [
        curve(title, unit, "members", [(int(count), figures[name]) for count, figures in found["members"].items()])
        for name, title, unit in costs
    ]
    lasting = curve("the server's memory", "MB", "rounds", [(int(played), rss) for played, rss in found["lasting"].items()])
    return [*by_members, lasting]


async def _lasting(rounds: int) -> dict[int, float]:
    """Resident MB of a server after a tenth of the rounds, after two tenths and so on."""
    weights = {}
    async with tcp_server.hosted(LASTING_MEMBERS) as (server, address), anyio.create_task_group() as tasks:
        fleet = Fleet(LASTING_MEMBERS, server)
        tasks.start_soon(server.follow, fleet.stir)
        await fleet.gather(address, tasks)
        for played in range(1, rounds + 1):
            await fleet.play_round()
            if played % max(rounds // 10, 1) == 0:
                weights[played], _ = await server.weigh()
        tasks.cancel_scope.cancel()
    for client in fleet.clients:
        await client.aclose()
    return weights
