"""The local chain under @solana/web3.js, which nobody here wrote and `make setup` installs."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from psyche_backend_solana.localnet import ChainSettings, LocalChain

_MODULES = Path(sys.prefix) / "web3" / "node_modules"
"""Where `make setup` puts it: tests have no network."""

_SCRIPT = Path(__file__).with_name("web3_client.mjs")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if shutil.which("node") is None or not (_MODULES / "@solana" / "web3.js").is_dir():
        pytest.skip("needs node, and @solana/web3.js in .venv/web3, where `make setup` installs it when there is npm")
    (tmp_path / "node_modules").symlink_to(_MODULES)
    shutil.copy(_SCRIPT, tmp_path)
    return tmp_path


@pytest.mark.slow
async def test_web3_js_finds_what_it_expects(folder: Path) -> None:
    async with LocalChain(ChainSettings(slot_ms=100, programs={})) as chain, asyncio.timeout(60):
        process = await asyncio.create_subprocess_exec(
            "node", _SCRIPT.name, chain.rpc_url, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = await process.communicate()
        assert (process.returncode, output.decode()) == (0, "web3.js is content\n")
