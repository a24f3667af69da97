"""Settings of the whole test run: one torch thread, asyncio, hypothesis that can be repeated from what it prints."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from psyche_core.testing import ports

# A busy machine draws slowly and runs slowly, which says nothing about the code.
settings.register_profile("default", print_blob=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

gc.set_threshold(10_000)  # as `psyche` itself: what imports make stays

REPOSITORY = Path(__file__).parents[1]
CONFIG = Path("examples") / "local_testnet"

LocalTestnet = Callable[..., Path]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What tests import and what is collected stays to the end, a million objects: they are never searched for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def token_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs of these tests keep their token files, made once for all workers by the first that needs them."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tokens"
    shared.mkdir(exist_ok=True)
    return shared / "data"


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A function that finds a port nobody listens on, nor will before it is used."""
    return ports.free_port


@pytest.fixture
def local_testnet(tmp_path: Path, token_folder: Path, free_port: Callable[[], int]) -> LocalTestnet:
    """A function that copies the demo's run into tmp_path and changes keys of its files; returns the folder of the copy.

    Ports are free ones and token files are shared between tests. A key that is not there fails the test.
    """

    def copy(**changes: object) -> Path:
        config = tmp_path / CONFIG
        shutil.copytree(REPOSITORY / CONFIG, config, ignore=shutil.ignore_patterns("data"))
        _change(config / "data.toml", dir=f'"{token_folder}"')
        _change(config / "state.toml", Server=f'"127.0.0.1:{free_port()}"', **changes)
        return config

    return copy


def _change(path: Path, **values: object) -> None:
    text = path.read_text()
    for key, value in values.items():
        text, found = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        assert found, f"{path} has no key {key}"
    path.write_text(text)


@pytest.fixture
def anyio_backend() -> str:
    """asyncio is the only loop we run on."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Torch's own threads fight over the machine with everything else; only where a test has imported torch."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
