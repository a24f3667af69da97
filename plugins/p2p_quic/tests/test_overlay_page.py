"""docs/explanation/scale.md: its program for an overlay with few members runs, and its first figures are the code's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from psyche_core.p2p.overlay import DEGREE, FULL_MESH
from psyche_p2p_quic.settings import QuicSettings

PAGE = (Path(__file__).parents[3] / "docs" / "explanation" / "scale.md").read_text()


@pytest.mark.quic
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_seven_members_in_one_program_are_an_overlay(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "page.py").write_text(f"import torch\n\ntorch.set_num_threads(1)\n\n{code}")
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=160, check=False)
    assert done.returncode == 0, done.stderr
    told = re.findall(r"^(\d) neighbours, (\d) over others$", done.stdout, flags=re.MULTILINE)
    assert told, done.stderr
    for near, others in told:
        assert int(near) <= 4
        assert int(near) + int(others) <= 6
    assert any(int(others) >= 2 for _, others in told)


def test_what_a_user_is_told_first_is_what_the_code_does() -> None:
    first = PAGE.partition("## An overlay of bounded degree\n")[2].partition("\n\n## ")[0].strip().split("\n\n")[0]
    words = " ".join(first.split())
    settings = QuicSettings()
    assert f"from {settings.overlay_above + 1} members on" in words
    assert f"{settings.overlay_degree} at most" in words
    assert f"never more than {settings.overlay_degree + settings.guests + settings.arrivals} connections" in words
    assert (settings.overlay_above, settings.overlay_degree) == (FULL_MESH, DEGREE)
