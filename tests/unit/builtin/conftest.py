"""Folders that models are built from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from psyche_core.hookspecs import ModelContext
from psyche_core.testing.tiny_models import LLAMA

ModelFolder = Callable[..., Path]


@pytest.fixture
def model_folder(tmp_path: Path) -> ModelFolder:
    """A function that makes a folder with a config.json."""

    def make(config: Any = LLAMA, *, name: str = "source", **changes: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        content = {**config, **changes} if isinstance(config, Mapping) else config
        (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def model_context() -> Callable[..., ModelContext]:
    """A function that makes a context on the CPU with runs of 16 tokens."""

    def make(source: Path, **changes: Any) -> ModelContext:
        return ModelContext(**{"source": source, "max_seq_len": 16, "seed": bytes(32), "device": "cpu", **changes})

    return make
