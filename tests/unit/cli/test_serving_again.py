"""A server of a run that it or another one has served before: what it says, and how its owner lets the run go on."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from server_runs import settings

from psyche_backend_tcp.server.documents import Documents
from psyche_backend_tcp.server.hub import PendingSave
from psyche_backend_tcp.server.state_store import StateStore
from psyche_core.cli.commands.server import server as server_command_group
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.server import ServerSettings
from psyche_core.config.run_config import Choice, RunFile
from psyche_core.coordinator import apply, new_state
from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.state import Account, Client, CoordinatorState, EpochEnd, Progress
from psyche_core.errors import ConfigError, UserError
from psyche_core.hookspecs import LaterKnown
from psyche_core.plugins import PluginRegistry
from psyche_core.server.change_reporter import ChangeReporter
from psyche_core.server.restarting import TrainedMembers, name_checkpoint, return_to_step, server_command
from psyche_core.server.run_files import load_run
from psyche_core.server.serving import KEY_FILE, serve_run
from psyche_core.telemetry.events import (
    Event,
    ModelLost,
    PhaseChanged,
    Problem,
    RunContinued,
    StateIsOlder,
    WentBack,
)
from psyche_core.telemetry.sinks import EventBus
from psyche_core.testing.backend import small_state
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.wire.signing import SecretKey


def save_paused(run: RunFile, saved: Path, *, model_lost: bool) -> None:
    """Save the state of a paused run before step 7, as a server does."""
    start = new_state(run.run_id, run.config, run.model, progress=Progress(0, 1, 0), now=0, instance=b"i" * 32)
    there = replace(start, progress=Progress(1, 7, 60), run_state=RunState.Paused, model_lost=model_lost, from_checkpoint=False)
    draft = Documents(start, {}).draft(there, {})
    assert draft is not None
    StateStore(saved, run.run_id).save(PendingSave(1, draft, None))


async def saved_run(folder: Path, saved: Path, *, model_lost: bool, events: list[Event], **options: Any) -> None:
    """Serve a paused run whose state was saved before step 7, until it has said what it makes of that."""
    given = {"state": folder / "state.toml", "data_config": folder / "data.toml", "save_state_dir": saved}
    quiet = anyio.Event()

    def sink(event: Event) -> None:
        events.append(event)
        if isinstance(event, ModelLost | WentBack):
            quiet.set()

    run = load_run(folder / "state.toml", folder / "data.toml", PluginRegistry.discover()).run
    save_paused(run, saved, model_lost=model_lost)
    settings = load_settings(ServerSettings, given | options)
    async with anyio.create_task_group() as group:
        group.start_soon(serve_run, settings, PluginRegistry.discover(), EventBus(sink))
        await quiet.wait()
        group.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_run_without_a_model_says_so_when_its_server_starts_again(local_testnet: Any, tmp_path: Path) -> None:
    events: list[Event] = []
    with anyio.fail_after(60):
        await saved_run(local_testnet(), tmp_path / "saved", model_lost=True, events=events)
    (lost,) = [event for event in events if isinstance(event, ModelLost)]
    assert (lost.step, lost.away, lost.ask_again) == (6, (), f"kill -USR1 {os.getpid()}")
    words = shlex.split(lost.begin_again)
    assert words[:3] == ["psyche", "server", "run"]
    assert words[-1] == "--restart-from-checkpoint"
    assert words[words.index("--save-state-dir") + 1] == str(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.state")
    assert [event for event in events if isinstance(event, RunContinued)] == [RunContinued(1, 7, str(file))]
    assert lost.state_dir == str(tmp_path / "saved")


@pytest.mark.anyio
@pytest.mark.parametrize("before", [False, True], ids=["first-start", "state-is-missing"])
async def test_a_server_that_had_a_run_says_that_a_new_one_begins(local_testnet: Any, tmp_path: Path, before: bool) -> None:
    """Its owner started it with an emptied folder, and it said nothing."""
    events: list[Event] = []
    begun = anyio.Event()

    def sink(event: Event) -> None:
        events.append(event)
        if isinstance(event, PhaseChanged):
            begun.set()

    folder, saved = local_testnet(), tmp_path / "saved"
    given = {"state": folder / "state.toml", "data_config": folder / "data.toml", "save_state_dir": saved}
    if before:
        saved.mkdir()
        SecretKey.generate().save(saved / KEY_FILE)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(serve_run, load_settings(ServerSettings, given), PluginRegistry.discover(), EventBus(sink))
            await begun.wait()
            group.cancel_scope.cancel()
    said = [event.message for event in events if isinstance(event, Problem) and "a NEW run" in event.message]
    assert len(said) == before
    if before:
        assert "before step 1: " in said[0]
        assert "stop this server now and put its saved state back" in said[0]


@contextlib.contextmanager
def typed(line: str, *, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """What a shell runs where a line is typed in a folder, with its output; ended in any case."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        f"exec {line}", shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], part: str) -> list[str]:
    """The lines of a program up to the first with `part` in it."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if part in line:
            return lines
    pytest.fail("\n".join(["it ended", *lines]))


@pytest.mark.parametrize("port", ["--server-port=0", ""], ids=["any port, given", "any port"])
def test_what_the_owner_is_told_to_type_works_as_printed(local_testnet: Any, tmp_path: Path, port: str) -> None:
    """Copied from the log of a server as the README starts it, into a shell in another folder."""
    folder = local_testnet()
    (tmp_path / "elsewhere").mkdir()
    run = load_run(folder / "state.toml", folder / "data.toml", PluginRegistry.discover()).run
    save_paused(run, tmp_path / "saved", model_lost=True)
    state = (folder / "state.toml").relative_to(tmp_path)
    begin = f"psyche server run --state {state} --data-config {folder / 'data.toml'} --save-state-dir saved {port}"
    with typed(begin, folder=tmp_path) as server:
        lines = read_until(server, "THE MODEL IS LOST")
        (address,) = re.findall(r"serving run local-testnet at (\S+)", "\n".join(lines))
        (resume,) = re.findall(r"ask its members again \((.*?)\)", lines[-1])
        assert "stop the server (Ctrl-C or SIGTERM) and start it once with `psyche" in lines[-1]
        assert "the stored checkpoint (step 0, the beginning of the run) is lost" in lines[-1]
        subprocess.run(resume, shell=True, check=True, timeout=30)
        read_until(server, "WaitingForMembers")

        command = lines[-1].split("`")[1]
        with typed(command, folder=tmp_path) as second:
            read_until(second, "another server keeps its state in")
        server.terminate()
        server.wait(60)

    save_paused(run, tmp_path / "saved", model_lost=True)
    with typed(command, folder=tmp_path / "elsewhere") as server:
        again = read_until(
            server, "WENT BACK: no member had the model after step 6; the run continues from the stored checkpoint"
        )
    assert any(line.endswith(f"serving run local-testnet at {address}") for line in again)


def test_a_run_that_lost_nothing_is_not_served_first(local_testnet: Any, tmp_path: Path, psyche: Any) -> None:
    folder = local_testnet()
    files = ("--state", folder / "state.toml", "--data-config", folder / "data.toml", "--save-state-dir", tmp_path / "saved")
    run = load_run(folder / "state.toml", folder / "data.toml", PluginRegistry.discover()).run
    save_paused(run, tmp_path / "saved", model_lost=False)
    for option in (["--restart-from-checkpoint"], ["--restart-from-step", 3], ["--checkpoint", "hf://friend/model"]):
        result = psyche("server", "run", *files, *option)
        assert (result.code, result.out) == (2, ""), "it served the run first"
        assert f"Error: {option[0]}" in result.err


@pytest.mark.anyio
async def test_its_owner_lets_it_go_on_from_the_stored_checkpoint(local_testnet: Any, tmp_path: Path) -> None:
    events: list[Event] = []
    folder = local_testnet()
    with anyio.fail_after(60):
        await saved_run(folder, tmp_path / "saved", model_lost=True, events=events, restart_from_checkpoint=True)
    there = load_run(folder / "state.toml", folder / "data.toml", PluginRegistry.discover()).run.model.LLM.checkpoint.describe()
    assert there.startswith("Hub ")
    assert [event for event in events if isinstance(event, WentBack)] == [WentBack(6, 0, from_checkpoint=True, checkpoint=there)]


@pytest.mark.anyio
async def test_what_is_not_lost_is_not_given_up(local_testnet: Any, tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as raised, anyio.fail_after(60):
        await saved_run(local_testnet(), tmp_path / "saved", model_lost=False, events=[], restart_from_checkpoint=True)
    assert raised.group_contains(
        UserError, match=r"--restart-from-checkpoint is for a run that has lost its model.*before step 7"
    )


@pytest.mark.parametrize("number", range(4))
def test_the_owner_s_command_line_is_that_of_the_server(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was given on the command line or in the environment is given again, except what was meant for one start."""
    given: dict[str, Any] = [
        {},
        {"save_state_dir": Path("my folder"), "server_port": 20000, "withdraw_on_disconnect": False},
        {"save_state_dir": Path("saved"), "restart_from_step": 7, "checkpoint": "hf://friend/model", "with_relay": True},
        {"reconnect_seconds": 0.5, "restart_from_checkpoint": True, "logs": "json"},
    ][number]
    monkeypatch.setenv("PSYCHE_INIT_MIN_CLIENTS", "2")
    settings_given = settings(**given)
    line = server_command(settings_given, "--restart-from-checkpoint")
    monkeypatch.delenv("PSYCHE_INIT_MIN_CLIENTS")
    parsed: dict[str, Any] = {}
    monkeypatch.setattr("psyche_core.cli.commands.server.log_to_stderr", lambda: None)

    def keep(cls: type[ServerSettings], values: dict[str, Any]) -> ServerSettings:
        parsed.update(values)
        raise UserError("parsed")

    monkeypatch.setattr("psyche_core.cli.commands.server.load_settings", keep)
    words = shlex.split(line)
    assert words[0] == "psyche"
    with pytest.raises(UserError, match="parsed"):
        server_command_group.main([*words[2:]], standalone_mode=False)
    once = {"restart_from_step": None, "checkpoint": None, "restart_from_checkpoint": True}
    again = load_settings(ServerSettings, parsed)
    folders = {name: path.absolute() for name, path in given.items() if isinstance(path, Path)}
    assert again == settings_given.model_copy(update={**once, "state": Path("state.toml").absolute(), **folders})


