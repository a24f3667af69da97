"""What is forked is a process as any other, and what must not be forked is started from nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from psyche_core.telemetry.events import Started
from psyche_core.testnet.forking import ForkedProcess, ForkServer
from psyche_core.testnet.processes import Children
from tests.unit.testnet.conftest import server_arguments

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked"),
]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def forks(environment: Mapping[str, str], logs: Path, *modules: str) -> ForkServer:
    return ForkServer(["psyche_core.cli.commands.plugins", *modules], environment=environment, log=logs)


def _shown(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()


async def test_it_is_a_child_of_ours_in_a_session_of_its_own_and_shows_its_command(
    logs: Path, environment: Mapping[str, str], own_tokens: Path
) -> None:
    words = server_arguments(own_tokens)
    async with Children(logs, forks(environment, logs)) as children:
        child = await children.start("server", words, environment=environment, forked=True)
        assert isinstance(child.process, ForkedProcess)
        pid = child.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        assert f"\nPPid:\t{os.getpid()}\n" in status
        assert os.getsid(pid) == os.getpgid(pid) == pid
        expected = f"{sys.executable} -m psyche_core.cli.end_with_parent {' '.join(words)}"
        with anyio.fail_after(30):  # it runs already, and writes its command line as one of the first things it does
            while _shown(pid) != expected:
                await anyio.sleep(0.01)
        child.kill()
        assert await child.process.wait() == -signal.SIGKILL
    assert (logs / "fork-server.log").read_text() == ""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=[99], daemon=True).start()", "it has 2 threads"),
        ("kept = open(__file__)", "it has files open: {}/odd.py"),
        ("import no_such_module", "cannot import what its programs need: ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
async def test_what_must_not_be_forked_is_started_from_nothing(
    tmp_path: Path, logs: Path, environment: Mapping[str, str], code: str, reason: str
) -> None:
    (tmp_path / "odd.py").write_text(code)
    async with Children(logs, forks(environment, logs, "odd")) as children:
        for _ in range(2):
            child = await children.start("version", ["--version"], environment=environment, forked=True)
            assert not isinstance(child.process, ForkedProcess)
            assert await child.process.wait() == 0
    assert (logs / "fork-server.log").read_text() == f"not forked: {reason.format(tmp_path)}\n"


async def test_without_the_fork_server_its_programs_go_on_and_others_are_started_from_nothing(
    logs: Path, environment: Mapping[str, str], own_tokens: Path
) -> None:
    words = server_arguments(own_tokens)
    others = set(children_of_ours())  # of other tests of this process
    async with Children(logs, forks(environment, logs)) as children:
        first = await children.start("first", words, environment=environment, forked=True)
        assert isinstance(first.process, ForkedProcess)
        async for _, event in first.events():
            if isinstance(event, Started):
                break
        (server,) = set(children_of_ours()) - others - {first.process.pid}
        os.kill(server, signal.SIGKILL)
        second = await children.start("second", ["--version"], environment=environment, forked=True)
        assert not isinstance(second.process, ForkedProcess)
        assert await second.process.wait() == 0
        first.signal(signal.SIGINT)
        assert await first.process.wait() == 130


def children_of_ours() -> list[int]:
    """Ids of the child processes of all threads of this process that have not ended."""
    found = [int(word) for folder in Path("/proc/self/task").iterdir() for word in _text(folder / "children").split()]
    states = {each: _text(Path(f"/proc/{each}/status")) for each in found}
    return [each for each, status in states.items() if "\nState:\t" in status and "\nState:\tZ" not in status]


def _text(file: Path) -> str:
    """What a file of a thread or process says; nothing once that has ended, as another test's may at any moment."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def test_who_leaves_while_it_waits_for_the_imports_leaves_no_process(
    tmp_path: Path, logs: Path, environment: Mapping[str, str]
) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(99)")
    before = children_of_ours()
    with anyio.CancelScope() as scope:
        async with Children(logs, forks(environment, logs, "slow")) as children, anyio.create_task_group() as tasks:

            async def start() -> None:
                await children.start("version", ["--version"], environment=environment, forked=True)

            tasks.start_soon(start)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert children_of_ours() == before


def test_random_numbers_are_their_own() -> None:
    """Of Python and of numpy; both were imported before the fork."""
    script = (
        "import json, os, random, numpy.random\n"
        "from psyche_core.cli.fork_server import become\n"
        "for _ in range(2):\n"
        "    if not os.fork():\n"
        "        become([], [os.dup(number) for number in (0, 1, 2)])\n"
        "        print(json.dumps([random.random(), numpy.random.random()]), flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    ours, theirs = map(json.loads, done.stdout.splitlines())
    assert ours[0] != theirs[0]
    assert ours[1] != theirs[1]
