"""What `psyche server run` makes of its options, and the owner's signal."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from psyche_core.cli.run_files import load_run
from psyche_core.cli.serving import KEY_FILE, first_config, serve_run, server_key
from psyche_core.client.report import PhaseChanged, Report, Started
from psyche_core.errors import ConfigError, IdentityError
from psyche_core.plugins import PluginRegistry
from psyche_core.settings import ServerSettings, load_settings
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
            group.start_soon(serve_run, options, PluginRegistry.discover(), Report(sink))
            await started.wait()
            await anyio.wait_all_tasks_blocked()
            for wanted in (["Paused"], ["Paused", "WaitingForMembers"]):
                os.kill(os.getpid(), signal.SIGUSR1)
                while seen != wanted:
                    await changed.wait()
            group.cancel_scope.cancel()