def test_members_that_trained_and_are_not_here_may_have_the_model() -> None:
    """Those of the last epoch come first; who was ejected lied, and who waits or is in the epoch is here."""
    keys = [NodeIdentity(bytes((number,)) * 32, bytes((number,)) * 32) for number in range(6)]

    def epoch(run_state: RunState, *members: tuple[int, ClientState], pending: tuple[int, ...] = ()) -> CoordinatorState:
        clients = tuple(Client(keys[number], state) for number, state in members)
        state = replace(small_state(), run_state=run_state, pending=tuple(keys[number] for number in pending))
        return replace(state, epoch=replace(state.epoch, clients=clients))

    healthy, dropped, ejected = ClientState.Healthy, ClientState.Dropped, ClientState.Ejected
    trained = TrainedMembers()
    trained.see(epoch(RunState.RoundTrain, (0, healthy), (1, dropped), (2, healthy)))
    trained.see(epoch(RunState.Warmup, (3, healthy)))
    trained.see(epoch(RunState.Cooldown, (2, healthy), (4, ejected), (1, healthy)))
    now = epoch(RunState.Paused, (0, healthy), (2, dropped))
    assert trained.away(now) == ("02020202", "01010101")
    earned = replace(now, accounts=(Account(b"\5" * 32, earned=3), Account(b"\4" * 32, slashed=2)), pending=(keys[1],))
    assert trained.away(earned) == ("02020202", "05050505")


