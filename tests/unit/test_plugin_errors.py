"""Whose mistake an exception is: real throw-away plugins that fail in every way, also in a real `psyche` process."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fork_server import shared
from psyche_core import plugin_errors
from psyche_core.cli.failures import describe_failure
from psyche_core.errors import DataError, PluginFailed
from psyche_core.hookspecs import GROUP, BackendRegistration, BackendTestnet, DataContext
from psyche_core.plugin_errors import guarded
from psyche_core.plugins import PluginRegistry
from psyche_core.telemetry.events import Ended
from psyche_core.telemetry.sinks import from_json

CODE = """
import threading
from psyche_core.errors import DataError
from psyche_core.hookspecs import DataRegistration, hookimpl
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import Samples

PSYCHE_PLUGIN_API = "1.0"
CALLED = []

class Provider(DataProvider):
    def __init__(self, length):
        self.length = length
    @property
    def sequence_length(self):
        return self.length
    @property
    def num_sequences(self):
        return 100
    async def __aenter__(self):
        {enter}
        return self
    async def read(self, batches, *, timeout):
        {read}
        count = sum(map(len, batches))
        return Samples(bytes(2 * count * self.length), count, self.length, 2)
    async def aclose(self):
        pass

def create(context):
    {create}
    return Provider(context.sequence_length)

@hookimpl
def psyche_register_data():
    return [DataRegistration(name="Broken", summary="fails", settings=None, create={factory})]
"""

Write = Callable[..., Path]


def code(*, create: str = "pass", enter: str = "pass", read: str = "pass", factory: str = "create") -> str:
    return CODE.format(create=create, enter=enter, read=read, factory=factory)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a distribution with metadata, entry point and module; gives its folder."""
    folder = tmp_path / "site"

    def write(text: str) -> Path:
        info = folder / "broken_data-3.1.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-data\nVersion: 3.1\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\ndata.Broken = broken_data_plugin\n")
        (folder / "broken_data_plugin.py").write_text(text)
        return folder

    return write


@pytest.fixture
def registry_of(write: Write) -> Iterator[Callable[[str], PluginRegistry]]:
    """A registry of everything installed and of a broken plugin beside it."""
    added: list[str] = []

    def make(text: str) -> PluginRegistry:
        added.append(str(write(text)))
        sys.path.insert(0, added[-1])
        importlib.invalidate_caches()
        return PluginRegistry.discover()

    yield make
    for folder in added:
        sys.path.remove(folder)
    sys.modules.pop("broken_data_plugin", None)
    importlib.invalidate_caches()


CALLED = "the data plugin Broken (broken-data 3.1)"
CONTEXT = DataContext(settings=None, sequence_length=8)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            code(create="raise KeyError('table')"),
            f"{CALLED} failed in its create with KeyError: 'table' (broken_data_plugin.py, ",
        ),
        (code(create="raise SystemExit(0)"), f"{CALLED} failed in its create with SystemExit: 0 (broken_data_plugin.py"),
        (code(create="1 / 0"), f"{CALLED} failed in its create with ZeroDivisionError: division by zero (broken_data_plugin.py"),
        (
            code(factory="lambda *arguments: create()"),
            f"{CALLED} failed in its create with TypeError: create() missing 1 required",
        ),
        (code(create="return None"), f"{CALLED} returned None from its create, expected an object"),
    ],
    ids=["raises", "exits", "defect", "arguments", "nothing"],
)
def test_a_factory_that_fails_is_a_sentence_with_its_distribution(
    registry_of: Callable[[str], PluginRegistry], text: str, sentence: str
) -> None:
    registration = registry_of(text).load("data", "Broken")
    with pytest.raises(PluginFailed) as caught:
        registration.create(CONTEXT)
    assert str(caught.value).startswith(sentence)
    assert describe_failure(caught.value) == (str(caught.value), 1)


