"""The page about the local chain: its command parses, its code runs, its table is the faults there are."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from psyche_backend_solana.localnet.program import localnet
from psyche_backend_solana.localnet.rpc.faults import FAULT_NAMES

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "local-chain.md").read_text()


def test_commands_parse() -> None:
    commands = re.findall(r"^\$ psyche solana localnet (.*)$", PAGE, flags=re.MULTILINE)
    assert commands
    for command in commands:
        localnet.make_context("localnet", shlex.split(command))


def test_code_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_the_table_names_every_fault() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) == FAULT_NAMES