def test_the_owner_is_told_once_of_each_later_state() -> None:
    told: list[Event] = []
    reporter = ChangeReporter(EventBus(told.append), settings=settings(), trained=TrainedMembers())
    reporter.continue_from(run_at(RunState.RoundTrain))
    for member, step in ((b"a", 9), (b"b", 9), (b"b", 8)):
        reporter.report_later_state(LaterKnown(epoch=2, step=step, path=Path("saved/r.state"), member=member * 32))
    assert told == [
        StateIsOlder(1, 7, 2, 9, "saved/r.state", "61616161"),
        StateIsOlder(1, 7, 2, 8, "saved/r.state", "62626262"),
    ]


def test_a_lost_model_after_an_older_state_is_told_with_the_latest_state_known() -> None:
    told: list[Event] = []
    given = settings(save_state_dir=Path("saved"))
    reporter = ChangeReporter(EventBus(told.append), settings=given, trained=TrainedMembers())
    reporter.continue_from(run_at(RunState.Paused), continued=True)
    reporter.report_lost_model(run_at(RunState.Paused))
    for member, step in ((b"a", 8), (b"b", 9), (b"c", 7)):
        reporter.report_later_state(LaterKnown(epoch=2, step=step, path=Path("saved/r.state"), member=member * 32))
    reporter.report_lost_model(run_at(RunState.Paused))
    here = Path("saved/r.state.later")
    reporter.report_later_state(LaterKnown(epoch=1, step=9, path=Path("saved/r.state"), later_path=here))
    reporter.report_lost_model(run_at(RunState.Paused))
    lost = [(event.state_dir, event.known_step, event.later_path) for event in told if isinstance(event, ModelLost)]
    assert lost == [("saved", None, None), ("saved", 9, None), ("saved", 9, str(here))]


