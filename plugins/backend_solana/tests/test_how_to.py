"""The how-to pages about runs on Solana: their commands, one after the other, on a chain."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import anyio
import pytest

from fork_server import shared
from forked_commands import forked_commands
from psyche_backend_solana.localnet import ChainSettings, LocalChain
from psyche_core.config.run_config import VerificationConfig, parse_run_file

REPOSITORY = Path(__file__).parents[3]
PAGES = ("create-a-run", "join-a-run", "permissioned-runs", "many-machines", "rewards", "bonds", "own-programs")
"""In the order in which they are read."""


def script() -> str:
    pages = [(REPOSITORY / "docs" / "how-to" / f"solana-{name}.md").read_text() for name in PAGES]
    return "\n".join(block for page in pages for block in re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL))


def test_no_page_is_left_out() -> None:
    assert {path.name for path in (REPOSITORY / "docs" / "how-to").glob("solana-*.md")} == {f"solana-{name}.md" for name in PAGES}


def test_the_table_for_checks_of_members_is_valid_and_says_what_holds_without_its_thresholds() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "solana-create-a-run.md").read_text()
    [table] = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    config, _, model = table.partition("\n\n")
    run = (REPOSITORY / "examples" / "solana_testnet" / "state.toml").read_text()
    run, changed = re.subn(r"^verification_percent = 0$", config.removeprefix("[config]\n"), run, flags=re.MULTILINE)
    assert changed == 1
    parsed = parse_run_file(f"{run}\n{model}", source="the page")
    assert parsed.config.verification_percent == 10
    assert parsed.model.thresholds == VerificationConfig()


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_the_commands_of_the_pages_do_what_they_say(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("data"))  # as in a fresh clone
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PSYCHE_")}
    async with LocalChain(ChainSettings(slot_ms=50)) as chain:
        environment |= {"PSYCHE_RPC": chain.rpc_url, "PSYCHE_WS_RPC": chain.ws_url}
        environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
        # One command starts from nothing, as everybody's do: `json-dump-user`, which the pages show once.
        with anyio.fail_after(380), forked_commands(tmp_path, shared(), fresh="run-manager json-dump-user"):
            done = await anyio.run_process(
                ["bash", "-euo", "pipefail", "-c", script()],
                cwd=tmp_path,
                env=environment,
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
    said = done.stdout.decode()
    assert done.returncode == 0, said
    assert "everybody may join now" in said
    assert "300000000" in said
