"""examples/notebook: it runs from the first cell to the last in a kernel, and is kept without outputs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebook"
BOOKS = sorted(FOLDER.glob("*.ipynb"))
RUN = """
import sys
import nbclient, nbformat
book = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(book, timeout=180, kernel_name="python3").execute()
nbformat.write(book, sys.argv[2])
"""


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return found


def text_of(output: dict[str, Any]) -> str:
    """What a cell printed; a notebook keeps it as one text or as lines."""
    return "".join(output.get("text", ""))


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert code != []
    assert [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    text = "".join("".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert links != []
    assert [link for link in links if not (FOLDER / link).is_file()] == []


@pytest.mark.timeout(240)
def test_the_first_run_trains_in_the_running_loop_of_a_kernel(tmp_path: Path) -> None:
    """In a process of its own, with its own folder for what Jupyter writes; the kernel is this Python's."""
    played = tmp_path / "played.ipynb"
    names = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    folders = {name: str(tmp_path / name) for name in names}
    done = subprocess.run(
        [sys.executable, "-c", RUN, FOLDER / "first_run.ipynb", played],
        env={**os.environ, **folders},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    printed = {cell["id"]: "".join(map(text_of, cell["outputs"])) for cell in cells(played) if cell.get("outputs")}
    first = re.fullmatch(r"step 60, loss ([\d.]+) nats per token\n", printed["train"])
    assert first is not None, printed
    assert float(first[1]) < 2.0  # chance is 3.47
    assert printed["ask"] == "[3, 8, 13, 18, 23, 28, 1, 6]\n"
    both = re.fullmatch(r"20 steps, loss ([\d.]+) to ([\d.]+) nats per token\nequal weights: True\n", printed["both"])
    assert both is not None, printed
    assert float(both[2]) < float(both[1]) - 0.3
