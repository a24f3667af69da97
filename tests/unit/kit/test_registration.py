"""RegistrationConformance: psyche-core's own plugins keep it, and each mistake is a sentence that says what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from fork_server import shared
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
        name="Checked0", summary="s", settings=Settings, create=lambda context: DummyOptimizer(context.model))]
"""
TESTS = """
from psyche_core.testing.registration import RegistrationConformance

class TestChecked0(RegistrationConformance):
    kind, name = "optimizer", "Checked0"
"""
MISTAKES = [
    ("optimizer.Checked0", "optimizer.Other", "entry_point", "no entry point optimizer.Checked0 in the group psyche.plugins"),
    ('"1.0"', '"1.9"', "plugin_api", "was written for plugin API 1.9, this core has 1.0"),
    ('summary="s"', 'summary=" "', "plugin_api", "summary is empty; say in a few words what the plugin does"),
    ('extra="forbid"', "", "settings", 'unknown keys are not refused; add model_config = ConfigDict(extra="forbid")'),
    (', description="How much stays."', "", "settings", "without a description: decay; give Field(description=…)"),
    ("DummyOptimizer(context.model)", "[]", "factory", "plugin Checked0 (checked0 1.0) returned an object of list"),
    ("PSYCHE_PLUGIN_API", "import torch\nPSYCHE_PLUGIN_API", "heavy", "registering imports ['torch', 'numpy']; import it in"),
    ("<0.2,", "", "versions", "psyche-core>=0.1 has no upper bound; a later minor version may break it before 1.0"),
]
"""What is wrong in the plugin of that number, the test that finds it, and what the test says."""


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


def write_plugin(folder: Path, number: int) -> str:
    """Write the distribution with a mistake and the tests of its plugin; returns the test that must fail."""
    old, new, test, _ = MISTAKES[number]
    info = folder / "site" / f"checked{number}-1.0.dist-info"
    info.mkdir(parents=True)
    file = folder / f"test_checked{number}.py"
    files = {
        info / "entry_points.txt": f"[{GROUP}]\noptimizer.Checked0 = checked0_hooks\n",
        info / "METADATA": "Metadata-Version: 2.1\nName: checked0\nVersion: 1.0\nRequires-Dist: psyche-core<0.2,>=0.1\n",
        folder / "site" / f"checked{number}_hooks.py": HOOKS,
        file: TESTS,
    }
    assert sum(old in text for text in files.values()) == 1
    for path, text in files.items():
        path.write_text(re.sub("([Cc]hecked)0", rf"\g<1>{number}", text.replace(old, new)))
    [name] = [each for each in vars(RegistrationConformance) if each.startswith("test_") and test in each]
    return f"{file}::TestChecked{number}::{name}"


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What pytest says of each mistake, by number: one process for all, forked from one that has imported torch."""
    folder = tmp_path_factory.mktemp("checked")
    tests = [write_plugin(folder, number) for number in range(len(MISTAKES))]
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    done = shared().run(["pytest", *options, *tests], cwd=folder, env=environment, timeout=100)
    assert f"{len(MISTAKES)} failed" in done.stdout, done.stdout
    _, *parts = re.split(r"^_+ TestChecked(\d+)\.\w+ _+$", done.stdout.partition("short test summary")[0], flags=re.MULTILINE)
    assert parts[::2] == [str(number) for number in range(len(MISTAKES))]
    return parts[1::2]


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[f"{old}-{test}" for old, _, test, _ in MISTAKES])
def test_a_mistake_is_a_sentence(failures: list[str], number: int) -> None:
    sentence = MISTAKES[number][3]
    assert re.sub("([Cc]hecked)0", rf"\g<1>{number}", sentence) in failures[number]