def test_what_a_plugin_prints_while_it_is_loaded_is_no_output_of_the_command(
    registry_of: Callable[[str], PluginRegistry], capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"print('imported')\n{code()}".replace("    return [Data", "    print('called')\n    return [Data")
    registry_of(text).load("data", "Broken")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.split() == ["imported", "called"]


def test_what_a_testnet_calls_of_a_backend_is_guarded_too() -> None:
    def fails(_: Any) -> Any:
        raise KeyError("port")

    testnet = BackendTestnet(member_options=fails, lose_route=fails)
    registration = BackendRegistration(name="b", summary="", create=fails, testnet=testnet)
    checked = guarded(registration, called="the backend plugin b (x 1)").testnet
    assert checked is not None
    assert checked.lose_route is not None
    for factory, name in ((checked.member_options, "member_options"), (checked.lose_route, "lose_route")):
        with pytest.raises(PluginFailed, match=f"the backend plugin b \\(x 1\\) failed in its {name} with KeyError: 'port'"):
            factory(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", ["DataError('no such file')", "ModuleNotFoundError('no torch', name='torch')"])
def test_what_a_factory_raises_on_purpose_stays_as_it_is(registry_of: Callable[[str], PluginRegistry], error: str) -> None:
    with pytest.raises((DataError, ModuleNotFoundError), match="no "):
        registry_of(code(create=f"raise {error}")).load("data", "Broken").create(CONTEXT)


def failure_of(registry: PluginRegistry, use: Callable[[Any], Any]) -> BaseException:
    provider = registry.load("data", "Broken").create(CONTEXT)

    async def run() -> None:
        async with provider:
            await use(provider)

    with pytest.raises(BaseException) as caught:
        asyncio.run(run())
    return caught.value


@pytest.mark.parametrize("where", ["enter", "read"])
def test_a_method_that_fails_is_laid_to_the_plugin_through_groups(
    registry_of: Callable[[str], PluginRegistry], where: str
) -> None:
    registry = registry_of(code(**{where: "raise LookupError('page 7\\x1b[2J\\nis gone')"}))
    error = failure_of(registry, lambda provider: provider.read([range(1)], timeout=1.0))
    group = BaseExceptionGroup("tasks", [BaseExceptionGroup("deeper", [error])])
    sentence = registry.explain(group)
    assert sentence.startswith(
        f"{CALLED} failed with LookupError: page 7\N{REPLACEMENT CHARACTER}[2J is gone (broken_data_plugin.py, line"
    )
    assert describe_failure(group) == (f"{sentence}; psyche --debug shows the traceback", 1)


def test_sys_exit_in_a_method_is_laid_to_the_plugin_too(registry_of: Callable[[str], PluginRegistry]) -> None:
    error = failure_of(registry_of(code(enter="raise SystemExit(0)")), lambda _: asyncio.sleep(0))
    described = describe_failure(error)
    assert described is not None
    assert described[0].startswith(f"{CALLED} failed with SystemExit: 0 (broken_data_plugin.py, line ")
    assert described[1] == 1


def test_a_defect_of_ours_beside_a_plugin_s_keeps_its_traceback(registry_of: Callable[[str], PluginRegistry]) -> None:
    error = failure_of(registry_of(code(read="raise LookupError")), lambda provider: provider.read([range(1)], timeout=1.0))
    with pytest.raises(ZeroDivisionError) as caught:
        raise ZeroDivisionError
    assert describe_failure(BaseExceptionGroup("tasks", [error, caught.value])) is None
    assert plugin_errors.explain(caught.value, []).startswith("ZeroDivisionError (test_plugin_errors.py, line ")


def test_plugins_of_one_module_are_named_together() -> None:
    places = [("data", "A", "two 1.0", "json.decoder"), ("model", "B", "two 1.0", "json.decoder")]
    import json

    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    sentence = plugin_errors.explain_plugin(caught.value, places)
    assert sentence is not None
    assert sentence.startswith("the plugins of two 1.0 (data.A, model.B) failed with JSONDecodeError")


SEVERAL = """
from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.dummy_data import DummyData

def boom():
    raise RuntimeError("boom")

class Raiser(AdamW):
    def __init__(self):
        pass
    def compress(self, step, *, learning_rate):
        boom()

class Liar(DummyData):
    async def read(self, batches, *, timeout):
        boom()

class Duck:
    def compress(this, step, *, learning_rate):
        [boom() for _ in range(1)]
"""


@pytest.mark.parametrize(
    ("call", "blamed"),
    [
        ("Raiser().compress(1, learning_rate=1.0)", "the optimizer plugin Raiser (liar 0.1)"),
        ("Duck().compress(1, learning_rate=1.0)", "the optimizer plugin Raiser (liar 0.1)"),
        ("asyncio.run(Liar(sequence_length=8).read([], timeout=1.0))", "the data plugin Liar (liar 0.1)"),
        ("boom()", "the plugins of liar 0.1 (data.Liar, optimizer.Raiser)"),
    ],
    ids=["optimizer", "without its class", "data", "no object"],
)
def test_of_several_plugins_the_one_that_was_called_is_named(tmp_path: Path, call: str, blamed: str) -> None:
    """The function that failed was in a module of its own, so that all plugins of the distribution were named."""
    namespace: dict[str, Any] = {"__name__": "liar.impl"}
    exec(compile(SEVERAL, str(tmp_path / "impl.py"), "exec"), namespace)
    places = [("data", "Liar", "liar 0.1", "liar.data_hooks"), ("optimizer", "Raiser", "liar 0.1", "liar.optimizer_hooks")]
    with pytest.raises(RuntimeError) as caught:
        eval(call, {**namespace, "__name__": __name__, "asyncio": asyncio})
    sentence = plugin_errors.explain_plugin(caught.value, places)
    assert sentence is not None
    assert sentence.startswith(f"{blamed} failed with RuntimeError: boom (impl.py, line 6)")


# ------------------------------------------------------------------------------------------------ a real process

MEMBER = """
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.hookspecs import BackendRegistration, TransportRegistration, hookimpl
from psyche_core.interfaces import Backend
from psyche_core.types import NodeIdentity

PSYCHE_PLUGIN_API = "1.0"

class Silent(Backend):
    def __init__(self, context):
        {create}
        self.key = context.key.public
    @property
    def identity(self):
        return NodeIdentity(self.key, self.key)
    async def next_state(self):
        {next_state}
    async def join(self, address, *, timeout):
        pass
    async def send(self, command, *, timeout):
        pass
    async def aclose(self):
        pass

@hookimpl
def psyche_register_backends():
    return [BackendRegistration(name="Silent", summary="says nothing", create=Silent, needs_address=False)]

@hookimpl
def psyche_register_transports():
    create = lambda context: MemoryTransport(MemoryNetwork(), context.key.public)
    return [TransportRegistration(name="Alone", summary="reaches nobody", create=create)]
"""


@pytest.fixture
def client(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`psyche WORDS client train` in a process of its own (forked, with torch) and a backend that fails as it is told."""

    def run(*words: str, create: str = "pass", next_state: str = "pass") -> subprocess.CompletedProcess[str]:
        info = tmp_path / "silent_backend-0.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: silent-backend\nVersion: 0.5\n")
        points = "backend.Silent = silent_backend_plugin\ntransport.Alone = silent_backend_plugin\n"
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
        (tmp_path / "silent_backend_plugin.py").write_text(MEMBER.format(create=create, next_state=next_state))
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        command = ["psyche_core", *words, "client", "train", "--run-id", "none", "--logs", "none"]
        command += ["--backend", "Silent", "--transport", "Alone", "--cache-dir", str(tmp_path / "cache")]
        command += ["--events-file", str(tmp_path / "events.jsonl")]
        return shared().run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, timeout=100)

    return run


BLAMED = "the backend plugin Silent (silent-backend 0.5)"


def test_a_plugin_s_factory_that_fails_ends_the_process_with_one_sentence(
    client: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = client(create="raise KeyError('settings')")
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"Error: {BLAMED} failed in its create with KeyError: 'settings' (silent_backend_plugin.py, line "
    )
    assert len(done.stderr.splitlines()) == 1


def test_a_plugin_s_method_that_fails_in_a_task_group_ends_the_process_with_one_sentence(
    client: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """It came as a raw exception group of forty lines."""
    done = client(next_state="raise LookupError('no page')")
    assert done.returncode == 1
    last = from_json((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert last is not None
    assert isinstance(last[1], Ended)
    assert last[1].reason.startswith(f"{BLAMED} failed with LookupError: no page")
    assert done.stderr.startswith(f"Error: {BLAMED} failed with LookupError: no page (silent_backend_plugin.py, line ")
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback_and_the_sentence(client: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = client("--debug", next_state="raise LookupError('no page')")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "in next_state" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"Error: {BLAMED} failed with LookupError: no page")
