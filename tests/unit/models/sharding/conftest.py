"""Ranks of these tests are forked from a process that has imported torch; those of whole clients are started from nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fork_server import ForkedPopen, shared
from psyche_core.models.sharding.group import processes


@pytest.fixture(scope="package", autouse=True)
def _forked_ranks() -> Iterator[None]:
    def popen(command: Sequence[str], *, env: Mapping[str, str], stdout: int, **_: Any) -> ForkedPopen:
        return ForkedPopen(shared(), command[2:], env=env, stdout=stdout)  # what follows `python -m`

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(processes, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": popen}))
        yield
