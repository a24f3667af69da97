"""Where a client puts large files: the folder that was named, else the system's cache folder, else one of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from psyche_core.client.setup.assemble import _open_scratch
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.loading import load_settings
from psyche_core.errors import ConfigError

GIVEN = {"run_id": "run", "server_addr": "127.0.0.1:1"}


def folder_of(named: Path | None) -> Path:
    scratch = _open_scratch(named)
    path = scratch.create("test").path
    scratch.close()
    assert not path.exists()
    return path.parent


def test_the_folder_that_was_named_is_used(tmp_path: Path) -> None:
    assert folder_of(tmp_path / "mine") == tmp_path / "mine" / "scratch"


def test_otherwise_it_is_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder_of(None) == tmp_path / "psyche" / "scratch"


def test_a_system_without_a_usable_cache_folder_is_no_reason_not_to_take_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service account without a home, a container with a read-only file system."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    path = folder_of(None)
    assert tmp_path not in path.parents
    with pytest.raises(ConfigError, match="--cache-dir"):
        folder_of(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "default", "bad"), [("max_concurrent_parameter_requests", 8, 0), ("max_concurrent_downloads", 8, 0)]
)
def test_limits_of_what_is_fetched_at_once(name: str, default: int, bad: int) -> None:
    assert getattr(load_settings(ClientSettings, GIVEN), name) == default
    assert getattr(load_settings(ClientSettings, {**GIVEN, name: 2}), name) == 2
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}: got {bad}"):
        load_settings(ClientSettings, {**GIVEN, name: bad})
