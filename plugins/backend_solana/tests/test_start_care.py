"""Clients that are started, watched, replaced and ended, as real processes that only note what happens to them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from start_parts import notes, until, write_stub

from psyche_backend_solana.commands.client import supervisor as client_supervisor
from psyche_backend_solana.commands.client.plan import PipEnvironment, Plan, ThisInstallation
from psyche_backend_solana.commands.client.process import Launch, Ready, run_tool, succeeds
from psyche_backend_solana.commands.client.supervisor import RestartPolicy, SupervisorTimes, Versions, take_part
from psyche_core.errors import BackendError, UserError

QUICK = SupervisorTimes(poll=0.02, restart=0.02, leave=30.0, firm=30.0)


class Run:
    """What a run asks for, and clients for it. asks: changed by tests. failing: plans that cannot be prepared."""

    def __init__(self, folder: Path, *, code: str = 'client("stub")\n') -> None:
        self.asks = "test"
        self.log = folder / "log"
        self.hold = folder / "hold"
        self.unreachable = False
        self.failing: set[Plan] = set()
        self.prepared: list[Plan] = []
        self.seen: list[str] = []
        self._program = write_stub(folder / "client", code)

    async def read(self) -> str:
        self.seen.append("nothing" if self.unreachable else self.asks)
        if self.unreachable:
            message = "no endpoint answers"
            raise BackendError(message)

        return self.asks

    def plan(self, text: str) -> Plan:
        if text == "bad":
            message = "that is refused"
            raise UserError(message)

        return ThisInstallation() if text == "test" else PipEnvironment(text)

    async def prepare(self, plan: Plan) -> Ready:
        self.prepared.append(plan)
        if plan in self.failing:
            message = "pip could not install it"
            raise UserError(message)

        environment: Mapping[str, str] = os.environ | {"STUB_LOG": str(self.log), "STUB_HOLD": str(self.hold)}
        launch = Launch((str(self._program), str(plan)), environment)
        return lambda: launch

    async def take_part(self, times: SupervisorTimes = QUICK) -> int:
        return await take_part(self.asks, Versions(read=self.read, plan=self.plan, prepare=self.prepare), times=times)

    def started(self) -> list[str]:
        return [note["argv"][0] for note in notes(self.log, "started")]

    def told(self) -> list[int]:
        return [note["signal"] for note in notes(self.log, "told")]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@given(st.lists(st.tuples(st.integers(-20, 255), st.floats(0, 1000)), max_size=30))
def test_no_client_is_started_again_for_ever(ends: list[tuple[int, float]]) -> None:
    restarts, early = RestartPolicy(), 0
    for code, ran in ends:
        again = restarts.again(code, ran=ran)
        assert not (again and (code <= 0 or code in (2, 130, 143)))
        early = early + 1 if ran < client_supervisor.HEALTHY_SECONDS else 1
        if early >= client_supervisor.TRIES + len(ends):
            assert not again
    restarts = RestartPolicy()
    assert [restarts.again(1, ran=1.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert RestartPolicy(failures=4).again(1, ran=500.0)


@pytest.mark.parametrize(("code", "starts", "ended"), [(0, 1, 0), (2, 1, 2), (1, 5, 1)])
async def test_a_client_that_fails_is_started_again_and_one_that_ends_is_not(
    tmp_path: Path, code: int, starts: int, ended: int
) -> None:
    run = Run(tmp_path, code=f'note("started", argv=sys.argv[1:])\nsys.exit({code})\n')
    assert await run.take_part() == ended
    assert len(run.started()) == starts


async def test_a_client_that_a_signal_ends_is_not_started_again(tmp_path: Path) -> None:
    run = Run(tmp_path, code="os.kill(os.getpid(), signal.SIGKILL)\n")
    assert await run.take_part() == 137


async def test_another_version_is_prepared_while_the_old_one_runs_and_takes_its_place(run: Run) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.take_part)
        await until(lambda: run.started() == ["this installation's client"])
        run.unreachable = True
        await until(lambda: run.seen.count("nothing") > 1)
        assert run.told() == [], "who cannot read the version goes on"
        run.asks, run.failing, run.unreachable = "9.0", {PipEnvironment("9.0")}, False
        await until(lambda: len(run.prepared) >= 3)
        assert run.told() == [], "what cannot be prepared ends nobody"
        run.failing = set()
        await until(lambda: run.told() == [signal.SIGINT])
        assert len(run.started()) == 1, "the old one has not left yet"
        run.hold.touch()
        await until(lambda: run.started() == ["this installation's client", "psyche-core 9.0"])
        assert [note["what"] for note in notes(run.log)] == ["started", "told", "left", "started"]
        tasks.cancel_scope.cancel()
    assert run.told() == [signal.SIGINT] * 2, "whoever is cancelled asks its client to leave, too"


async def test_the_same_client_by_another_name_stays(run: Run) -> None:
    run.asks = "9.0"
    same = run.plan
    run.plan = lambda text: same("9.0" if text == "v9.0" else text)  # type: ignore[method-assign]
    run.hold.touch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.take_part)
        await until(run.started)
        run.asks = "v9.0"
        await until(lambda: run.seen.count("v9.0") > 1)
        run.asks = "test"
        await until(lambda: len(run.started()) == 2)
        tasks.cancel_scope.cancel()
    assert run.prepared == [PipEnvironment("9.0"), ThisInstallation()]


async def test_a_version_that_is_refused_ends_the_client_in_order_and_says_why(run: Run) -> None:
    run.hold.touch()
    failure: list[str] = []

    async def take_part_in_it() -> None:
        with pytest.raises(UserError, match="that is refused") as refused:
            await run.take_part()
        failure.append(str(refused.value))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_part_in_it)
        await until(run.started)
        run.asks = "bad"
    assert failure
    assert [note["what"] for note in notes(run.log)] == ["started", "told", "left"]


@pytest.mark.parametrize("asks", ["bad", "9.0"])
async def test_what_cannot_be_run_at_all_is_said_at_once(run: Run, asks: str) -> None:
    run.asks, run.failing = asks, {PipEnvironment("9.0")}
    with pytest.raises(UserError, match=r"that is refused|could not install"):
        await run.take_part()
    assert notes(run.log) == []


async def test_a_client_that_does_not_leave_is_ended(tmp_path: Path) -> None:
    run = Run(tmp_path)  # it waits for a file that never comes
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.take_part, SupervisorTimes(poll=0.02, restart=0.02, leave=0.05, firm=30.0))
        await until(run.started)
        run.asks = "9.0"
        await until(lambda: len(run.started()) == 2)
        run.hold.touch()
        tasks.cancel_scope.cancel()
    assert run.told()[:2] == [signal.SIGINT, signal.SIGTERM]


async def test_a_client_that_ignores_everything_is_killed(tmp_path: Path) -> None:
    deaf = "for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)\n"
    run = Run(tmp_path, code=deaf + 'note("started", argv=sys.argv[1:])\nwhile True: time.sleep(9)\n')
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.take_part, SupervisorTimes(poll=0.02, leave=0.02, firm=0.02))
            await until(run.started)
            tasks.cancel_scope.cancel()
    (started,) = notes(run.log, "started")
    with pytest.raises(ProcessLookupError):
        os.kill(started["pid"], 0)


async def test_a_tool_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log, code = tmp_path / "log", "import subprocess, sys; print('working', flush=True); subprocess.run([sys.argv[1]])"
    stub = write_stub(tmp_path / "child")
    environment = os.environ | {"STUB_LOG": str(log)}
    async with anyio.create_task_group() as tasks:

        async def work() -> None:
            await run_tool((sys.executable, "-c", code, str(stub)), environment, timeout=30.0)

        tasks.start_soon(work)
        await until(lambda: notes(log, "started"))
        tasks.cancel_scope.cancel()
    await until(lambda: notes(log, "left"))
    with pytest.raises(UserError, match=r"has not ended within 0\.2 s"):
        await run_tool((sys.executable, "-c", "import time; time.sleep(60)"), os.environ, timeout=0.2)
    said = capfd.readouterr()
    assert said.out == ""
    assert "working" in said.err, "stdout is the client's"


async def test_a_program_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    for tool in (run_tool, succeeds):
        with pytest.raises(UserError, match=r"cannot start .*nothing: No such file"):
            await tool((str(tmp_path / "nothing"),), os.environ, timeout=5.0)


def test_a_launch_does_not_print_its_secrets() -> None:
    assert "secret" not in repr(Launch(("psyche",), {"RAW_WALLET_PRIVATE_KEY": "secret"}))
