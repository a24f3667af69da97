"""The local chain under @solana/web3.js, which nobody here wrote; installed by npm for the test, outside the repository."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from psyche_backend_solana.localnet import ChainSettings, LocalChain

_PACKAGE = "@solana/web3.js@1.98.4"
_SCRIPT = Path(__file__).with_name("web3_client.mjs")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("web3")
    command = [npm, "install", _PACKAGE, "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries", "1"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=90)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm could not install {_PACKAGE}: {error}")
    shutil.copy(_SCRIPT, folder)
    return folder


@pytest.mark.slow
async def test_web3_js_finds_what_it_expects(folder: Path) -> None:
    async with LocalChain(ChainSettings(slot_ms=100, programs={})) as chain, asyncio.timeout(60):
        process = await asyncio.create_subprocess_exec(
            "node", _SCRIPT.name, chain.rpc_url, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = await process.communicate()
        assert (process.returncode, output.decode()) == (0, "web3.js is content\n")
