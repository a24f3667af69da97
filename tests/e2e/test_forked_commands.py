"""Commands of a shell script that are forked: they end as those that a user starts."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fork_server import shared
from forked_commands import forked_commands

FRESH = "solana nonsense"
PRINTS_IMPORTS = "PYTHONPROFILEIMPORTTIME=1"


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    with forked_commands(tmp_path, shared(), fresh=FRESH) as psyche:
        yield {**os.environ, "PATH": f"{psyche.parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.e2e
def test_a_script_goes_on_or_ends_as_with_any_program(environment: dict[str, str], tmp_path: Path) -> None:
    def typed(script: str) -> tuple[int, str, str]:
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    code, output, errors = typed('NAME=$(psyche --version | cut -d " " -f 1); psyche nonsense || echo "$NAME: $?"')
    assert (code, output) == (0, "psyche: 2\n")
    assert "No such command 'nonsense'" in errors
    code, output, _ = typed("psyche nonsense | cat; echo not reached")
    assert (code, output) == (2, "")
    code, output, _ = typed(
        "mkdir there; cd there; psyche solana keygen key.json; psyche solana keygen key.json; echo not reached"
    )
    assert code == 2
    assert len(output.split()) == 1
    assert (tmp_path / "there" / "key.json").exists()
    imported = [typed(f"{PRINTS_IMPORTS} psyche {words}")[2] for words in (FRESH, "nonsense")]
    assert ["import time" in errors for errors in imported] == [True, False]


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_command_and_what_was_forked_for_it(environment: dict[str, str], number: int) -> None:
    command = ["psyche", "solana", "localnet", "--rpc-port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "ready\n" in iter(process.stdout.readline, "")
        process.send_signal(number)
        assert process.wait(timeout=30) == -number
        process.stdout.read()  # until nobody has the pipe any more
