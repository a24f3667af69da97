"""What every distribution says of itself, and what its source archive holds. Nothing is installed here, so all of it is fast."""

from __future__ import annotations

import re
import tarfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.sdist import SdistBuilder
from packaging.requirements import Requirement
from packaging.version import Version
from readme_renderer import markdown
from twine.commands.check import check

from psyche_core import __version__

REPOSITORY = Path(__file__).parents[2]
FOLDERS = [REPOSITORY, *sorted(path.parent for path in REPOSITORY.glob("plugins/*/pyproject.toml"))]
PLUGINS = FOLDERS[1:]
each = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name if folder != REPOSITORY else "core")


@cache
def project(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


def links(text: str) -> list[str]:
    """Targets of links and pictures, in Markdown and in HTML; code is none."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    marked = re.findall(r"\]\(\s*<?([^)\s>]+)", prose) + re.findall(r"^\s*\[[^\]]+\]:\s*(\S+)", prose, flags=re.MULTILINE)
    return marked + re.findall(r"(?:href|src)=[\"']?([^\"'\s>]+)", prose)


def relative(text: str) -> list[str]:
    return [target for target in links(text) if not re.match(r"https://|mailto:|#", target)]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """A source archive of each distribution."""
    out = tmp_path_factory.mktemp("sdists")
    return {folder: Path(next(iter(SdistBuilder(str(folder)).build(directory=str(out))))) for folder in FOLDERS}


def members(archive: Path) -> set[str]:
    with tarfile.open(archive) as opened:
        return {name.partition("/")[2] for name in opened.getnames()}


def test_the_check_for_links_finds_them() -> None:
    text = "[a](docs/a.md) ![b](b.png) [c](https://c.example) [d](#d) `[e](e.md)`\n\n[f]: ../f.md\n<img src='g.png'>"
    assert relative(text) == ["docs/a.md", "b.png", "../f.md", "g.png"]


@each
def test_the_long_description_stands_alone_on_an_index(folder: Path) -> None:
    text = (folder / project(folder)["readme"]).read_text()
    assert relative(text) == []
    assert markdown.render(text) is not None


def test_indexes_take_every_archive(archives: dict[Path, Path]) -> None:
    assert check([str(archive) for archive in archives.values()], strict=True) is False, "twine check --strict"


@each
def test_archives_hold_package_tests_and_license_and_nothing_that_git_ignores(folder: Path, archives: dict[Path, Path]) -> None:
    package = project(folder)["name"].replace("-", "_")
    held = members(archives[folder])
    assert {f"{package}/py.typed", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} <= held
    tests = {path.relative_to(folder).as_posix() for path in (folder / "tests").rglob("*.py")}
    assert len(tests) > 3
    assert tests <= held
    top = {name.partition("/")[0] for name in held}
    known = {package, "tests", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO", ".gitignore", "programs", "hatch_build.py"}
    if folder == REPOSITORY:
        known |= {"docs", "examples", "benchmarks", "tools", "Makefile", "mkdocs.yml", "constraints.txt"}
        known |= {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"}
        known |= {"Dockerfile", ".dockerignore", "compose.yaml"}
    assert top <= known
    assert [name for name in held if re.search(r"\.pyc$|__pycache__|\.pem$|\.key$|/runs/", name)] == []


@each
def test_what_an_archive_holds_is_anchored(folder: Path) -> None:
    """`tests` would take any folder of that name, wherever it is; `/tests` takes the one at the root."""
    include = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert [pattern for pattern in include if not pattern.startswith("/")] == []


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_plugins_bring_the_license_of_the_repository(folder: Path) -> None:
    assert (folder / "LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()
    assert project(folder)["license-files"] == ["LICENSE"]


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_a_plugin_with_commands_brings_their_manual_pages(folder: Path) -> None:
    """The hook that makes them is in its own source archive, so it is a copy of the core's."""
    table = tomllib.loads((folder / "pyproject.toml").read_text())
    commands = [name for name in table["project"]["entry-points"]["psyche.plugins"] if name.startswith("command.")]
    hook = folder / "hatch_build.py"
    assert hook.exists() == bool(commands)
    if commands:
        assert "custom" in table["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
        assert hook.read_bytes() == (REPOSITORY / "tools" / "wheel_man_pages.py").read_bytes()


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_a_plugin_says_which_cores_it_works_with(folder: Path) -> None:
    (core,) = [each for each in map(Requirement, project(folder)["dependencies"]) if each.name == "psyche-core"]
    assert_one_minor_version(core)


def test_the_core_says_which_plugins_its_extras_bring() -> None:
    names = {project(folder)["name"] for folder in PLUGINS}
    wanted = [Requirement(text) for extra in project(REPOSITORY)["optional-dependencies"].values() for text in extra]
    ours = [each for each in wanted if each.name in names]
    assert {each.name for each in ours} == names
    for each in ours:
        assert_one_minor_version(each)


def assert_one_minor_version(requirement: Requirement) -> None:
    """From this minor version to before the next."""
    major, minor = Version(__version__).release[:2]
    assert {str(one) for one in requirement.specifier} == {f">={major}.{minor}", f"<{major}.{minor + 1}"}, requirement


def test_all_distributions_have_one_version() -> None:
    texts = [
        path.read_text()
        for path in [*REPOSITORY.glob("psyche_core/__about__.py"), *REPOSITORY.glob("plugins/*/psyche_*/__about__.py")]
    ]
    assert len(texts) == len(FOLDERS)
    assert {re.findall(r'__version__ = "(.+)"', text)[0] for text in texts} == {__version__}


def test_the_core_s_page_lists_every_extra() -> None:
    page = (REPOSITORY / project(REPOSITORY)["readme"]).read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE) != []
    assert set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == set(project(REPOSITORY)["optional-dependencies"])
