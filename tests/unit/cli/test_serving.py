"""What `psyche server run` makes of its options, and the owner's signal."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from psyche_backend_tcp.server.documents import Documents
from psyche_backend_tcp.server.hub import PendingSave
from psyche_backend_tcp.server.state_store import StateStore
from psyche_core.cli.commands.server import server as server_command_group
from psyche_core.cli.failures import Interrupted
from psyche_core.cli.program import _until_signal
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.server import ServerSettings
from psyche_core.config.run_config import Choice, RunFile, load_data_file
from psyche_core.coordinator import apply, new_state
from psyche_core.coordinator.commands import ClientsExited, Command
from psyche_core.coordinator.state import Account, Client, CoordinatorState, EpochEnd, Progress, Round
from psyche_core.errors import ConfigError, IdentityError, UserError
from psyche_core.hookspecs import LaterKnown
from psyche_core.interfaces.backend import OwnerControl
from psyche_core.plugins import PluginRegistry
from psyche_core.server.change_reporter import ChangeReporter
from psyche_core.server.owner_requests import pause_or_resume
from psyche_core.server.restarting import TrainedMembers, name_checkpoint, return_to_step, server_command
from psyche_core.server.run_files import load_run
from psyche_core.server.serving import KEY_FILE, first_config, serve_run, server_key
from psyche_core.server.token_preparation import prepare_tokens
from psyche_core.storage.folder_lock import locked_folder
from psyche_core.telemetry.events import (
    Event,
    MemberExited,
    MemberWithdrew,
    ModelLost,
    PhaseChanged,
    Problem,
    RunContinued,
    Started,
    StateIsOlder,
    Stopping,
    TokenFiles,
    WentBack,
)
from psyche_core.telemetry.sinks import EventBus
from psyche_core.testing.backend import small_state
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.ui.console import describe
from psyche_core.wire.signing import SecretKey


def settings(**given: Any) -> ServerSettings:
    return load_settings(ServerSettings, {"state": Path("state.toml"), **given})


def test_the_key_is_made_once_in_the_state_folder_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "saved"
    first = server_key(settings(save_state_dir=folder))
    assert server_key(settings(save_state_dir=folder)).public == first.public
    assert (folder / KEY_FILE).stat().st_mode & 0o077 == 0


def test_a_key_file_beats_the_state_folder(tmp_path: Path) -> None:
    SecretKey(b"k" * 32).save(tmp_path / "me.key")
    key = server_key(settings(save_state_dir=tmp_path / "saved", identity_secret_key_path=tmp_path / "me.key"))
    assert key.public == SecretKey(b"k" * 32).public
    assert not (tmp_path / "saved").exists()


def test_a_missing_key_file_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="openssl rand 32"):
        server_key(settings(identity_secret_key_path=tmp_path / "me.key"))
    assert not (tmp_path / "me.key").exists()


def test_without_either_the_key_lives_as_long_as_the_server() -> None:
    assert server_key(settings()).public != server_key(settings()).public


def test_first_epochs_settings_change_nothing_else(local_testnet: Any) -> None:
    folder = local_testnet()
    run = load_run(folder / "state.toml", folder / "data.toml", PluginRegistry.discover()).run
    config = first_config(run, settings(init_warmup_time=500))
    assert config == run.config.model_copy(update={"warmup_time": 500})
    assert first_config(run, settings()) == run.config


def test_first_epochs_settings_follow_the_rules(local_testnet: Any) -> None:
    folder = local_testnet()
    run = load_run(folder / "state.toml", folder / "data.toml", PluginRegistry.discover()).run
    with pytest.raises(ConfigError, match=r"--init-min-clients.*init_min_clients = 1000"):
        first_config(run, settings(init_min_clients=1000))


@pytest.mark.parametrize(
    ("state", "withdrawn", "ready", "sentence"),
    [
        (ClientState.Withdrawn, None, True, "left the run cleanly"),
        (ClientState.Withdrawn, "lost", True, "lost {}: its connection was lost, and it did not reconnect in time ("),
        (ClientState.Withdrawn, "not back", True, "not back yet after the server's start: {}, no longer a member until it joins"),
        (ClientState.Withdrawn, "not allowed", True, "withdrew {}: its key is no longer in the list of allowed clients"),
        (
            ClientState.Dropped,
            None,
            True,
            "dropped {} from this epoch: it sent no result, or sent it much later",
        ),
        (ClientState.Dropped, None, False, "dropped {} from this epoch: it was not ready when the first round began"),
        (ClientState.Ejected, None, True, "ejected {}: it signed two different results for one share"),
    ],
)
def test_who_leaves_in_order_is_not_called_lost(state: ClientState, withdrawn: str | None, ready: bool, sentence: str) -> None:
    """All of them were "lost"."""
    told: list[Event] = []
    reporter = ChangeReporter(EventBus(told.append), settings=settings(), trained=TrainedMembers())
    member = NodeIdentity(b"a" * 32, b"b" * 32)
    before = small_state(clients=1)
    epoch = replace(before.epoch, clients=(Client(member, state),), ready=(0,) if ready else ())
    if withdrawn is not None:
        reporter.note_withdrawn(member.signer, withdrawn)
    for _ in range(2 if withdrawn else 1):
        reporter.report_change(replace(before, epoch=epoch), (ClientsExited(epoch=0, slots=(0,)),))
    said = [describe(event) for event in told if isinstance(event, (MemberWithdrew, MemberExited))]
    assert sentence.format(member.short) in said[0]
    assert member.short in said[0]
    assert ("lost" in said[0]) == (withdrawn == "lost")
    assert "left the run cleanly" in said[-1] or not withdrawn, "the next time it is by itself that it leaves"


@pytest.mark.parametrize(
    ("change", "blamed"),
    [
        ({}, False),
        ({"height": 11}, True),
        ({"epoch": 5}, True),
        ({"generation": 1}, True),
        ({"continued": False}, True),
        ({"ready": ()}, True),
    ],
    ids=["under way", "later round", "later epoch", "after the run went back", "a server that began the run", "not ready"],
)
def test_nobody_is_blamed_for_a_round_in_which_the_server_was_started_again(change: dict[str, Any], blamed: bool) -> None:
    """All members had to begin again from their disks, and each was said to have sent no result or to be late."""
    case: dict[str, Any] = {"height": 10, "epoch": 4, "generation": 0, "continued": True, "ready": (0,)} | change
    before = small_state(clients=1)
    member = Client(NodeIdentity(b"a" * 32, b"b" * 32))
    rounds = tuple(Round(height, step=110 + height, seed=height, slots=(0,), batches=()) for height in (7, 8))
    epoch = replace(before.epoch, clients=(member,), ready=case["ready"], rounds=rounds)
    begun = replace(before, run_state=RunState.RoundTrain, progress=Progress(4, 118, 0), epoch=epoch)
    told: list[Event] = []
    reporter = ChangeReporter(EventBus(told.append), settings=settings(), trained=TrainedMembers())
    reporter.continue_from(begun, continued=case["continued"])

    gone = replace(member, state=ClientState.Dropped, exited_height=case["height"])
    progress = Progress(case["epoch"], 120, 0)
    state = replace(begun, generation=case["generation"], progress=progress, epoch=replace(epoch, clients=(gone,)))
    reporter.report_change(state, (ClientsExited(epoch=case["epoch"], slots=(0,)),))
    (said,) = [describe(event) for event in told if isinstance(event, MemberExited)]
    innocent = (
        f"dropped {member.id.short} from this epoch: no result came from it in the round that was under way when this server"
    )
    assert (innocent in said) != blamed


@pytest.mark.anyio
async def test_sigusr1_pauses_and_lets_go_on(local_testnet: Any, tmp_path: Path) -> None:
    folder = local_testnet()
    seen: list[str] = []
    changed = anyio.Event()
    started = anyio.Event()

    def sink(event: object) -> None:
        nonlocal changed
        if isinstance(event, Started):
            assert event.address.endswith("#" + event.id), "the line a client needs"
            started.set()
        if isinstance(event, PhaseChanged):
            seen.append(event.phase)
        changed.set()
        changed = anyio.Event()

    options = load_settings(
        ServerSettings,
        {"state": folder / "state.toml", "data_config": folder / "data.toml", "save_state_dir": tmp_path / "saved"},
    )
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(serve_run, options, PluginRegistry.discover(), EventBus(sink))
            await started.wait()
            await anyio.wait_all_tasks_blocked()
            assert seen == ["WaitingForMembers"], "told before anybody comes"
            for wanted in (["WaitingForMembers", "Paused"], ["WaitingForMembers", "Paused", "WaitingForMembers"]):
                os.kill(os.getpid(), signal.SIGUSR1)
                while seen != wanted:
                    await changed.wait()
            group.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize(("keeps", "changes"), [(True, False), (True, True), (False, False), (False, True)])
async def test_sigterm_is_answered_with_where_the_state_is(
    local_testnet: Any, tmp_path: Path, keeps: bool, changes: bool
) -> None:
    """The command's own way to run a server, with its signals. A state that nothing has changed is not on the disk."""
    folder = local_testnet()
    saved = tmp_path / "saved"
    told: list[Event] = []

    def sink(event: Event) -> None:
        told.append(event)
        match event:
            case Started() if not changes:
                asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
            case PhaseChanged(phase="Paused"):
                asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
            case _:
                pass

    async def owner(server: OwnerControl, report: EventBus) -> None:
        if changes:
            pause_or_resume(server, report)

    given = {"state": folder / "state.toml", "data_config": folder / "data.toml"} | ({"save_state_dir": saved} if keeps else {})
    program = functools.partial(
        serve_run, load_settings(ServerSettings, given), PluginRegistry.discover(), EventBus(sink), owner=owner
    )
    with anyio.fail_after(60), pytest.raises(Interrupted) as interrupted:
        await _until_signal(program)
    assert interrupted.value.signal_number == signal.SIGTERM
    assert told[-1] == Stopping(1, str(saved) if keeps and changes else None, unchanged=not changes)
    assert bool(list(saved.glob("*.state"))) == (keeps and changes), "only then it may be said to be there"


