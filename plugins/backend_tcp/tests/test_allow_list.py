from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from psyche_backend_tcp.connections.allow_list import AllowList
from psyche_core.errors import BackendClosed, CommandRefused, UserError
from psyche_core.testing.backend import until
from psyche_core.wire.signing import SecretKey

TIMEOUT = 10.0


def write(path: Path, *keys: SecretKey, more: str = "") -> None:
    whole = path.with_name(f"{path.name}.new")  # a server that looks meanwhile must not see an empty list
    whole.write_text("".join(f"{key.public.hex()}\n" for key in keys) + more)
    now = whole.stat()
    os.utime(whole, ns=(now.st_atime_ns, now.st_mtime_ns + 1_000_000 * (1 + len(keys) + len(more))))
    whole.replace(path)


def test_keys_comments_and_empty_lines_are_read(tmp_path: Path, keys: list[SecretKey]) -> None:
    path = tmp_path / "allowed"
    path.write_text(f"# ours\n\n  {keys[0].public.hex().upper()}   # Alice\n{keys[1].public.hex()}")
    allowed = AllowList(path)
    assert keys[0].public in allowed
    assert keys[1].public in allowed
    assert keys[2].public not in allowed


@pytest.mark.parametrize("line", ["abc", "zz" * 32, "00" * 31, "00" * 33, "alice"])
def test_a_line_that_is_no_key_is_named(tmp_path: Path, keys: list[SecretKey], line: str) -> None:
    path = tmp_path / "allowed"
    path.write_text(f"{keys[0].public.hex()}\n{line}\n")
    with pytest.raises(UserError, match="line 2: expected a public key of 64 hex digits"):
        AllowList(path)


def test_a_missing_list_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the allow-list"):
        AllowList(tmp_path / "nowhere")


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(
    tmp_path: Path, keys: list[SecretKey], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "allowed"
    write(path, keys[0])
    allowed = AllowList(path)
    assert not allowed.refresh()
    write(path, keys[0], keys[1])
    assert allowed.refresh()
    assert keys[1].public in allowed
    write(path, keys[0], more="a slip in an editor")
    assert not allowed.refresh()
    path.unlink()
    assert not allowed.refresh()
    assert keys[1].public in allowed
    assert caplog.text.count("the previous list stays in use") == 2
    write(path, keys[2])
    assert allowed.refresh()
    assert keys[0].public not in allowed


async def test_26_only_keys_on_the_list_get_in(serving: Any, client: Any, tmp_path: Path, keys: list[SecretKey]) -> None:
    """In the reference anyone who could reach the port could join (client defect 26)."""
    path = tmp_path / "allowed"
    write(path, keys[0])
    async with serving(allow_list=path) as server, client(server, keys[0]) as welcome:
        await welcome.join(b"here", timeout=TIMEOUT)
        with pytest.raises(CommandRefused, match=keys[1].public.hex()) as refused:
            async with client(server, keys[1]):
                pass
        assert refused.value.code == "NotAllowed"
        assert server.state.pending == (welcome.identity,)


async def test_27_who_is_taken_off_the_list_is_put_out_at_once(
    serving: Any, client: Any, tmp_path: Path, keys: list[SecretKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference looked at its list only at the handshake: removed peers kept their connections (client defect 27)."""
    monkeypatch.setattr("psyche_backend_tcp.server.tcp_server._ALLOW_LIST_SECONDS", 0.01)
    path = tmp_path / "allowed"
    write(path, keys[0], keys[1])
    async with serving(allow_list=path) as server, client(server, keys[0]) as stays, client(server, keys[1]) as goes:
        await stays.join(b"here", timeout=TIMEOUT)
        await goes.join(b"there", timeout=TIMEOUT)
        write(path, keys[0])
        with anyio.fail_after(TIMEOUT):
            with pytest.raises(BackendClosed, match="removed your key from the list"):
                await until(goes, lambda _: False)
            update = await until(stays, lambda update: len(update.addresses) == 1)
        assert update.state.pending == (stays.identity,)
        with pytest.raises(CommandRefused, match="NotAllowed"):
            async with client(server, keys[1]):
                pass
        write(path, keys[0], keys[1])
        with anyio.fail_after(TIMEOUT):
            while keys[1].public not in server._allow_list:
                await anyio.sleep(0.01)
        async with client(server, keys[1]) as back:
            await back.join(b"there", timeout=TIMEOUT)
