"""What `psyche plugins new` writes and refuses. tests/packaging/test_plugin_projects.py installs and tests the projects."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from psyche_core import __version__
from psyche_core.cli.commands import plugins as command
from psyche_core.config.run_config import parse_run_file
from psyche_core.errors import UserError
from psyche_core.plugins.projects import KINDS, make_project
from tests.unit.cli.conftest import Psyche

NAMES = {
    "optimizer": "MajorityVote",
    "data": "Texts",
    "model": "TinyRNN2",
    "tracker": "lines_of_json",
    "backend": "shelf-2",
    "transport": "wires",
    "sharding": "copies",
    "relay": "hop",
    "store": "shelf",
    "command": "count-events",
}


def test_the_command_offers_every_template() -> None:
    assert command.TEMPLATE_KINDS == KINDS == tuple(NAMES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_is_complete_and_leaves_no_placeholder(tmp_path: Path, kind: str) -> None:
    folder = make_project(kind, NAMES[kind], out=tmp_path / "project")
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    (package,) = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert project["project"]["entry-points"] == {"psyche.plugins": {f"{kind}.{NAMES[kind]}": f"{package}.hooks"}}
    major, minor, _ = __version__.split(".")
    assert f"psyche-core>={major}.{minor},<{major}.{int(minor) + 1}" in project["project"]["dependencies"]

    files = sorted(path for path in folder.rglob("*") if path.is_file())
    texts = {path: path.read_text() for path in files if path.suffix != ".bin"}
    for path, text in texts.items():
        assert "$" not in text.replace("${{", ""), path
        assert not path.name.endswith(".tmpl")
        if path.suffix == ".py":
            ast.parse(text)
            assert max(map(len, text.splitlines()), default=0) <= 130, path
    named = {name for name in (folder / "README.md").read_text().split("`") if "/" in name and name.endswith(".py")}
    assert named == {path.relative_to(folder).as_posix() for path in files if path.suffix == ".py"} - {f"{package}/__init__.py"}
    assert {"LICENSE", ".gitignore", "test.yml", "py.typed", "hooks.py", "test_conformance.py"} <= {path.name for path in files}


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_imports_only_what_plugins_may(tmp_path: Path, kind: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "plugins" / "README.md").read_text()
    may = {f"psyche_core.{name}" for name in re.findall(r"`([\w.]+)`", page[page.index("Plugins may import") :])}
    for path in make_project(kind, NAMES[kind], out=tmp_path / "project").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        core = {module for module in modules if module.startswith("psyche_core")}
        assert {module for module in core if not any(f"{module}.".startswith(f"{each}.") for each in may)} == set(), path.name


@pytest.mark.parametrize("kind", ["backend", "transport", "sharding"])
def test_a_command_line_names_the_plugin(tmp_path: Path, kind: str) -> None:
    folder = make_project(kind, NAMES[kind], out=tmp_path / "project")
    text = (folder / "run" / "state.toml").read_text()
    first, readme = text.splitlines()[0], (folder / "README.md").read_text()
    train = first.removeprefix("# Trains on this machine alone: ")
    words = {"backend": "--backend shelf-2", "transport": "--transport wires", "sharding": "--sharding copies"}
    assert words[kind] in train
    assert f"    {train}\n" in readme
    run = parse_run_file(text, source="state.toml")
    assert run.config.init_min_clients == (1 if kind == "sharding" else 2)


@pytest.mark.parametrize("kind", ["optimizer", "data", "model"])
def test_a_run_file_names_the_plugin(tmp_path: Path, kind: str) -> None:
    folder = make_project(kind, NAMES[kind], out=tmp_path / "project")
    llm = parse_run_file((folder / "run" / "state.toml").read_text(), source="state.toml").model.LLM
    named = {"optimizer": llm.optimizer.name, "data": llm.data_location.name, "model": llm.architecture}
    assert named[kind] == NAMES[kind]
    assert llm.data_location.settings is not None
    assert (folder / "run" / llm.data_location.settings["location"]).is_dir()


def test_the_usual_folder_is_named_like_the_distribution(psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = psyche("plugins", "new", "command", "count-events")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("made psyche-command-count-events; next: cd psyche-command-count-events && pip install")
    assert (tmp_path / "psyche-command-count-events" / "psyche_command_count_events" / "hooks.py").is_file()


def test_a_command_that_psyche_has_itself_is_not_made(psyche: Psyche, tmp_path: Path) -> None:
    """It would install, pass its tests, and never be used. `doctor` is one to which plugins add."""
    result = psyche("plugins", "new", "command", "server", "--out", tmp_path / "server")
    assert (result.code, result.err) == (
        2,
        "Error: psyche has the command server itself, so a plugin's would never be used; choose another name\n",
    )
    assert not (tmp_path / "server").exists()
    assert psyche("plugins", "new", "command", "doctor", "--out", tmp_path / "doctor").code == 0


def test_a_folder_with_something_in_it_is_left_alone(psyche: Psyche, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    result = psyche("plugins", "new", "data", "Texts", "--out", tmp_path)
    assert result.code == 2
    assert "exists and is not an empty folder; nothing was written" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert psyche("plugins", "new", "data", "Texts", "--out", empty).code == 0


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        ("data", "../x", "'../x' cannot be a plugin's name"),
        ("data", "2x", "'2x' cannot be a plugin's name"),
        ("data", "a..b", "'a..b' cannot be a plugin's name"),
        ("data", "x\n", "cannot be a plugin's name"),
        ("data", "", "'' cannot be a plugin's name"),
        ("data", "a" * 41, "at most 40 characters"),
        ("data", "class", "no word of Python"),
        ("data", 'x"', "cannot be a plugin's name"),
        ("tracker", "Lines", "so it has no capital letters; try lines"),
        ("tracker", "my-lines", "so it has no hyphens; try my_lines"),
        ("sharding", "Mine", "people type the name of a sharding plugin, so it has no capital letters; try mine"),
        ("store", "Shelf", "people type the name of a store plugin, so it has no capital letters; try shelf"),
        (
            "store",
            "my_shelf",
            "is the scheme of URLs, of two letters or more, without _, and none of hf, gs, s3, file; got my_shelf",
        ),
        ("store", "s3", "and none of hf, gs, s3, file; got s3"),
        ("relay", "Hop", "people type the name of a relay plugin, so it has no capital letters; try hop"),
        ("colour", "mine", "there is no template of the kind colour; there are: optimizer, data, model, tracker, backend,"),
    ],
)
def test_a_name_that_cannot_be_one_is_a_sentence(tmp_path: Path, kind: str, name: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        make_project(kind, name, out=tmp_path / "project")
    assert sentence in str(caught.value)
    assert list(tmp_path.iterdir()) == []
