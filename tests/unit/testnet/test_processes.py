"""Children are real processes here, small ones that load no torch: some started from nothing, some forked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
import pytest

from psyche_core.telemetry.events import Started
from psyche_core.testnet import processes
from psyche_core.testnet.forking import ForkServer
from psyche_core.testnet.processes import Children, child_environment
from tests.unit.testnet.conftest import server_arguments

pytestmark = pytest.mark.timeout(60)

ChildrenOf = Callable[[Path], Children]


@pytest.fixture(params=["started", "forked"])
def children_of(request: pytest.FixtureRequest, environment: Mapping[str, str]) -> ChildrenOf:
    """A function that makes children with a folder for their logs, which start them from nothing, or fork them."""

    def children(logs: Path) -> Children:
        forks = ForkServer(["psyche_core.cli.commands.server"], environment=environment, log=logs)
        return Children(logs, forks if request.param == "forked" else None)

    return children


async def test_what_is_no_event_goes_to_the_log(tmp_path: Path, environment: Mapping[str, str], children_of: ChildrenOf) -> None:
    async with children_of(tmp_path) as children:
        child = await children.start("listing", ["plugins", "list"], environment=environment, forked=True)
        events = [event async for event in child.events()]
        assert await child.process.wait() == 0
    assert events == []
    assert any(line.startswith("data") for line in child.last_lines(50))
    assert child.sentence is None


async def test_a_child_s_error_sentence_is_found(tmp_path: Path, environment: Mapping[str, str], children_of: ChildrenOf) -> None:
    async with children_of(tmp_path) as children:
        child = await children.start("server", ["server", "run", "--state", "nowhere.toml"], environment=environment, forked=True)
        assert [event async for event in child.events()] == []
        assert await child.process.wait() == 2
    assert child.sentence is not None
    assert child.sentence.startswith("cannot read the run configuration nowhere.toml")


async def test_events_arrive_and_leaving_stops_the_child_s_program_in_order(
    tmp_path: Path, own_tokens: Path, environment: Mapping[str, str], children_of: ChildrenOf
) -> None:
    async with children_of(tmp_path) as children:
        child = await children.start("server", server_arguments(own_tokens), environment=environment, forked=True)
        async for _, event in child.events():
            if isinstance(event, Started):
                break
        assert isinstance(event, Started)
        assert event.address.startswith("127.0.0.1:")
        assert child.process.returncode is None
    ended: int | None = child.process.returncode
    assert ended == 128 + signal.SIGTERM, "it heard SIGTERM and cleaned up"
    assert "Traceback" not in "\n".join(child.last_lines(50))


async def test_ctrl_c_ends_a_server_with_130(
    tmp_path: Path, own_tokens: Path, environment: Mapping[str, str], children_of: ChildrenOf
) -> None:
    async with children_of(tmp_path) as children:
        child = await children.start("server", server_arguments(own_tokens), environment=environment, forked=True)
        async for _, event in child.events():
            if isinstance(event, Started):
                child.signal(signal.SIGINT)
        assert await child.process.wait() == 130
    assert child.last_lines(50) == []


async def test_a_server_on_a_port_in_use_says_so(
    tmp_path: Path, own_tokens: Path, environment: Mapping[str, str], children_of: ChildrenOf
) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, children_of(tmp_path) as children:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        arguments = [*server_arguments(own_tokens), "--server-port", str(port)]
        child = await children.start("server", arguments, environment=environment, forked=True)
        assert [event async for event in child.events()] == []
        assert await child.process.wait() == 2
    assert str(port) in (child.sentence or "")
    assert len(child.last_lines(50)) == 1


async def test_one_that_ignores_sigterm_is_killed(
    tmp_path: Path,
    own_tokens: Path,
    environment: Mapping[str, str],
    children_of: ChildrenOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.2)
    async with children_of(tmp_path) as children:
        child = await children.start("server", server_arguments(own_tokens), environment=environment, forked=True)
        async for _, event in child.events():
            if isinstance(event, Started):
                os.kill(child.process.pid, signal.SIGSTOP)  # a stopped process does not hear SIGTERM
                break
    assert child.process.returncode == -signal.SIGKILL


async def test_cancelling_stops_the_children_too(
    tmp_path: Path, own_tokens: Path, environment: Mapping[str, str], children_of: ChildrenOf
) -> None:
    with anyio.CancelScope() as scope:
        async with children_of(tmp_path) as children:
            child = await children.start("server", server_arguments(own_tokens), environment=environment, forked=True)
            async for _, event in child.events():
                if isinstance(event, Started):
                    scope.cancel()
    assert scope.cancelled_caught
    assert child.process.returncode is not None


@pytest.mark.parametrize("forked", [False, True])
async def test_children_end_with_us_however_we_end(tmp_path: Path, own_tokens: Path, forked: bool) -> None:
    """The starter is a process of its own here, and it is killed: it has no chance to stop anybody."""
    script = (
        "import anyio, sys\n"
        "from pathlib import Path\n"
        "from psyche_core.telemetry.events import Started\n"
        "from psyche_core.testnet.forking import ForkServer\n"
        "from psyche_core.testnet.processes import Children, child_environment\n"
        "environment = child_environment(threads=1)\n"
        "async def main():\n"
        "    folder = Path(sys.argv[2])\n"
        "    forks = ForkServer(['psyche_core'], environment=environment, log=folder) if sys.argv[1] == 'True' else None\n"
        "    async with Children(folder, forks) as children:\n"
        "        child = await children.start('server', sys.argv[3:], environment=environment, forked=True)\n"
        "        async for _, event in child.events():\n"
        "            if isinstance(event, Started):\n"
        "                print(child.process.pid, flush=True)\n"
        "anyio.run(main)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(forked), str(tmp_path), *server_arguments(own_tokens)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline())
        os.kill(child, 0)
        starter.kill()
    try:
        with anyio.fail_after(20):
            while Path(f"/proc/{child}").exists() and "\nState:\tZ" not in Path(f"/proc/{child}/status").read_text():
                await anyio.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_children_do_not_inherit_our_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_SERVER_ADDR", "elsewhere:1")
    monkeypatch.setenv("HOME_OF_MINE", "here")
    environment = child_environment(threads=3)
    assert "PSYCHE_SERVER_ADDR" not in environment
    assert environment["HOME_OF_MINE"] == "here"
    assert environment["OMP_NUM_THREADS"] == "3"
