"""Scripts that once broke an invariant, as the soak found and shrank them. Each says what was wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psyche_core.simulator.compare import too_slow
from psyche_core.simulator.sample_tracker import SampleTracker
from psyche_core.simulator.script import from_plain
from psyche_core.simulator.world import run_script

OPEN = sorted((Path(__file__).parent / "open").glob("*.json"))
"""Scripts that still break an invariant. A mended one moves to the others: its test fails until then."""

NO_GUARANTEE = sorted((Path(__file__).parent / "no_guarantee").glob("*.json"))
"""Scripts that come to a state for which the protocol promises nothing (docs/explanation/protocol.md, "Not yet covered")."""

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))


def loaded(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    assert content.keys() == {"why", "script"}
    return dict(content)


def test_there_are_scripts() -> None:
    assert FOUND
    assert NO_GUARANTEE


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_once_broke_holds(path: Path) -> None:
    found = loaded(path)
    script = from_plain(found["script"])
    result = run_script(script)
    failure = result.failure or too_slow(script, result)
    assert failure is None, f"{failure} ({found['why']})"
    assert result.steps == found["script"]["rounds"]


@pytest.mark.parametrize("path", NO_GUARANTEE, ids=lambda path: path.stem)
def test_a_run_ends_early_where_nothing_is_promised(path: Path) -> None:
    script = from_plain(loaded(path)["script"])
    result = run_script(script)
    assert result.failure is None
    assert "applied different results of a liar in step 1" in result.no_guarantee
    assert result.steps == 1


@pytest.mark.parametrize("path", NO_GUARANTEE, ids=lambda path: path.stem)
def test_members_that_differ_are_broken_where_no_liar_could_divide_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SampleTracker, "_divides", lambda *_, **__: False)
    result = run_script(from_plain(loaded(path)["script"]))
    assert result.failure is not None
    assert result.failure.invariant == "replicas-are-equal"


@pytest.mark.xfail(strict=True, reason="not mended yet")
@pytest.mark.parametrize("path", OPEN, ids=lambda path: path.stem)
def test_what_still_breaks(path: Path) -> None:
    test_what_once_broke_holds(path)