@pytest.mark.parametrize(
    ("host", "place", "warned"),
    [
        ("0.0.0.0", "127.0.0.1:20001", True),
        ("203.0.113.7", "localhost:20001", True),
        ("::", "[::1]:20001", True),
        ("127.0.0.1", "127.0.0.1:20001", False),
        ("0.0.0.0", "server.example.org:20001", False),
        ("0.0.0.0", "203.0.113.7:20001", False),
    ],
)
def test_a_data_server_that_only_this_machine_finds_is_no_use_to_members_elsewhere(
    local_testnet: Any, host: str, place: str, warned: bool
) -> None:
    folder = local_testnet()
    state = folder / "state.toml"
    state.write_text(re.sub('Server = ".*"', f'Server = "{place}"', state.read_text()))
    said = load_run(state, folder / "data.toml", PluginRegistry.discover()).data_only_here(host)
    assert (said is not None) is warned
    if said is not None:
        assert f"at {place}, which" in said
        assert 'Server = "server.example.org:20001"' in said


@pytest.mark.anyio
async def test_making_token_files_is_told_before_and_after(local_testnet: Any, tmp_path: Path) -> None:
    """Nothing else happens meanwhile. The folder is new, so they are made; the second time there is nothing to say."""
    folder = local_testnet()
    data = load_data_file(folder / "data.toml").model_copy(update={"dir": tmp_path / "new"})
    told: list[Event] = []
    ticks = itertools.count(step=4.0)
    assert await prepare_tokens(data, told.append, clock=lambda: next(ticks)) is not None
    first, *between, last = [event for event in told if isinstance(event, TokenFiles)]
    assert (first.texts, first.tokens, first.ready) == (0, 0, False)
    assert first.of > 10
    assert [event.texts for event in between] == list(range(3, first.of, 3)), "every ten seconds or so"
    assert [event.tokens for event in between] == sorted(event.tokens for event in between)
    assert (last.texts, last.of, last.ready) == (first.of, first.of, True)

    told.clear()
    assert await prepare_tokens(data, told.append) is not None
    assert told == []


