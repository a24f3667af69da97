"""Plugins are loaded in another process, which may end: every plugin gets its record, and nothing is imported here."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psyche_core.cli.commands.doctor_checks import check_plugins
from psyche_core.cli.options import _owner
from psyche_core.errors import PluginError, PluginFailed
from psyche_core.hookspecs import GROUP
from psyche_core.plugins import PluginRecord, PluginRegistry, survey
from psyche_core.plugins.survey import surveyed
from tests.unit.cli.conftest import Psyche, psyche

__all__ = ["psyche"]  # the fixture

HOOKS = """
import os
from pydantic import BaseModel, Field
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.hookspecs import DataRegistration, hookimpl

PSYCHE_PLUGIN_API = "1.0"

class Settings(BaseModel):
    width: int = Field(default=3, description="How wide.")

@hookimpl
def psyche_register_data():
    return [DataRegistration(name="NAME", summary="from ORIGIN", settings=Settings, create=lambda context: None)]
"""
EXIT = "import ctypes; ctypes.CDLL(None)._exit(3)"  # os._exit would be caught
SEGFAULT = "import ctypes; ctypes.string_at(0)"

Plant = Callable[..., None]


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    """Write a distribution with one data plugin. before: code in front of its hooks."""
    sys.path.insert(0, str(tmp_path))

    def write(distribution: str, name: str, before: str = "", *, behind: str = "") -> None:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\ndata.{name} = {distribution}_surveyed{behind}\n")
        code = HOOKS.replace("NAME", name).replace("ORIGIN", distribution)
        (tmp_path / f"{distribution}_surveyed.py").write_text(f"{before}\n{code}")
        importlib.invalidate_caches()

    yield write
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.endswith("_surveyed")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def is_data(record: PluginRecord) -> bool:
    return record.kind == "data"


def test_plugins_that_end_the_process_are_named_and_all_others_are_told(plant: Plant) -> None:
    plant("exits", "Aaa", EXIT)
    plant("crashes", "Mmm", SEGFAULT)
    plant("raises", "Nnn", "raise KeyboardInterrupt")
    plant("works", "Zzz", "import os; os.write(1, b'not a line of ours')")
    registry = PluginRegistry.discover()
    found = surveyed(registry, is_data)
    records = {record.name: record for record in found.records if record.kind == "data"}
    causes = {
        "Aaa": "loading it ended the process, with exit status 3; psyche --disable-plugin data.Aaa leaves it out",
        "Mmm": "loading it ended the process, with signal SIGSEGV; psyche --disable-plugin data.Mmm leaves it out",
    }
    assert {name: (records[name].status, records[name].cause) for name in causes} == {
        name: ("failed", cause) for name, cause in causes.items()
    }
    assert records["Nnn"].cause.startswith("loading it ended the process, with ")
    assert [record.name for record in found.ended] == ["Aaa", "Mmm", "Nnn"]
    assert (records["Zzz"].status, records["Zzz"].summary, records["Zzz"].api) == ("ok", "from works", "1.0")
    assert records["Local"].status == "ok"
    assert {record.status for record in found.records if record.kind == "optimizer"} == {"not loaded"}
    assert not [name for name in sys.modules if name.endswith("_surveyed")]

    with pytest.raises(
        PluginError, match=r"the plugin data\.Aaa .* cannot be used: loading it ended the process, with exit status 3"
    ):
        registry.load("data", "Aaa")
    assert registry.load("data", "Zzz").summary == "from works"


def test_what_does_not_end_is_named(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant("hangs", "Aaa", "import time; time.sleep(600)")
    monkeypatch.setattr(survey, "SURVEY_SECONDS", 6)
    (ended,) = surveyed(PluginRegistry.discover(), lambda record: record.name == "Aaa").ended
    assert ended.cause == "loading it did not end within 6 s; psyche --disable-plugin data.Aaa leaves it out"


def test_a_process_that_a_plugin_leaves_behind_is_not_waited_for(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It has standard error, and after a fork the way of our lines, too."""
    left = tmp_path / "left"
    spawn = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid"
    fork = "os.fork() or (time.sleep(60), os._exit(0))"
    plant("spawns", "Aaa", f"import pathlib, subprocess, sys; pathlib.Path({str(left)!r}).write_text(str({spawn}))")
    plant("forks", "Bbb", f"import os, pathlib, time; pathlib.Path({f'{left}2'!r}).write_text(str({fork}))\nprint('printed')")
    monkeypatch.setattr(survey, "SURVEY_SECONDS", 30)  # less than they live
    found = surveyed(PluginRegistry.discover(), lambda record: record.name in ("Aaa", "Bbb"))
    assert [record.status for record in found.records if record.name in ("Aaa", "Bbb")] == ["ok", "ok"]
    assert found.ended == []
    assert "printed" in capfd.readouterr().err
    for file in (left, Path(f"{left}2")):
        os.kill(int(file.read_text()), signal.SIGKILL)  # it was there all the time


