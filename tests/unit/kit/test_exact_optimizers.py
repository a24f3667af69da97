"""The kit finds optimizers that claim to be exact and are not, and says what they must not depend on."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fork_server import shared

pytestmark = pytest.mark.timeout(400)  # processes that import torch, on a busy machine

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

class Test{name}(OptimizerConformance):
    resends_refused = False
    def make_optimizer(self, model):
        return Mine(AdamWSettings(), model)
"""


FACTORS = {
    "Exact": "1.0",
    "Hash": "1.0 + hash('x') % 1000 / 1000",
    # Of all ten places: of two, one in ninety pairs of hash seeds would give the same.
    "OrderOfASet": "1.0 + sum(place / 10**n for n, place in enumerate(map(list(FACTORS).index, sorted(FACTORS))))",
    "Threads": "float(torch.get_num_threads())",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of all of them: one process, forked from one that has imported torch."""
    folder = tmp_path_factory.mktemp("optimizers")
    files = [folder / f"test_{name.lower()}.py" for name in FACTORS]
    for file, (name, factor) in zip(files, FACTORS.items(), strict=True):
        file.write_text(TESTS.format(factor=factor, name=name))
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder), *map(str, files)]
    command = ["pytest", *options, "-rA", "-k", "replicas_stay_equal or another_process"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    return shared().run(command, cwd=folder, env=environment, timeout=380).stdout


@pytest.mark.parametrize("name", FACTORS)
def test_what_looks_exact_in_one_process_is_found(said: str, name: str) -> None:
    outcomes = dict(re.findall(rf"^(\w+) \S+::Test{name}::test_(\w+)", said, flags=re.MULTILINE))
    if name == "Exact":
        assert set(outcomes) == {"PASSED"}, said
    else:
        assert set(outcomes) == {"PASSED", "FAILED"}, said
        assert outcomes["FAILED"] == "another_process_gets_the_same_bits", "within one process it looks exact"
        part = said.partition(f"_ Test{name}.test_another_process")[2].partition("\n____")[0]
        [told] = re.findall(r"^E +Failed: (after the same payloads .*)$", part, flags=re.MULTILINE)
        assert told in PAGE
