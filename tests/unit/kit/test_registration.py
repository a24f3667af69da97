"""RegistrationConformance: psyche-core's own plugins keep it, and each mistake is a sentence that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from psyche_core.hookspecs import GROUP
from psyche_core.testing.registration import RegistrationConformance

HOOKS = """
from pydantic import BaseModel, ConfigDict, Field
from psyche_core.builtin.dummy_optimizer import DummyOptimizer
from psyche_core.hookspecs import OptimizerRegistration, hookimpl

PSYCHE_PLUGIN_API = "1.0"

class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    decay: float = Field(default=0.5, description="How much stays.")

@hookimpl
def psyche_register_optimizers():
    return [OptimizerRegistration(
        name="Checked", summary="s", settings=Settings, create=lambda context: DummyOptimizer(context.model))]
"""
TESTS = """
from psyche_core.testing.registration import RegistrationConformance

class TestRegistration(RegistrationConformance):
    kind, name = "optimizer", "Checked"
"""


class TestAdamW(RegistrationConformance):
    kind, name = "optimizer", "AdamW"


class TestDummyOptimizer(RegistrationConformance):
    kind, name = "optimizer", "Dummy"


class TestDummyData(RegistrationConformance):
    kind, name = "data", "Dummy"


class TestLocal(RegistrationConformance):
    kind, name = "data", "Local"

    def settings(self, folder: Path) -> dict[str, str]:
        return {"location": str(folder)}


class TestPreprocessed(RegistrationConformance):
    kind, name = "data", "Preprocessed"

    def settings(self, folder: Path) -> dict[str, str]:
        return {"location": str(folder)}


class TestMemoryTransport(RegistrationConformance):
    kind, name = "transport", "memory"


class TestDTensor(RegistrationConformance):
    kind, name = "sharding", "dtensor"


class TestHfLlama(RegistrationConformance):
    kind, name = "model", "HfLlama"


class TestMemoryBackend(RegistrationConformance):
    kind, name = "backend", "memory"

    def context(self, settings: Any, folder: Path) -> None:
        """It has no address: programs embed it."""


@pytest.mark.parametrize(
    ("old", "new", "test", "sentence"),
    [
        ("optimizer.Checked", "optimizer.Other", "entry_point", "no entry point optimizer.Checked in the group psyche.plugins"),
        ('"1.0"', '"1.9"', "plugin_api", "was written for plugin API 1.9, this core has 1.0"),
        ('summary="s"', 'summary=" "', "plugin_api", "summary is empty; say in a few words what the plugin does"),
        ('extra="forbid"', "", "settings", 'unknown keys are not refused; add model_config = ConfigDict(extra="forbid")'),
        (', description="How much stays."', "", "settings", "without a description: decay; give Field(description=…)"),
        (
            "DummyOptimizer(context.model)",
            "[]",
            "factory",
            "plugin Checked (checked 1.0) returned an object of list",
        ),
        ("PSYCHE_PLUGIN_API", "import torch\nPSYCHE_PLUGIN_API", "heavy", "registering imports ['torch', 'numpy']; import it in"),
        ("<0.2,", "", "versions", "psyche-core>=0.1 has no upper bound; a later minor version may break it before 1.0"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, old: str, new: str, test: str, sentence: str) -> None:
    info = tmp_path / "site" / "checked-1.0.dist-info"
    info.mkdir(parents=True)
    files = {
        info / "entry_points.txt": f"[{GROUP}]\noptimizer.Checked = checked_hooks\n",
        info / "METADATA": "Metadata-Version: 2.1\nName: checked\nVersion: 1.0\nRequires-Dist: psyche-core<0.2,>=0.1\n",
        tmp_path / "site" / "checked_hooks.py": HOOKS,
        tmp_path / "test_checked.py": TESTS,
    }
    assert sum(old in text for text in files.values()) == 1
    for path, text in files.items():
        path.write_text(text.replace(old, new))
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path / "test_checked.py")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-m", "pytest", *options, "-k", test]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert "1 failed" in done.stdout, done.stdout
    assert sentence in done.stdout
