"""One thread for torch, and the worked numbers of the reference."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from psyche_optim_distro.backends import numba

KERNELS = Path(numba.__file__).parent


def pytest_sessionstart() -> None:
    """Remove machine code that is older than any of its sources: numba checks only the file of the called function."""
    newest = max(path.stat().st_mtime for path in KERNELS.glob("*.py"))
    for index in KERNELS.glob("__pycache__/*.nbi"):
        with contextlib.suppress(FileNotFoundError):  # another worker was faster
            if index.stat().st_mtime < newest:
                index.unlink()


IN_ANOTHER_PROCESS = frozenset({"TestDistroOneBit", "TestDistroValues", "TestDistroWithASecondStage"})
"""Conformance classes that are tried in another process each time: one of each way to sum and to apply. Each takes seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the other classes' second process to `make soak`. items: of all folders that are collected, not of this one only."""
    for item in items:
        of, ours = getattr(item, "cls", None), item.path.is_relative_to(Path(__file__).parent)
        named = item.name == "test_another_process_gets_the_same_bits"
        if ours and named and of is not None and of.__name__ not in IN_ANOTHER_PROCESS:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """distro_vectors.json: computed from scratch in numpy, see the file's own notes."""
    path = Path(__file__).parent / "vectors" / "distro_vectors.json"
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return table
