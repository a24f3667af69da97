"""A server that trains nobody: the small program that is started here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from psyche_core.testnet.processes import child_environment
from tests.conftest import LocalTestnet


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """Of programs that find modules in tmp_path."""
    return child_environment(threads=1) | {"PYTHONPATH": str(tmp_path)}


def server_arguments(config: Path) -> list[str]:
    files = ["--state", str(config / "state.toml"), "--data-config", str(config / "data.toml")]
    return ["server", "run", *files, "--logs", "json"]


@pytest.fixture
def own_tokens(local_testnet: LocalTestnet, tmp_path: Path) -> Path:
    """A run whose token files are the user's own, so that nothing has to be tokenised."""
    config = local_testnet()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokens.bin").write_bytes(bytes(2 * 128 * 40))
    text = (config / "data.toml").read_text()
    lines = [f'dir = "{tmp_path / "mine"}"' if line.startswith("dir = ") else line for line in text.splitlines()]
    (config / "data.toml").write_text("\n".join(lines))
    return config
