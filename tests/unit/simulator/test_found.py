"""Scripts that once broke an invariant, as the soak found and shrank them. Each says what was wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psyche_core.simulator.compare import too_slow
from psyche_core.simulator.script import from_plain
from psyche_core.simulator.world import run_script

OPEN = sorted((Path(__file__).parent / "open").glob("*.json"))
"""Scripts that still break an invariant. A mended one moves to the others: its test fails until then."""

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))


def loaded(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    assert content.keys() == {"why", "script"}
    return dict(content)


def test_there_are_scripts() -> None:
    assert FOUND


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_once_broke_holds(path: Path) -> None:
    found = loaded(path)
    script = from_plain(found["script"])
    result = run_script(script)
    failure = result.failure or too_slow(script, result)
    assert failure is None, f"{failure} ({found['why']})"
    assert result.steps == found["script"]["rounds"]


@pytest.mark.xfail(strict=True, reason="not mended yet")
@pytest.mark.parametrize("path", OPEN, ids=lambda path: path.stem)
def test_what_still_breaks(path: Path) -> None:
    test_what_once_broke_holds(path)
