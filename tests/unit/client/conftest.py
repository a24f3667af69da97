"""Fixtures of these tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psyche_core.testing.tiny_models import LLAMA


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with the run's model folder."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(dict(LLAMA)))
    return tmp_path
