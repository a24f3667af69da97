"""The kit finds optimizers that claim to be exact and are not, and says what they must not depend on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "plugins" / "broken-plugins.md").read_text()

TESTS = """
import torch
from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.testing.optimizer import OptimizerConformance

FACTORS = {{"one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}}

class Mine(AdamW):
    def apply(self, step, payloads, *, learning_rate, own_accepted):
        factor = {factor}
        super().apply(step, payloads, learning_rate=learning_rate * factor, own_accepted=own_accepted)

class TestMine(OptimizerConformance):
    resends_refused = False
    def make_optimizer(self, model):
        return Mine(AdamWSettings(), model)
"""


@pytest.mark.parametrize(
    ("factor", "passes"),
    [
        ("1.0", True),
        ("1.0 + hash('x') % 1000 / 1000", False),
        ("1.0 + list(FACTORS).index('one') + list(FACTORS).index('two') / 10", False),
        ("float(torch.get_num_threads())", False),
    ],
    ids=["exact", "hash", "order of a set", "threads"],
)
def test_what_looks_exact_in_one_process_is_found(tmp_path: Path, factor: str, passes: bool) -> None:
    file = tmp_path / "test_mine.py"
    file.write_text(TESTS.format(factor=factor))
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path), str(file)]
    command = [sys.executable, "-m", "pytest", *options, "-rs", "-k", "replicas_stay_equal or another_process"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    if passes:
        assert "2 passed" in done.stdout, done.stdout
    else:
        assert "1 failed, 1 passed" in done.stdout, "within one process it looks exact"
        (told,) = re.findall(r"^E +Failed: (after the same payloads .*)$", done.stdout, flags=re.MULTILINE)
        assert told in PAGE