def test_a_process_that_does_not_begin_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        PluginFailed, match="the process that loads plugins ended the process, with exit status 1 before it began"
    ):
        surveyed(PluginRegistry.discover())


def test_a_disk_without_room_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with pytest.raises(PluginFailed, match=r"python\S* cannot be started for the code of plugins: .*/nowhere.*; free some space"):
        surveyed(PluginRegistry.discover())


def test_a_list_ends_with_how_to_leave_a_plugin_out(plant: Plant, psyche: Psyche) -> None:
    plant("exits", "Aaa", f"print('printed', flush=True); {EXIT}")
    cause = "loading it ended the process, with exit status 3; psyche --disable-plugin data.Aaa leaves it out"
    told = f"data.Aaa (exits 1.0): {cause}\n"
    result = psyche("plugins", "list", "--kind", "data", "--json")
    assert result.code == 0
    assert result.err.endswith(told)
    statuses = {record["name"]: record["status"] for record in json.loads(result.out)}
    assert (statuses["Aaa"], statuses["Local"]) == ("failed", "ok")
    assert told in psyche("plugins", "list", "--kind", "data").err
    assert "loading it ended the process" in psyche("plugins", "show", "Aaa").out
    assert told not in psyche("--disable-plugin", "data.Aaa", "plugins", "list", "--kind", "data").err


def test_the_doctor_and_the_search_for_an_options_owner_survive(plant: Plant) -> None:
    plant("exits", "Aaa", EXIT)
    plant("works", "Zzz")
    told = [result.text for result in check_plugins(PluginRegistry.discover(), None) if result.status == "problem"]
    assert [text for text in told if "Aaa" in text] == [
        "data.Aaa (exits 1.0): loading it ended the process, with exit status 3; psyche --disable-plugin data.Aaa leaves it out"
    ]
    assert _owner("--width", ["data"]) == ("data", "Zzz")
    assert _owner("--width", ["backend"]) is None


def test_a_name_of_two_distributions_shows_the_settings_of_each(plant: Plant, psyche: Psyche) -> None:
    plant("one", "Twice")
    plant("two", "Twice")
    for distribution in ("one", "two"):
        (shown,) = json.loads(psyche("plugins", "show", "--json", f"{distribution}:Twice").out)
        assert (shown["distribution"], shown["status"]) == (distribution, "duplicate")
        assert (shown["summary"], shown["api"]) == (f"from {distribution}", "1.0")
        assert shown["settings"]["width"]["default"] == 3
    text = psyche("plugins", "show", "one:data.Twice").out
    assert "  settings\n    width (default 3) integer: How wide.\n" in text
    assert "name the one you mean: one:Twice or two:Twice" in text
    assert psyche("plugins", "show", "Twice").out.count("width (default 3)") == 2


def test_one_of_two_that_ends_the_process_is_named_and_the_other_is_shown(plant: Plant, psyche: Psyche) -> None:
    plant("one", "Twice", EXIT)
    plant("two", "Twice")
    one, two = json.loads(psyche("plugins", "show", "--json", "Twice").out)
    assert (one["status"], one["settings"]) == ("failed", None)
    assert one["cause"].endswith("with exit status 3; psyche --disable-plugin one:data.Twice leaves it out")
    assert two["settings"]["width"]["default"] == 3


def test_an_entry_point_with_an_attribute_is_a_sentence_and_is_not_imported(plant: Plant, psyche: Psyche) -> None:
    plant("more", "Aaa", EXIT, behind=":hooks")
    (record,) = json.loads(psyche("plugins", "show", "--json", "Aaa").out)
    assert record["status"] == "failed"
    assert record["cause"] == (
        "its entry point must name a module of hooks and nothing behind it, got more_surveyed:hooks; "
        'write "data.Aaa" = "more_surveyed" in pyproject.toml, and install it again'
    )
    checked = json.loads(psyche("plugins", "check", "Aaa", "--json", "--no-training").out)
    assert checked["steps"] == [{"name": "entry point", "outcome": "failed", "sentence": record["cause"]}]


def test_other_commands_start_without_this_module() -> None:
    code = "import sys, psyche_core.plugins, psyche_core.cli; print('psyche_core.plugins.survey' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
