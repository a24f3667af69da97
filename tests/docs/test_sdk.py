"""docs/reference/sdk.md: its examples run as they stand, one after the other, and its table of names is complete."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import psyche_core
from fork_server import shared
from psyche_core.types import RunState

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "sdk.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.timeout(240)
def test_every_example_runs(tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n\n".join(["import torch\n\ntorch.set_num_threads(1)", *EXAMPLES]))
    done = shared().run(["page"], cwd=tmp_path, env=os.environ, timeout=220)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(EXAMPLES) == 9
    assert 0 < float(lines[0]) < 4
    logs = [line for line in lines if line.startswith("{'loss'")]  # of transformers' PrinterCallback
    lines = [line for line in lines if line not in logs and not line.startswith("[20")]  # the second: deepspeed, where it is
    assert len(logs) == 2
    assert lines.pop(1) == "held out 0 10"
    assert (tmp_path / "trained" / "model.safetensors").is_file()
    assert [line.split()[0] for line in lines[1:11]] == [str(step) for step in range(1, 11)]
    assert lines[11].count("applied=10") == 2
    assert lines[12].split()[0] == "joined"
    assert lines[13:18] == [*(f"settled {step} 1" for step in (1, 2, 3, 4)), "finished"]
    assert lines[18] == "Finished 5"
    assert 2 <= int(lines[19]) < 6
    assert lines[20] == "6"
    assert re.fullmatch(r"127\.0\.0\.1:\d+#[0-9a-f]{64}", lines[21])
    assert lines[22:] == ["4"]


def test_every_phase_is_named() -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith("| `run_state` |")]
    named = set(re.findall(r"`([A-Z]\w+)`", row))
    assert named == {state.name for state in RunState} - {"Uninitialized"}


def test_the_table_of_names_is_complete() -> None:
    table = PAGE.partition("| name |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(psyche_core.__all__) - {"__version__"}
