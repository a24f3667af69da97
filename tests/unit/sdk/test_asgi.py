"""A coordinator inside a web application: lifespan, state as JSON, events as a stream."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from sdk_parts import DATA, make_net, make_run
from starlette.applications import Starlette
from starlette.routing import Mount

import psyche_core as psyche
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.sdk import asgi
from psyche_core.sdk.event_log import EventLog
from psyche_core.types import RunState

KEY = psyche.SecretKey.generate()


async def get(app: Any, path: str, *, headers: dict[str, str] | None = None, gone: anyio.Event | None = None) -> tuple[int, str]:
    """Status and body, as a web server would ask for them. gone: when set, the one who asks has gone."""
    status, body = 0, b""

    async def receive() -> MutableMapping[str, Any]:
        await (gone or anyio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    return status, body.decode()


@asynccontextmanager
async def started(app: Any) -> AsyncIterator[None]:
    """The lifespan of an application, as a web server runs it."""
    to_app, from_server = anyio.create_memory_object_stream[dict[str, Any]](2)
    to_server, from_app = anyio.create_memory_object_stream[MutableMapping[str, Any]](2)
    async with to_app, from_server, to_server, from_app, anyio.create_task_group() as group:
        group.start_soon(app, {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, from_server.receive, to_server.send)
        await to_app.send({"type": "lifespan.startup"})
        assert (await from_app.receive())["type"] == "lifespan.startup.complete"
        yield
        await to_app.send({"type": "lifespan.shutdown"})
        assert (await from_app.receive())["type"] == "lifespan.shutdown.complete"


def messages(body: str) -> list[tuple[str | None, str, dict[str, Any]]]:
    """(id, event, data) of each message."""
    found = []
    for block in body.split("\n\n")[:-1]:
        if not block.startswith(":"):
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
    return found


async def test_a_mounted_coordinator_tells_a_whole_run() -> None:
    host = psyche.CoordinatorApp(make_run(steps=2, clients=1))
    app = Starlette(routes=[Mount("/run", app=host)], lifespan=host.lifespan)
    with anyio.fail_after(60):
        async with started(app):
            status, body = await get(app, "/run/")
            assert status == 200
            assert json.loads(body) == {
                "run_id": "tiny",
                "backend": "memory",
                "address": "in this process",
                "phase": "WaitingForMembers",
                "epoch": 0,
                "step": 1,
                "total_steps": 2,
                "height": None,
                "needed": 1,
                "members": [],
                "problem": None,
            }
            async with psyche.Client(host.coordinator.address, model=make_net(), data=DATA, key=KEY) as client:
                told = messages((await get(app, "/run/events"))[1])
                await client.wait()
                now = json.loads((await get(app, "/run/"))[1])

            names = [name for _, name, _ in told]
            assert names[:2] == ["phase_changed", "member_joined"]
            assert told[1][2] == {"member": KEY.public.hex()}
            assert [data["step"] for _, name, data in told if name == "round_settled"] == [1, 2]
            assert told[-1] == (None, "closed", {"phase": "Finished", "problem": None})
            assert (now["phase"], now["step"]) == ("Finished", 3)
            assert [member["member"] for member in now["members"]] == [KEY.public.hex()]

            after = told[3][0]
            assert after is not None
            rest = messages((await get(app, "/run/events", headers={"Last-Event-ID": after}))[1])
            assert rest == told[4:]
            another = messages((await get(app, "/run/events", headers={"Last-Event-ID": "00-4"}))[1])
            assert another == told
            start = after.partition("-")[0]
            endless = messages((await get(app, "/run/events", headers={"Last-Event-ID": f"{start}-{'1' * 5_000}"}))[1])
            assert endless == told, "Python reads no number of so many digits"


async def test_alone_it_runs_its_own_lifespan_and_each_start_is_another_coordinator() -> None:
    host = psyche.CoordinatorApp(make_run(clients=1), backend="tcp")
    for _ in range(2):
        async with started(host):
            address = json.loads((await get(host, "/"))[1])["address"]
            assert address == str(host.coordinator.address)
            assert address.startswith("127.0.0.1:")
        assert (await get(host, "/"))[0] == 503
        assert (await get(host, "/events"))[0] == 503
        with pytest.raises(RuntimeError, match=r"give the outer application lifespan=host\.lifespan"):
            _ = host.coordinator


async def test_who_goes_away_ends_the_stream() -> None:
    host = psyche.CoordinatorApp(make_run())
    gone = anyio.Event()
    with anyio.fail_after(20):
        async with started(host), anyio.create_task_group() as group:

            async def ask() -> None:
                status, body = await get(host, "/events", gone=gone)
                assert status == 200
                assert [name for _, name, _ in messages(body)] == ["phase_changed"]

            group.start_soon(ask)
            await anyio.sleep(0)
            gone.set()


async def test_a_stream_without_news_says_now_and_then_that_it_is_there() -> None:
    log: EventLog[str] = EventLog()
    log.put("first")
    heard = log.numbered(beat=0.01)
    assert [await anext(heard) for _ in range(3)] == [(1, "first"), (1, None), (1, None)]
    log.put("second")
    assert await anext(heard) == (2, "second")


async def test_what_stopped_the_server_is_told() -> None:
    broken: list[str] = []

    def on_change(state: CoordinatorState, _: object) -> None:
        if state.run_state is RunState.Warmup and not broken:
            broken.append("once")
            message = "no disk"
            raise OSError(message)

    host = psyche.CoordinatorApp(make_run(clients=1), on_change=on_change)
    with anyio.fail_after(60):
        async with started(host), psyche.Client(host.coordinator.address, model=make_net(), data=DATA):
            told = messages((await get(host, "/events"))[1])
            now = json.loads((await get(host, "/"))[1])
    assert told[-1] == (None, "closed", {"phase": "Warmup", "problem": "no disk"})
    assert now["problem"] == "no disk"


async def test_bytes_are_hex() -> None:
    event = psyche.run_events.EpochSigned(3, bytes(range(4)))
    assert asgi.event_message(event) == ("epoch_signed", {"step": 3, "digest": "00010203"})


def test_wrong_arguments_are_told_at_once() -> None:
    with pytest.raises(TypeError, match="takes a RunConfig, got a str"):
        psyche.CoordinatorApp("state.toml")  # type: ignore[arg-type]


def test_without_starlette_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['starlette'] = None\n"
        "import psyche_core as psyche\n"
        "run = psyche.RunConfig('tiny', total_steps=1, sequence_length=8, batch_size=1, learning_rate=1e-3)\n"
        "try: psyche.CoordinatorApp(run)\n"
        "except psyche.errors.UserError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "a coordinator in a web application needs Starlette: pip install 'psyche-core[asgi]'\n", done.stderr