def save_paused(run: RunFile, saved: Path, *, model_lost: bool) -> None:
    """Save the state of a paused run before step 7, as a server does."""
    start = new_state(run.run_id, run.config, run.model, progress=Progress(0, 1, 0), now=0, instance=b"i" * 32)
    there = replace(start, progress=Progress(1, 7, 60), run_state=RunState.Paused, model_lost=model_lost, from_checkpoint=False)
    draft = Documents(start, {}).draft(there, {})
    assert draft is not None
    StateStore(saved, run.run_id).save(PendingSave(1, draft, None))


@pytest.mark.anyio
async def test_a_run_whose_plugins_are_not_here_is_hosted_and_the_server_says_so(local_testnet: Any) -> None:
    folder = local_testnet()
    state = folder / "state.toml"
    state.write_text(state.read_text().replace("[model.LLM.optimizer.Distro", "[model.LLM.optimizer.Zebra"))
    events: list[Event] = []
    warned = anyio.Event()

    def sink(event: Event) -> None:
        events.append(event)
        if isinstance(event, Problem):
            warned.set()

    given = {"state": state, "data_config": folder / "data.toml", "server_port": 0}
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(serve_run, load_settings(ServerSettings, given), PluginRegistry.discover(), EventBus(sink))
            await warned.wait()
            group.cancel_scope.cancel()
    (problem,) = [event for event in events if isinstance(event, Problem)]
    assert problem.message.startswith(
        "model.LLM.optimizer = Zebra: no optimizer plugin is named Zebra; installed optimizer plugins: "
    )
    assert problem.message.endswith("; so it is not checked here, but by every member, each of which needs it")
    assert any(isinstance(event, Started) for event in events)


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
    with anyio.fail_after(60):
        await saved_run(local_testnet(), tmp_path / "saved", model_lost=True, events=events, restart_from_checkpoint=True)
    assert [event for event in events if isinstance(event, WentBack)] == [WentBack(6, 0, from_checkpoint=True)]


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