def test_a_run_that_began_here_has_no_older_state() -> None:
    told: list[Event] = []
    given = settings(save_state_dir=Path("saved"))
    reporter = ChangeReporter(EventBus(told.append), settings=given, trained=TrainedMembers())
    reporter.continue_from(run_at(RunState.Paused))
    reporter.report_lost_model(run_at(RunState.Paused))
    assert [event.state_dir for event in told if isinstance(event, ModelLost)] == [""]


class Door:
    """A server that takes its owner's commands and does nothing else."""

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state

    def submit(self, command: Command) -> None:
        self.state, _ = apply(self.state, command, 5000, 1)


def run_at(run_state: RunState, **changes: Any) -> CoordinatorState:
    return replace(small_state(), progress=Progress(1, 7, 60), run_state=run_state, **changes)


@pytest.mark.parametrize(
    ("run_state", "changes", "then"),
    [
        (RunState.Paused, {"model_lost": True, "from_checkpoint": False}, RunState.Paused),
        (RunState.Warmup, {"from_checkpoint": True}, RunState.WaitingForMembers),
        (RunState.WaitingForMembers, {"from_checkpoint": True}, RunState.WaitingForMembers),
    ],
)
def test_the_owner_names_another_place_of_the_stored_checkpoint(run_state: RunState, changes: Any, then: RunState) -> None:
    door = Door(run_at(run_state, **changes))
    before = door.state
    name_checkpoint(door, "hf://friend/model@main")  # type: ignore[arg-type]
    assert door.state.model.LLM.checkpoint == Choice("Hub", {"repo_id": "friend/model", "revision": "main"})
    assert door.state.run_state is then
    assert (door.state.progress, door.state.model_lost) == (before.progress, before.model_lost)
    assert door.state.from_checkpoint is before.from_checkpoint


@pytest.mark.parametrize("run_state", [RunState.RoundTrain, RunState.Warmup, RunState.Paused])
def test_where_members_have_the_model_no_other_place_is_named(run_state: RunState) -> None:
    door = Door(run_at(run_state, from_checkpoint=run_state is RunState.RoundTrain))
    before = door.state
    with pytest.raises(
        UserError, match=rf"--checkpoint is for a run that must continue from its stored .* {run_state.name} before step 7"
    ):
        name_checkpoint(door, "hf://friend/model")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is not the URL of a model store; expected hf://"):
        name_checkpoint(door, "friend/model")  # type: ignore[arg-type]
    assert door.state is before


ENDS = (EpochEnd(3, 30, b"d" * 32), EpochEnd(5, 50, b"e" * 32))


@pytest.mark.parametrize("run_state", [RunState.Paused, RunState.WaitingForMembers, RunState.Warmup])
@pytest.mark.parametrize("step", [4, 6])
def test_the_owner_returns_the_run_to_a_signed_epoch_end(run_state: RunState, step: int) -> None:
    door = Door(run_at(run_state, ends=ENDS, model_lost=run_state is RunState.Paused))
    assert return_to_step(door, step) == WentBack(6, step - 1, from_checkpoint=False, by_owner=True)  # type: ignore[arg-type]
    state = door.state
    assert (state.run_state, state.progress) == (RunState.WaitingForMembers, Progress(1, step, 10 * (step - 1)))
    assert (state.generation, state.from_checkpoint, state.model_lost) == (1, False, False), "the members' own model"


@pytest.mark.parametrize(
    ("state", "step", "sentence"),
    [
        (
            run_at(RunState.Paused, ends=ENDS),
            5,
            r"--restart-from-step 5: .* the steps that follow such an end are: 6, 4\. Members keep only",
        ),
        (run_at(RunState.Paused, ends=(EpochEnd(6, 60, b"d" * 32),)), 7, r"the steps that follow such an end are: none now"),
        (run_at(RunState.RoundTrain, ends=ENDS), 6, r"the run is in RoundTrain; start the server without this option, pause the"),
        (run_at(RunState.Cooldown, ends=ENDS), 6, r"the run is in Cooldown"),
        (run_at(RunState.Finished, ends=ENDS), 6, r"the run is finished"),
    ],
)
def test_a_run_returns_to_signed_ends_only_and_not_while_it_trains(state: CoordinatorState, step: int, sentence: str) -> None:
    door = Door(state)
    with pytest.raises(UserError, match=sentence):
        return_to_step(door, step)  # type: ignore[arg-type]
    assert door.state is state
