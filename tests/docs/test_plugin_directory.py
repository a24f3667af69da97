"""The plugin directory knows our distributions as they are, its page is what the tool writes, and its names keep the rule."""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from psyche_core.hookspecs import GROUP, KINDS
from psyche_core.plugins import PluginRegistry, validate_settings
from psyche_core.plugins.directory import LEVELS, Entry, directory

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import plugin_directory

REPOSITORY = Path(__file__).parents[2]
POLICY = (REPOSITORY / "docs" / "plugins" / "policy.md").read_text()
PROJECTS = {
    table["name"]: (path.parent.relative_to(REPOSITORY).as_posix(), table["entry-points"][GROUP])
    for path in (
        REPOSITORY / "pyproject.toml",
        REPOSITORY / "examples" / "third_party_model" / "pyproject.toml",
        *REPOSITORY.glob("plugins/*/pyproject.toml"),
        *REPOSITORY.glob("examples/plugins/*/pyproject.toml"),
    )
    for table in [tomllib.loads(path.read_text())["project"]]
}
EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TYPED = ("backend", "transport", "sharding", "relay", "tracker", "store", "command")
KIND_OF = {"optim": "optimizer", "p2p": "transport"}
"""How the rule shortens two kinds for distributions of this repository."""


def entry_points(entry: Entry) -> set[str]:
    return {f"{kind}.{name}" for kind, name in (*entry.plugins, *entry.extends)}


def test_the_page_is_what_the_tool_writes() -> None:
    assert plugin_directory.PAGE.read_text() == plugin_directory.page(), "run tools/plugin_directory.py --write"


def test_it_has_every_distribution_of_this_repository_with_what_it_registers() -> None:
    known: dict[str, set[str]] = {}
    for entry in directory():
        if entry.level == "first-party":
            known.setdefault(entry.distribution, set()).update(entry_points(entry))
    assert known == {name: {*registered} for name, (_, registered) in PROJECTS.items()}


@pytest.mark.parametrize("entry", directory(), ids=lambda entry: f"{entry.distribution}-{entry.extra}")
def test_an_entry_says_what_is_so(entry: Entry) -> None:
    assert entry.level in LEVELS
    assert {kind for kind, _ in (*entry.plugins, *entry.extends)} <= {*KINDS}
    assert entry.plugins
    assert not entry.summary.endswith(".")
    assert "|" not in entry.summary
    for kind, name in entry.plugins if entry.check else ():
        registration = PluginRegistry.discover().load(kind, name)
        assert validate_settings(registration, entry.check, where=name) is not None
    if entry.level != "first-party":
        assert entry.source.startswith("https://")
        return

    assert (REPOSITORY / entry.source).is_dir()
    folder, _ = PROJECTS[entry.distribution]
    assert entry.source == folder or entry.distribution == "psyche-core"
    if entry.extra:
        (requirement,) = EXTRAS[entry.extra]
        assert requirement.startswith((f"{entry.distribution}>", f"{entry.distribution}["))
    elif entry.distribution != "psyche-core":
        assert entry.install == f"./{folder}"


def test_every_extra_that_brings_a_plugin_is_known() -> None:
    ours = {name for name, each in EXTRAS.items() if name != "all" and each[0].startswith("psyche-") and "[" not in each[0]}
    assert ours <= {entry.extra for entry in directory()}


def test_the_names_keep_the_rule_of_the_policy() -> None:
    plugins = [(kind, name) for entry in directory() for kind, name in entry.plugins]
    twice = [
        each for each, count in Counter((kind, re.sub("[-_]", "", name.lower())) for kind, name in plugins).items() if count > 1
    ]
    assert twice == []
    assert [name for kind, name in plugins if kind in TYPED and name != name.lower()] == []
    for distribution in {entry.distribution for entry in directory()} - {"psyche-core"}:
        prefix, kind, name = distribution.split("-", 2)
        assert prefix == "psyche"
        assert name
        assert distribution == distribution.lower()
        entries = [entry for entry in directory() if entry.distribution == distribution]
        brought = [(of, each) for entry in entries for of, each in entry.plugins]
        ours = {entry.level for entry in entries} == {"first-party"}
        assert (KIND_OF.get(kind, kind) if ours else kind) in {of for of, _ in brought}
        assert kind not in KIND_OF.values() or not ours
        names = {re.sub("[-_]", "", each.lower()) for _, each in brought}
        assert re.sub("[-_]", "", name) in names or len(brought) > 1
    for short, kind in KIND_OF.items():
        assert re.search(rf"`psyche-{short}-NAME`.*{kind}", POLICY, flags=re.DOTALL)


def test_the_policy_explains_every_level_and_the_api() -> None:
    assert re.findall(r"^\| (first-party|verified|listed) \|", POLICY, flags=re.MULTILINE) == list(LEVELS)
    assert "make release-check PREVIOUS=" in POLICY
