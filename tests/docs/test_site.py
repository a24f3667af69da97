"""The site of docs/: every page has its place, and links out of docs/ lead to files that are there. `make docs` builds it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

REPOSITORY = Path(__file__).parents[2]
CONFIG = (REPOSITORY / "mkdocs.yml").read_text()


@pytest.fixture
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", REPOSITORY / "tools" / "docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation_once() -> None:
    named = re.findall(r"^ +- ([\w/-]+\.md)$", CONFIG, flags=re.MULTILINE)
    pages = REPOSITORY / "docs"
    assert sorted(named) == sorted(path.relative_to(pages).as_posix() for path in pages.rglob("*.md"))


@pytest.mark.parametrize(
    "page", sorted((REPOSITORY / "docs").rglob("*.md")), ids=lambda page: page.relative_to(REPOSITORY).as_posix()
)
def test_a_list_has_an_empty_line_before_it(page: Path) -> None:
    """Without one the site shows its items as one paragraph."""
    prose = re.sub(r"(?s:^ *```.*?^ *```)|^#+ .*\n", "\n", page.read_text(), flags=re.MULTILINE)
    item = re.compile(r"(?:[-*]|\d+\.) ")
    blocks = [block.strip("\n").splitlines() for block in re.split(r"\n\s*\n", prose)]
    assert [block[:2] for block in blocks if block and not item.match(block[0].lstrip()) and any(map(item.match, block))] == []


def test_the_contracts_that_the_page_names_exist() -> None:
    page = (REPOSITORY / "docs" / "reference" / "contracts.md").read_text()
    named = re.findall(r"^::: (\S+)$", page, flags=re.MULTILINE)
    interfaces = (REPOSITORY / "psyche_core" / "interfaces").glob("[a-z]*.py")
    helpers = {"parameters", "rate_groups"}
    expected = {f"psyche_core.interfaces.{path.stem}" for path in interfaces if path.stem not in helpers}
    assert expected <= set(named)
    for name in named:
        module, _, attribute = name.rpartition(".")
        found = importlib.util.find_spec(name) if not attribute[0].isupper() else importlib.util.find_spec(module)
        assert found is not None, name


def test_what_the_templates_import_is_described() -> None:
    """An author who changes a project need not read code of the core for what is in it."""
    pages = [(REPOSITORY / "docs" / "reference" / f"{name}.md").read_text() for name in ("contracts", "building-blocks")]
    named = {name for page in pages for name in re.findall(r"^::: (\S+)$", page, flags=re.MULTILINE)}
    assert [name for name in sorted(named) if importlib.util.find_spec(name.rpartition(".")[0]) is None] == []
    named |= {"psyche_core.coordinator"}  # its names are those of transitions, commands and state
    known_by_others = {
        "psyche_core.interfaces",
        "psyche_core.config.run_config",
    }  # packages of the contracts; the run file's page
    folder = REPOSITORY / "psyche_core" / "plugins" / "projects" / "templates"
    imported = {
        module
        for template in folder.rglob("*.tmpl")
        if "tests" not in template.relative_to(folder).parts
        for module in re.findall(r"^(?:from|import) (psyche_core[\w.]*)", template.read_text(), flags=re.MULTILINE)
    }
    assert "psyche_core.wire.frames" in imported
    assert sorted(imported - named - known_by_others) == []


@pytest.mark.parametrize(
    ("page", "link", "path"),
    [
        ("how-to/run.md", "../../Dockerfile", "Dockerfile"),
        ("policy.md", "../README.md", "README.md"),
        ("how-to/run.md", "../reference/sdk.md", None),
        ("how-to/run.md", "../../plugins/optim_distro/README.md", "plugins/optim_distro/README.md"),
    ],
)
def test_a_link_out_of_the_pages_is_known(hooks: ModuleType, page: str, link: str, path: str | None) -> None:
    assert hooks.outside(page, link) == path


def test_such_a_link_leads_to_a_file_of_the_site(hooks: ModuleType) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/run.md"))
    text = "[a](../../Dockerfile) [b](../../plugins/optim_distro/README.md) [c](../reference/sdk.md) [d](../../plugins)"
    assert hooks.on_page_markdown(text, page) == (
        "[a](../repository/Dockerfile) [b](../repository/plugins/optim_distro/README.md.txt) [c](../reference/sdk.md) "
        "[d](../../plugins)"
    )


def test_a_link_to_a_file_that_is_not_there_stops_the_build(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("mkdocs")
    monkeypatch.setattr(hooks, "REPOSITORY", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("[a](../none.txt)")
    files = SimpleNamespace(documentation_pages=lambda: [SimpleNamespace(src_uri="page.md")])
    with pytest.raises(hooks.MissingFileError, match=r"docs/page\.md links to none\.txt, which does not exist"):
        hooks.on_files(files, None)


@pytest.mark.parametrize("there", [True, False], ids=["our copy", "no copy"])
def test_nothing_that_draws_is_loaded_from_elsewhere(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: bool
) -> None:
    """The theme loads Mermaid from afar for an element of the class `mermaid` if the page has no script of its own."""
    assert "class: mermaid" in CONFIG
    script = tmp_path / "mermaid.min.js"
    if there:
        script.touch()
    monkeypatch.setattr(hooks, "MERMAID", script)
    fence = {"name": "mermaid", "class": "mermaid"}
    config = SimpleNamespace(extra_javascript=[], mdx_configs={"pymdownx.superfences": {"custom_fences": [fence]}})
    assert hooks.on_config(config) is config
    assert config.extra_javascript == ([hooks.SCRIPT] if there else [])
    assert fence["class"] == ("mermaid" if there else "diagram")
