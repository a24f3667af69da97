"""Fixtures of these tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio
import anyio.from_thread
import pytest
from model_runs import all_programs

from plugins.backend_solana.tests.commands.shell import START, Shell
from psyche_backend_solana.localnet.chain import LocalChain
from psyche_backend_solana.localnet.settings import ChainSettings


@pytest.fixture(scope="module")
def portal() -> Iterator[anyio.from_thread.BlockingPortal]:
    with anyio.from_thread.start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, portal: anyio.from_thread.BlockingPortal) -> Iterator[Shell]:
    settings = ChainSettings(manual_clock=True, start_time=START, programs=all_programs())
    assert threading.current_thread() is threading.main_thread()
    with portal.wrap_async_context_manager(LocalChain(settings)) as chain:
        yield Shell(tmp_path_factory.mktemp("shell"), chain, portal)


@pytest.fixture
def run(shell: Shell, request: pytest.FixtureRequest) -> str:
    """A run made and configured by `owner`, waiting for members."""
    name: str = request.node.name.removeprefix("test_")[:32]
    shell("create-run", "-r", name, "-c", "0.1.0", wallet="owner")
    shell("update-config", "-r", name, "--config-path", str(shell.config), wallet="owner")
    shell("set-paused", "-r", name, "--resume", wallet="owner")
    return name