@pytest.mark.parametrize("made", [False, True], ids=["missing", "empty"])
def test_a_server_s_data_folder_that_is_missing_or_empty_can_be_mended(
    psyche: Any, local_testnet: Any, tmp_path: Path, made: bool
) -> None:
    folder = local_testnet()
    text = (folder / "data.toml").read_text().partition("\n[text]")[0]
    place = tmp_path / "nothing"
    if made:
        place.mkdir()
    (folder / "data.toml").write_text(re.sub(r"^dir = .*$", f'dir = "{place}"', text, flags=re.MULTILINE))
    files = ("--state", folder / "state.toml", "--data-config", folder / "data.toml")
    result = psyche("server", "run", *files, "--server-port", 0, "--logs", "none")
    assert result.code == 2
    assert ("has no token files; expected files named" if made else "cannot look for token files in") in result.err


@pytest.mark.anyio
async def test_a_second_server_of_the_same_folder_is_refused(local_testnet: Any, tmp_path: Path) -> None:
    """Two histories went into one file. Who only looks at what is saved may do so meanwhile."""
    folder, saved = local_testnet(), tmp_path / "saved"
    files = {"state": folder / "state.toml", "data_config": folder / "data.toml", "save_state_dir": saved}
    started = anyio.Event()
    report = EventBus(lambda event: started.set() if isinstance(event, Started) else None)
    options = load_settings(ServerSettings, {**files, "server_port": 0})
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(serve_run, options, PluginRegistry.discover(), report)
            await started.wait()
            with pytest.raises(UserError, match=f"^another server keeps its state in {saved}; stop that server"):
                await serve_run(options, PluginRegistry.discover(), EventBus())
            StateStore(saved, "local-testnet").load()
            group.cancel_scope.cancel()
    with locked_folder(saved, argument="--save-state-dir"):
        pass


def test_a_folder_in_use_is_exit_code_2(psyche: Any, local_testnet: Any, tmp_path: Path) -> None:
    folder = local_testnet()
    files = ("--state", folder / "state.toml", "--data-config", folder / "data.toml", "--save-state-dir", tmp_path)
    with locked_folder(tmp_path, argument="--save-state-dir"):
        result = psyche("server", "run", *files, "--server-port", 0, "--logs", "none")
    assert result.code == 2
    assert f"another server keeps its state in {tmp_path}; stop that server" in result.err


def test_a_server_stopped_by_sigterm_ends_with_the_documented_exit_code(psyche: Any, local_testnet: Any) -> None:
    """Supervisors compare it: 128 + 15, as 130 is that of Ctrl-C."""
    folder = local_testnet()
    command = [sys.executable, "-m", "psyche_core", "server", "run", f"--state={folder / 'state.toml'}"]
    command += [f"--data-config={folder / 'data.toml'}", "--server-port=0", "--logs=json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            while '"started"' not in (line := server.stdout.readline()):
                assert line, "the server ended"
            server.terminate()
            server.stdout.read()
            assert server.wait(30) == 143
        finally:
            server.kill()
    assert "143 after SIGTERM" in " ".join(psyche("server", "run", "--help").out.split())
    policy = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
    assert "exit codes 0, 1, 2, 130 (SIGINT) and 143 (SIGTERM)" in policy


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
