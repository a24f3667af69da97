"""Fixtures: a Redis for the tests of a module, where the program is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis_process import PROGRAM, RedisProcess


@pytest.fixture(scope="session")
def redis_program() -> None:
    if PROGRAM is None:
        pytest.skip("redis-server is not installed; on Debian: apt install redis-server")


@pytest.fixture(scope="module")
def redis_server(redis_program: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
