"""`os._exit` in a plugin ends no program without a sentence: throw-away plugins, in real processes and in this one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psyche_core.errors import PluginError, PluginFailed
from psyche_core.hookspecs import GROUP, DataContext
from psyche_core.plugin_exits import Exited, exits_refused
from psyche_core.plugins import PluginRegistry

HOOKS = """
import os, threading
{top}
from psyche_core.hookspecs import BackendRegistration, CommandRegistration, DataRegistration, hookimpl

PSYCHE_PLUGIN_API = "1.0"

def load():
    {load}

def create(context):
    {create}

@hookimpl
def psyche_register_backends():
    {hook}
    return [BackendRegistration(name="leaving", summary="ends it", create=create, needs_address=False)]

@hookimpl
def psyche_register_data():
    return [DataRegistration(name="leaving", summary="ends it", settings=None, create=create)]

@hookimpl
def psyche_register_commands():
    return [CommandRegistration(name="leaving", summary="ends it", load=load)]
"""
ADVICE = "which would end the whole program; it must raise an exception instead"
EXIT = "os._exit(0)"

Plant = Callable[..., Path]


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    """Write the distribution `leaver 0.3`, whose code ends the process at one place; gives its folder."""
    folder = tmp_path / "site"

    def write(*, top: str = "", hook: str = "", create: str = "pass", load: str = "pass") -> Path:
        info = folder / "leaver-0.3.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leaver\nVersion: 0.3\n")
        points = "".join(f"{kind}.leaving = leaver_hooks\n" for kind in ("backend", "data", "command"))
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
        (folder / "leaver_hooks.py").write_text(HOOKS.format(top=top, hook=hook, create=create, load=load))
        return folder

    yield write
    sys.modules.pop("leaver_hooks", None)
    importlib.invalidate_caches()


@pytest.fixture
def registry_of(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PluginRegistry]:
    def make(**code: str) -> PluginRegistry:
        monkeypatch.syspath_prepend(str(plant(**code)))
        return PluginRegistry.discover()

    return make


def run(folder: Path, *command: str) -> tuple[int, str, str]:
    """A real process that finds the plugin."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
        timeout=100,
    )
    return done.returncode, done.stdout, done.stderr


CLIENT = ("-m", "psyche_core", "client", "train", "--run-id", "none", "--logs", "none", "--backend", "leaving")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ({"top": EXIT}, f"importing it called os._exit(0), {ADVICE}"),
        ({"top": f"try:\n    {EXIT}\nexcept BaseException:\n    pass"}, f"importing it called os._exit(0), {ADVICE}"),
        ({"hook": EXIT}, f"psyche_register_backends called os._exit(0), {ADVICE}"),
    ],
    ids=["import", "kept to itself", "hook"],
)
def test_a_command_that_needs_such_a_plugin_ends_with_a_sentence(plant: Plant, code: dict[str, str], sentence: str) -> None:
    said = f"Error: the plugin backend.leaving (leaver 0.3, module leaver_hooks) cannot be used: {sentence}\n"
    assert run(plant(**code), *CLIENT) == (2, "", said)


def test_a_command_of_such_a_plugin_ends_with_a_sentence(plant: Plant) -> None:
    said = f"Error: the command plugin leaving (leaver 0.3) called os._exit(0) in its load, {ADVICE}\n"
    assert run(plant(load=EXIT), "-m", "psyche_core", "leaving") == (1, "", said)


def test_a_program_goes_on_without_such_a_plugin(registry_of: Callable[..., PluginRegistry]) -> None:
    registry = registry_of(top="os._exit(3)")
    with pytest.raises(PluginError, match=r"data\.leaving \(leaver 0\.3, .*: importing it called os\._exit\(3\), which would"):
        registry.load("data", "leaving")
    assert registry.load("data", "Local").name == "Local"


def test_a_factory_that_ends_the_process_is_a_sentence(registry_of: Callable[..., PluginRegistry]) -> None:
    registration = registry_of(create="os._exit(3)").load("data", "leaving")
    with pytest.raises(PluginFailed) as caught:
        registration.create(DataContext(settings=None, sequence_length=8))
    assert str(caught.value) == f"the data plugin leaving (leaver 0.3) called os._exit(3) in its create, {ADVICE}"


def test_a_thread_that_the_plugin_began_says_who_it_was(plant: Plant) -> None:
    """Nobody could catch an exception there, so the process ends."""
    thread = "gone = threading.Thread(target=os._exit, args=(7,)); gone.start(); gone.join()"
    called = "the plugin backend.leaving (leaver 0.3, module leaver_hooks)"
    said = f"Error: os._exit(7), called in a thread that began while {called} was at work, ended this program\n"
    assert run(plant(top=thread), *CLIENT) == (7, "", said)


def test_a_forked_process_of_the_plugin_ends_as_it_wants(plant: Plant) -> None:
    fork = """
child = os.fork()
if child == 0:
    os._exit(5)
STATUS = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    program = """
from psyche_core.plugins import PluginRegistry
PluginRegistry.discover().load("data", "leaving")
import leaver_hooks
print(leaver_hooks.STATUS)
"""
    assert run(plant(top=fork), "-c", program) == (0, "5\n", "")


def test_what_a_plugin_imported_by_name_ends_the_process_later(plant: Plant) -> None:
    """As `os._exit` of a program that ends itself, and without a word."""
    program = """
import os, sys
from psyche_core.plugins import PluginRegistry
before = os._exit
PluginRegistry.discover().load("data", "leaving")
assert os._exit is before
assert sys.modules["leaver_hooks"]._exit is not before
sys.modules["leaver_hooks"]._exit(6)
"""
    assert run(plant(top="from os import _exit"), "-c", program) == (6, "", "")


def test_blocks_of_two_threads_and_blocks_in_each_other() -> None:
    inside, done, outcome = threading.Event(), threading.Event(), []

    def other() -> None:
        with exits_refused("other"):
            inside.set()
            done.wait(30)
        try:
            with exits_refused("other"):
                os._exit(2)
        except Exited as exited:
            outcome.append(exited.status)

    before = os._exit
    thread = threading.Thread(target=other)
    with exits_refused("outer"):
        thread.start()
        assert inside.wait(30)
        with pytest.raises(Exited, match=r"os\._exit\(1\)"), exits_refused("inner"):
            os._exit(1)
    assert os._exit is not before, "the other thread is still in its block"
    done.set()
    thread.join()
    assert outcome == [2]
    assert os._exit is before
