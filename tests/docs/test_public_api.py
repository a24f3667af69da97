"""The public API of the last release is still there, or the next release's notes say what changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import public_api


def test_nothing_public_is_gone_without_an_announcement() -> None:
    gone = public_api.broken()
    assert not gone or public_api.announced(), "\n".join(gone)


def test_the_names_of_the_sdk_are_in_it() -> None:
    import psyche_core

    found = "\n".join(public_api.lines())
    for name in psyche_core.__all__:
        assert name == "__version__" or f"psyche_core.{name}" in found, name


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def start(rounds: int) -> None: ...", "def start(rounds: int, *, seed: int) -> None: ..."),
        ("def start(rounds: int) -> None: ...", "def begin(rounds: int) -> None: ..."),
        ("def start(rounds: int = 1) -> None: ...", "def start(rounds: int = 2) -> None: ..."),
        ("class Event:\n    step: int", "class Event:\n    height: int"),
        ("class Event:\n    def end(self) -> int: ...", "class Event:\n    def _end(self) -> int: ..."),
    ],
)
def test_a_change_of_a_name_or_its_parameters_is_a_break(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_api, "ROOT", tmp_path)
    monkeypatch.setattr(public_api, "KEPT", tmp_path / "kept.txt")
    for module in public_api.MODULES:
        file = tmp_path.joinpath(*module.split("."), "__init__.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (tmp_path / "psyche_core" / "telemetry" / "__init__.py").touch()
    testing = tmp_path / "psyche_core" / "testing"
    testing.mkdir()
    (testing / "__init__.py").touch()
    source = tmp_path / "psyche_core" / "hookspecs" / "__init__.py"

    source.write_text(before)
    assert public_api.main(["--write"]) == 0
    assert public_api.main(["--check"]) == 0
    source.write_text(f"{before}\n\nclass More: ...\n")
    assert public_api.main(["--check"]) == 0, "what is added breaks nobody"
    source.write_text(after)
    assert public_api.main(["--check"]) == 1
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "1.breaking.md").write_text("start() wants a seed.")
    assert public_api.main(["--check"]) == 0
