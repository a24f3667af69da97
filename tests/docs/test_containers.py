"""Dockerfile and compose.yaml, where no container can be built: they are read, and all that they name exists."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lines import parse

from psyche_core.config.run_config import load_run_file

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "local_testnet"
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
IGNORED = (REPOSITORY / ".dockerignore").read_text().split("\n")
COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
SERVER: dict[str, Any] = COMPOSE["services"]["server"]
PAGE = (REPOSITORY / "docs" / "how-to" / "run-in-containers.md").read_text()
INSTRUCTIONS = {"FROM", "WORKDIR", "ENV", "RUN", "COPY", "USER", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD", "EXPOSE"}
SERVICE_KEYS = {
    *(
        "build",
        "image",
        "command",
        "ports",
        "volumes",
        "tmpfs",
        "healthcheck",
        "read_only",
        "cap_drop",
        "security_opt",
        "restart",
    ),
    "stop_grace_period",
}
GIVEN = {"PSYCHE_PUBLIC_HOST": "server.example.org", "PSYCHE_RUN_FILES": "/somewhere"}


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction and its argument; lines that end in a backslash go on."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in joined.splitlines()]


STEPS = instructions(DOCKERFILE)
STAGES = [shlex.split(argument) for name, argument in STEPS if name == "FROM"]


def sent_to_the_builder(path: str) -> bool:
    return any(path == line[1:] or path.startswith(line[1:] + "/") for line in IGNORED if line.startswith("!"))


def filled(text: str) -> str:
    """With variables as compose fills them in."""
    found = re.sub(r"\$\{(\w+)(?::[-?][^}]*)?\}", lambda match: GIVEN[match[1]], text)
    assert "$" not in found
    return found


def command() -> dict[str, object]:
    return parse([filled(word) for word in SERVER["command"]])


def test_every_instruction_is_one() -> None:
    assert STEPS[0][0] == "FROM"
    assert {name for name, _ in STEPS} <= INSTRUCTIONS
    assert all(argument for _, argument in STEPS)


def test_stages_build_on_images_or_on_stages_before_them() -> None:
    names: list[str] = []
    for image, word, name in STAGES:
        assert (word, image in names or re.fullmatch(r"python:3\.\d+-slim", image) is not None) == ("AS", True)
        names.append(name)
    assert names[-1] == "server", "the default"
    assert SERVER["build"] == {"context": ".", "target": "server"}
    for argument in (argument for name, argument in STEPS if name == "COPY" and argument.startswith("--from=")):
        assert argument.split()[0].removeprefix("--from=") in names


def test_python_is_one_that_we_support() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    for image in {image for image, *_ in STAGES if image.startswith("python:")}:
        version = image.removeprefix("python:").removesuffix("-slim")
        assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_what_is_copied_exists_and_reaches_the_builder_and_nothing_else_does() -> None:
    copied: list[str] = []
    for argument in (argument for name, argument in STEPS if name == "COPY" and not argument.startswith("--from=")):
        *sources, target = argument.split()
        assert len(sources) == 1 or target.endswith("/")
        copied += sources
    for source in copied:
        assert (REPOSITORY / source).exists(), source
        assert sent_to_the_builder(source), source
    assert sorted(line[1:] for line in IGNORED if line.startswith("!")) == sorted(set(copied))
    assert "*" in IGNORED
    readme = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["readme"]
    assert readme in copied, "the build needs it"


def test_what_is_installed_is_ours_with_extras_that_exist() -> None:
    extras = {}
    for folder in (REPOSITORY, *(REPOSITORY / "plugins").iterdir()):
        if (folder / "pyproject.toml").exists():
            project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
            extras["." if folder == REPOSITORY else f"./plugins/{folder.name}"] = set(project.get("optional-dependencies", {}))
    installed = 0
    for argument in (argument for name, argument in STEPS if name == "RUN" and "pip install" in argument):
        words = shlex.split(argument)
        assert words[:4] == ["/opt/psyche/bin/pip", "install", "-c", "constraints.txt"]
        for word in (word for word in words[4:] if not word.startswith("-") and word != "torch"):
            place, _, named = word.removesuffix("]").partition("[")
            assert set(named.split(",")) - {""} <= extras[place], word
            installed += 1
    assert installed > 6


@pytest.mark.parametrize("line", [argument for name, argument in STEPS if name == "RUN"])
def test_each_step_is_a_shell_s(line: str) -> None:
    assert subprocess.run(["sh", "-n", "-c", line], check=False).returncode == 0


def test_the_program_runs_without_rights_and_its_commands_parse() -> None:
    users = [argument for name, argument in STEPS if name == "USER"]
    assert users == ["psyche"]
    entry = next(json.loads(argument) for name, argument in STEPS if name == "ENTRYPOINT")
    assert entry == ["psyche"]
    assert next(json.loads(argument) for name, argument in STEPS if name == "CMD") == ["--help"]
    assert SERVER["read_only"] is True
    assert SERVER["cap_drop"] == ["ALL"]


def test_the_service_has_known_keys_and_its_command_parses() -> None:
    assert set(SERVER) <= SERVICE_KEYS
    given = command()
    assert given["relay_url"] == "http://server.example.org:3340"
    assert (given["host"], given["web_host"], given["with_relay"]) == ("0.0.0.0", "0.0.0.0", True)


def test_files_of_the_command_are_in_mounted_folders_and_state_outlives_the_container() -> None:
    mounts = dict(filled(volume).split(":")[:2] for volume in SERVER["volumes"])
    assert mounts == {"/somewhere": "/run-files", "state": "/state"}
    assert set(COMPOSE["volumes"]) == {"state"}
    given = command()
    assert {str(given[name]).rpartition("/")[0] for name in ("state", "data_config")} == {"/run-files"}
    assert str(given["save_state_dir"]) == "/state"
    assert [argument for name, argument in STEPS if name == "VOLUME"] == ["/state"]


def test_ports_are_the_command_s() -> None:
    given = command()
    published = [port.rpartition(":") for port in SERVER["ports"]]
    inside = [inner for _, _, inner in published]
    data = load_run_file(EXAMPLE / "state.toml").model.LLM.data_location
    data_port = dict(data.settings or {})["location"].rpartition(":")[2]
    assert inside == [
        f"{given['server_port']}/tcp",
        f"{data_port}/tcp",
        f"{given['relay_port']}/tcp",
        f"{given['relay_port']}/udp",
        f"{given['web_port']}/tcp",
    ]
    assert [argument.split() for name, argument in STEPS if name == "EXPOSE"] == [inside]
    assert [outer for outer, _, _ in published][-1].startswith("127.0.0.1:"), "the page is for this machine"
    assert all(f"{port}" in PAGE for port in inside)


def test_health_is_asked_where_it_is_served() -> None:
    kind, program, flag, code = SERVER["healthcheck"]["test"]
    assert (kind, program, flag) == ("CMD", "python", "-c")
    compile(code, "healthcheck", "exec")
    assert f"http://127.0.0.1:{command()['metrics_local_port']}/healthz" in code


def test_variables_are_on_the_page() -> None:
    named = set(re.findall(r"\$\{(\w+)", (REPOSITORY / "compose.yaml").read_text()))
    assert named == set(GIVEN)
    assert named == set(re.findall(r"^\| `(PSYCHE_\w+)` \|", PAGE, flags=re.MULTILINE))


@pytest.mark.parametrize("line", re.findall(r"^\$ docker run .*$", PAGE, flags=re.MULTILINE))
def test_commands_in_containers_on_the_page_parse(line: str) -> None:
    words = shlex.split(line)
    image = words.index("psyche-client")
    assert parse(words[image + 1 :])
