"""What `psyche server run` makes of its options, and the owner's signal."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from server_runs import settings

from psyche_backend_tcp.server.state_store import StateStore
from psyche_core.cli.failures import Interrupted
from psyche_core.cli.program import _until_signal
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.server import ServerSettings
from psyche_core.config.run_config import load_data_file
from psyche_core.coordinator.commands import ChallengeClosed, ClientsExited
from psyche_core.coordinator.membership.missed_duties import MAX_MISSED
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import Account, Client, Progress, Round
from psyche_core.errors import ConfigError, IdentityError, UserError
from psyche_core.interfaces.backend import OwnerControl
from psyche_core.plugins import PluginRegistry
from psyche_core.server.change_reporter import ChangeReporter
from psyche_core.server.owner_requests import pause_or_resume
from psyche_core.server.restarting import TrainedMembers
from psyche_core.server.run_files import load_run
from psyche_core.server.serving import KEY_FILE, first_config, serve_run, server_key
from psyche_core.server.token_preparation import prepare_tokens
from psyche_core.storage.folder_lock import locked_folder
from psyche_core.telemetry.events import (
    Event,
    MemberExited,
    MemberWithdrew,
    PhaseChanged,
    PointsCounted,
    Problem,
    ShareChecked,
    Started,
    Stopping,
    TokenFiles,
)
from psyche_core.telemetry.sinks import EventBus
from psyche_core.testing.backend import small_state
from psyche_core.types import ClientState, NodeIdentity, RunState, WitnessStatement
from psyche_core.ui.event_text import describe
from psyche_core.verification.standing import Standing
from psyche_core.wire.signing import SecretKey


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


def test_points_are_told_where_they_change_and_by_a_server_that_continues() -> None:
    told: list[Event] = []
    reporter = ChangeReporter(EventBus(told.append), settings=settings(), trained=TrainedMembers())
    before = replace(small_state(clients=1), accounts=(Account(b"a" * 32, 7), Account(b"b" * 32)))
    reporter.continue_from(before, continued=True)
    reporter.report_beginning()
    reporter.report_change(before, ())
    reporter.report_change(replace(before, accounts=(Account(b"a" * 32, 7), Account(b"b" * 32, 5, 2))), ())
    counted = [event.accounts for event in told if isinstance(event, PointsCounted)]
    assert counted == [(("61616161", 7, 0),), (("62626262", 5, 2),)]


def test_checked_shares_are_told_with_names_and_who_is_ejected_for_strikes_too() -> None:
    told: list[Event] = []
    reporter = ChangeReporter(EventBus(told.append), settings=settings(), trained=TrainedMembers())
    one, two = NodeIdentity(b"a" * 32, b"b" * 32), NodeIdentity(b"c" * 32, b"d" * 32)
    before = small_state(clients=1)
    clients = (Client(one, ClientState.Ejected, standing=Standing(2)), Client(two))
    closed = ChallengeClosed(
        epoch=0, height=4, trainer=0, verifier=1, outcome="GUILTY", strikes=(0,), missed=(), paid=(1,), requeued=True
    )
    after = replace(before, epoch=replace(before.epoch, clients=clients, ready=(0, 1)))
    reporter.report_change(after, (closed, ClientsExited(epoch=0, slots=(0,))))
    assert told[-2:] == [
        ShareChecked(0, 4, one.short, two.short, "guilty", (one.short,)),
        MemberExited(0, one.short, "struck"),
    ]


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


@pytest.mark.parametrize(
    ("own", "saw", "missed", "elected", "why"),
    [
        (True, False, 0, 0, "slow"),  # it stated as a witness, so it was there
        (False, True, 0, 0, "slow"),  # some witness had its result
        (False, False, 0, 0, "silent"),
        (False, False, MAX_MISSED, 0, "unstated"),
        (False, False, 0, 1, "late"),  # it was no witness, so nobody knows
        (None, False, 0, 0, "late"),  # the round is no longer stored
    ],
)
def test_it_is_said_whether_a_member_sent_no_result_or_sent_it_late(
    own: bool | None, saw: bool, missed: int, elected: int, why: str
) -> None:
    """Each was said to have done one or the other."""
    before = small_state(clients=1)
    members = tuple(Client(NodeIdentity(bytes([65 + at]) * 32, bytes([97 + at]) * 32)) for at in range(3))
    bits = bytes([6 if saw else 4, *([0] * 31)])  # slot 2, and slot 1 if it was seen
    slots = (1, 2) if own else (2,)
    statements = tuple(WitnessStatement(0, 8, slot, bits, b"", b"", b"") for slot in slots)
    attesting = Round(8, step=9, seed=next(_seeds_without(1)), slots=(0, 1, 2), batches=(), statements=statements)
    config = before.config.model_copy(update={"witness_nodes": elected})
    gone = replace(members[1], state=ClientState.Dropped, exited_height=9, missed=missed)
    clients = (members[0], gone, members[2])
    epoch = replace(before.epoch, clients=clients, ready=(0, 1, 2), rounds=() if own is None else (attesting,))
    told: list[Event] = []
    reporter = ChangeReporter(EventBus(told.append), settings=settings(), trained=TrainedMembers())
    reporter.report_change(replace(before, config=config, epoch=epoch), (ClientsExited(epoch=0, slots=(1,)),))
    assert [event.why for event in told if isinstance(event, MemberExited)] == [why]


def _seeds_without(slot: int) -> Iterator[int]:
    """Seeds of rounds of three members in which this one is not elected as the only witness."""
    config = small_state(clients=1).config.model_copy(update={"witness_nodes": 1})
    for seed in range(1000):
        played = Round(8, step=9, seed=seed, slots=(0, 1, 2), batches=())
        if slot not in witness_slots(replace(small_state(clients=1), config=config), played):
            yield seed


def test_who_waits_after_a_first_epoch_of_fewer_is_told_once_why() -> None:
    """A run that had begun with one client stood still in its second epoch, and its owner did not see why."""
    told: list[Event] = []
    reporter = ChangeReporter(EventBus(told.append), settings=settings(init_min_clients=1), trained=TrainedMembers())
    first = small_state(clients=1)
    waits = first.config.model_copy(update={"init_min_clients": 3})
    member = NodeIdentity(b"a" * 32, b"b" * 32)
    reporter.report_change(replace(first, run_state=RunState.WaitingForMembers), ())
    second = replace(first, run_state=RunState.WaitingForMembers, progress=Progress(1, 5, 0), config=waits)
    for pending in ((member,), (), (member,)):
        reporter.report_change(replace(second, pending=pending), ())
    said = [describe(event) for event in told if isinstance(event, Problem)]
    assert said == [
        "warning: epoch 1 needs 3 clients, the run's init_min_clients: --init-min-clients 1 was for the first epoch only"
    ]
    assert describe(told[-1]) == "WaitingForMembers: epoch 1, step 5, 1 of 3 clients that are needed to start"


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
