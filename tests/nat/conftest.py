"""The laboratory, where this system can have one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from live_run import fork_server, live_run, run_keys
from tests.nat.lab import Lab, missing
from tests.nat.meeting import Meeting

__all__ = ["fork_server", "live_run", "run_keys"]  # fixtures


@pytest.fixture
def lab() -> Iterator[Lab]:
    """An internet with a public host for a relay, and no other hosts."""
    why_not = missing()
    if why_not:
        pytest.skip(why_not)
    with Lab() as made:
        yield made


@pytest.fixture
def meeting(lab: Lab, tmp_path: Path) -> Iterator[Meeting]:
    """A relay in it that everybody may use."""
    with Meeting(lab, tmp_path) as made:
        yield made
