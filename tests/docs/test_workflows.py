"""Public CI cannot run here: its YAML is read, and every command in it exists. Issue forms and commit hooks likewise."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
MAKEFILE = (REPOSITORY / "Makefile").read_text()
JOBS: dict[str, Any] = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]
COMMANDS = [
    part.strip() for step in STEPS if "run" in step for line in step["run"].splitlines() for part in re.split(r"\||&&", line)
]
TOOLS = {"uv", "touch"}
ACTIONS = {"actions/checkout", "actions/setup-python"}


def targets_and_variables(words: list[str]) -> tuple[list[str], list[str]]:
    """What a `make` command names, without its values."""
    return [word for word in words if "=" not in word], [word.partition("=")[0] for word in words if "=" in word]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_exists(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "make":
        targets, variables = targets_and_variables(words)
        assert targets
        for target in targets:
            assert re.search(rf"^{target}:", MAKEFILE, flags=re.MULTILINE), target
        for variable in variables:
            assert re.search(rf"^{variable} \?=", MAKEFILE, flags=re.MULTILINE), variable
    elif program == "python":
        assert words[:2] == ["-m", "pip"] or (REPOSITORY / words[0]).is_file()
    elif "/" in program:
        assert os.access(REPOSITORY / program, os.X_OK)
    else:
        assert program in TOOLS


def test_each_step_is_a_command_or_a_known_action() -> None:
    for step in STEPS:
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            assert step["uses"].partition("@")[0] in ACTIONS


def test_every_python_that_we_support_is_checked() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    claimed = {each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.\d+$", each)}
    checked = set(JOBS["check"]["strategy"]["matrix"]["python"])
    assert claimed <= checked
    assert project["requires-python"] == ">=" + min(checked, key=lambda version: int(version.partition(".")[2]))


def test_one_job_has_the_lowest_dependencies_and_one_the_newest() -> None:
    for target, name in (("fast-tests", "lowest"), ("check", "newest")):
        assert f"make {target} CONSTRAINTS={name}.txt" in [step.get("run") for step in JOBS[name]["steps"]]


def test_nothing_runs_for_hours_or_with_more_rights_than_reading() -> None:
    assert all(0 < job["timeout-minutes"] <= 120 for job in JOBS.values())
    text = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem)
def test_issue_forms_have_what_a_form_needs(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)


def test_hooks_before_a_commit_are_tools_of_the_environment() -> None:
    """Each is a program that `make setup` installs, or a target; none is fetched from elsewhere."""
    repositories = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]
    assert [each["repo"] for each in repositories] == ["local"]
    for hook in repositories[0]["hooks"]:
        program, first, *_ = [*shlex.split(hook["entry"]), ""]
        assert hook["language"] == "system"
        if program == "make":
            assert re.search(rf"^{first}:", MAKEFILE, flags=re.MULTILINE)
        else:
            assert program.startswith(".venv/bin/")
            assert re.search(rf"^TOOLS := (.*\\\n)*.*\b{Path(program).name}\b", MAKEFILE, flags=re.MULTILINE)


def test_the_set_up_takes_all_versions_from_one_file() -> None:
    recipes = [line for line in MAKEFILE.splitlines() if "$(PIP) install" in line]
    assert len(recipes) > 3
    assert [line for line in recipes if "-c $(CONSTRAINTS)" not in line] == []
