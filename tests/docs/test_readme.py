"""The README says what is true: its commands parse, its paths exist, its lists are complete."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from command_lines import parse

from fork_server import shared
from psyche_core.config.run_config import load_run_file

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [part for block in blocks("sh") for line in block.splitlines() for part in line.split(" && ") if part.strip()]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_can_be_run_as_it_stands(command: str) -> None:
    program, *words = shlex.split(command)
    match Path(program).name:
        case "make":
            assert re.search(rf"^{words[0]}:", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE)
        case "psyche":
            params = parse(words)
            for value in params.values():
                if isinstance(value, Path) and value.parts[0] == "examples":
                    assert (REPOSITORY / value).exists(), value
            if params.get("run_id") is not None:
                assert params["run_id"] == load_run_file(REPOSITORY / "examples" / "local_testnet" / "state.toml").run_id
        case "pip":
            for option, value in itertools.pairwise(words):
                if option == "-e":
                    folder, _, extras = value.strip("]").partition("[")
                    project = tomllib.loads((REPOSITORY / folder / "pyproject.toml").read_text())["project"]
                    assert set(filter(None, extras.split(","))) <= set(project.get("optional-dependencies", {}))
                if option == "-c":
                    assert (REPOSITORY / value).exists()
        case "python3" | "openssl" | "chmod" | "" | ".":
            pass  # not ours
        case other:
            pytest.fail(f"say here how to check `{other}`")


def test_there_are_the_two_commands() -> None:
    assert blocks("sh")[0].split("\n")[:2] == ["make demo", "make test"]


def test_the_demo_of_the_readme_is_the_one_of_the_makefile() -> None:
    ours, *_ = [command for command in COMMANDS if "testnet start" in command]
    assert ours in (REPOSITORY / "Makefile").read_text().replace("$(BIN)/", "").replace("\\\n", "")


def test_the_extras_are_all_there_and_no_others() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (REPOSITORY / "docs" / "reference" / "extras.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == set(extras)


def test_it_fits_on_a_page_or_two() -> None:
    assert len(README.splitlines()) < 160


@pytest.mark.timeout(200)
def test_its_python_runs_and_learns(tmp_path: Path) -> None:
    """From the repository's root, as a reader would."""
    (program,) = blocks("python")
    (tmp_path / "page.py").write_text(program)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    done = shared().run(["page"], cwd=REPOSITORY, env=environment, timeout=180)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-4]) < 5.0, "ln 256 is 5.5"


def test_every_page_is_on_the_index() -> None:
    docs = REPOSITORY / "docs"
    linked = set(re.findall(r"\]\(([\w./-]+\.md)\)", (docs / "README.md").read_text()))
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"README.md", "psyche-core.md"}
    assert pages - linked == set()
