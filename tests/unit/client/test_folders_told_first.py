"""What this machine lacks, and folders that cannot be used, are told before anybody is connected to."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from psyche_core.client.setup.assemble import train_client
from psyche_core.config.options.client import ClientSettings
from psyche_core.errors import BackendError, ConfigError, UserError
from psyche_core.plugins import PluginRegistry
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.training.checkpoints.folder_member import last_member, member_file, note_member
from psyche_core.training.checkpoints.journal.lock import journal_path, lock_journal
from psyche_core.wire.signing import SecretKey


@pytest.mark.parametrize("wrong", [{"base": "nosuch"}, {"checkpoint_dir": "a-file"}], ids=["base", "checkpoints"])
async def test_folders_that_are_none_are_told_before_anything_is_joined(tmp_path: Path, wrong: dict[str, str]) -> None:
    (tmp_path / "a-file").write_text("")
    given: dict[str, Any] = {"run_id": "world", "server_addr": "127.0.0.1:9", "base": tmp_path}
    settings = ClientSettings(**(given | {name: tmp_path / value for name, value in wrong.items()}))
    with pytest.raises(ConfigError, match=r"--(base|checkpoint-dir) .* (is no folder|is a file); give"):
        await train_client(settings, PluginRegistry.discover(), EventBus(lambda _: None))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"device": "cuda:77"}, "device cuda:77 was asked for, but torch .* CUDA devices"),
        ({"device": "gpu"}, "a device is auto, cpu, mps, cuda, .* got 'gpu'"),
        ({"validation_data": Path("nowhere")}, "--validation-data 'nowhere': No such file"),
        ({"eval_include_path": Path("nowhere")}, "--eval-include-path 'nowhere' is no folder; give one with YAML files"),
        ({"publish_journal": Path("journals")}, "--publish-journal copies the journal .* needs --checkpoint-dir FOLDER"),
        (
            {"publish_journal": Path(__file__), "checkpoint_dir": Path(__file__).parent},
            "--publish-journal .* is a file; give a folder",
        ),
        ({"write_gradients_dir": Path(__file__)}, "--write-gradients-dir .*: File exists; give a folder"),
        ({"write_distro_data": Path(__file__) / "below"}, "--write-distro-data .*: Not a directory; give a folder"),
    ],
)
async def test_what_this_machine_lacks_is_told_once_and_before_anybody_is_connected_to(
    tmp_path: Path, option: dict[str, Any], said: str
) -> None:
    """Nothing listens at that address, and a client would wait there. Told are events; the command's one line is the error."""
    settings = ClientSettings(run_id="world", server_addr="127.0.0.1:9", base=tmp_path, **option)
    told: list[telemetry.Event] = []
    with pytest.raises(UserError, match=said):
        await train_client(settings, PluginRegistry.discover(), EventBus(told.append))
    assert told == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("what", "said"), [("use", "another process uses the journal"), ("pipe", "is a named pipe, expected")])
async def test_a_folder_that_cannot_be_used_is_told_before_anybody_is_connected_to(tmp_path: Path, what: str, said: str) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    if what == "pipe":
        os.mkfifo(journal_path(saved, "world"))
    settings = ClientSettings(run_id="world", server_addr="127.0.0.1:9", base=tmp_path, checkpoint_dir=saved)
    told: list[telemetry.Event] = []
    with lock_journal(saved, "world") if what == "use" else contextlib.nullcontext(), pytest.raises(ConfigError, match=said):
        await train_client(settings, PluginRegistry.discover(), EventBus(told.append))
    assert told == [], "it was never started"


async def test_a_folder_of_another_member_is_used_and_said_so(tmp_path: Path) -> None:
    """Nobody listens at that address: the client ends there, after it has looked at its folder."""
    saved = tmp_path / "saved"
    names = []
    for name in ("one", "other"):
        key = SecretKey.generate()
        key.save(tmp_path / f"{name}.key")
        names.append(key.public.hex()[:16])

    async def start(name: str | None) -> list[str]:
        key = None if name is None else tmp_path / f"{name}.key"
        settings = ClientSettings(
            run_id="world",
            server_addr="127.0.0.1:9",
            base=tmp_path,
            checkpoint_dir=saved,
            identity_secret_key_path=key,
            reconnect_seconds=0,
        )
        told: list[telemetry.Event] = []
        with pytest.raises(BackendError, match="cannot connect"):
            await train_client(settings, PluginRegistry.discover(), EventBus(told.append))
        return [event.message for event in told if isinstance(event, telemetry.Problem)]

    assert await start(None) == [], "somebody new each time, who can be nobody's owner"
    assert await start("one") == []
    (saved / "world-step3").mkdir()
    (saved / "world-step3" / "model.safetensors").write_bytes(b"weights")
    before = {path.name: path.read_bytes() for path in saved.rglob("*") if path.is_file() and not path.name.endswith("-member")}
    assert await start("one") == []
    (said,) = await start("other")
    assert said.startswith(
        f"{saved} was last used by member {names[0]}, and we are {names[1]}. Its checkpoints and journal are used"
    )
    assert await start("other") == [], "told once"
    assert len(await start(None)) == 1
    assert await start("other") == [], "who has no key of its own leaves no name"
    after = {path.name: path.read_bytes() for path in saved.rglob("*") if path.is_file() and not path.name.endswith("-member")}
    assert after == before, "nothing is lost"


@pytest.mark.parametrize("damage", [b"", b"zz" * 32, b"ab" * 31, None], ids=["empty", "no-hex", "short", "folder"])
def test_a_note_of_the_member_that_cannot_be_read_is_none(tmp_path: Path, damage: bytes | None) -> None:
    path = member_file(tmp_path, "world")
    if damage is None:
        path.mkdir()
    else:
        path.write_bytes(damage)
    assert last_member(tmp_path, "world") is None
    note_member(tmp_path, "world", bytes(32))
    assert last_member(tmp_path, "world") == (None if damage is None else bytes(32))
