"""The table of what broken plugins say: each break is made, in a real distribution, and must end in the sentence of its row."""

from __future__ import annotations

import asyncio
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psyche_core import __version__
from psyche_core.client.runtime.payloads import check_own
from psyche_core.client.runtime.sample_checks import read_samples
from psyche_core.errors import PsycheError
from psyche_core.hookspecs import GROUP, DataContext, OptimizerContext
from psyche_core.plugins import PluginApiWarning, PluginRegistry
from psyche_core.testing.toy_model import ToyModel, toy_samples
from psyche_core.training.trainer import Trainer
from psyche_core.types import BatchId

PAGE = (Path(__file__).parents[2] / "docs" / "plugins" / "broken-plugins.md").read_text()
ROWS = {
    row[0]: row[1].strip("`")
    for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| "))
    if row[0] != "break"
}

HOOKS = """
from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.hookspecs import DataRegistration, OptimizerRegistration, hookimpl
from psyche_core.interfaces.data import Samples

PSYCHE_PLUGIN_API = "1.0"

class Short(DummyData):
    async def read(self, batches, *, timeout):
        samples = await super().read(batches, timeout=timeout)
        return Samples(samples.tokens[: -2 * samples.sequence_length], samples.count - 1, samples.sequence_length, 2)

class Long(DummyData):
    async def read(self, batches, *, timeout):
        samples = await super().read(batches, timeout=timeout)
        return Samples(samples.tokens * 2, samples.count, 2 * samples.sequence_length, 2)

class Textual(AdamW):
    def compress(self, step, *, learning_rate):
        return "payload"

def raising(context):
    raise KeyError("decay")

async def late(context):
    return None

def leave():
    import os
    os._exit(3)

class High(DummyData):
    async def read(self, batches, *, timeout):
        samples = await super().read(batches, timeout=timeout)
        return Samples((300).to_bytes(2, "little") + samples.tokens[2:], samples.count, samples.sequence_length, 2)

@hookimpl
def psyche_register_optimizers():
    return [OptimizerRegistration(
        name="Mine", summary="mine", settings=AdamWSettings, create=lambda context: AdamW(context.settings, context.model))]

@hookimpl
def psyche_register_data():
    return [DataRegistration(
        name="Mine", summary="mine", settings=None, create=lambda context: DummyData(sequence_length=context.sequence_length))]
"""

Registry = Callable[..., PluginRegistry]


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Registry]:
    """An environment with the distribution `mine 1.2`, in whose hooks one text was replaced by another."""
    folder = tmp_path / "site"
    sys.path.insert(0, str(folder))

    def make(old: str = "", new: str = "", *, distribution: str = "mine", behind: str = "") -> PluginRegistry:
        module = f"{distribution}_broken_hooks"
        info = folder / f"{distribution}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\noptimizer.Mine = {module}\ndata.Mine = {module}{behind}\n")
        assert old in HOOKS
        (folder / f"{module}.py").write_text(HOOKS.replace(old, new) if old else HOOKS)
        importlib.invalidate_caches()
        return PluginRegistry.discover()

    yield make
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.endswith("_broken_hooks")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def load(kind: str) -> Callable[[PluginRegistry], None]:
    def use(registry: PluginRegistry) -> None:
        registry.load(kind, "Mine")

    return use


def train(registry: PluginRegistry) -> None:
    registration, model = registry.load("optimizer", "Mine"), ToyModel()
    optimizer = registration.create(OptimizerContext(settings=registration.settings(), model=model))
    trainer = Trainer(model=model, optimizer=optimizer, learning_rate=lambda _: 1e-3, micro_batch_size=4)
    trained = trainer.train(1, toy_samples(1))
    resources: Any = SimpleNamespace(trainer=trainer, optimizer_name=registry.label("optimizer", "Mine"))
    asyncio.run(check_own(resources, 1, trained.payload))


def read(registry: PluginRegistry) -> None:
    provider = registry.load("data", "Mine").create(DataContext(settings=None, sequence_length=8))

    async def run() -> None:
        async with provider:
            await read_samples(provider, [BatchId(0, 3)], sequence_length=8, vocab_size=256, name=registry.label("data", "Mine"))

    asyncio.run(run())


BREAKS: dict[str, tuple[str, str, Callable[[PluginRegistry], None]]] = {
    "a hook returns a list of something else": ("return [DataRegistration(", "return [dict(", load("data")),
    "a hook returns no list": ("return [DataRegistration(", "return None; [dict(", load("data")),
    "settings are a dict": ("settings=AdamWSettings", "settings={'decay': 0.5}", load("optimizer")),
    "settings are an object of the class": ("settings=AdamWSettings", "settings=AdamWSettings()", load("optimizer")),
    "the hook is a coroutine": ("def psyche_register_data", "async def psyche_register_data", load("data")),
    "the factory is a coroutine": ("create=lambda context", "create=late if late else lambda context", load("data")),
    "the factory takes nothing": ("create=lambda context: DummyData", "create=lambda: DummyData", load("data")),
    "the factory raises": ("create=lambda context: AdamW(context.settings, context.model)", "create=raising", train),
    "the factory returns something else": ("AdamW(context.settings, context.model)", "DummyData(sequence_length=8)", train),
    "a provider gives too few samples": ("lambda context: DummyData", "lambda context: Short", read),
    "a provider gives samples of another shape": ("lambda context: DummyData", "lambda context: Long", read),
    "a provider gives token ids that the model does not have": ("lambda context: DummyData", "lambda context: High", read),
    "an optimizer's payload is no bytes": ("lambda context: AdamW", "lambda context: Textual", train),
    "plugin API 2.0": ('PSYCHE_PLUGIN_API = "1.0"', 'PSYCHE_PLUGIN_API = "2.0"', load("data")),
    "no plugin API": ('PSYCHE_PLUGIN_API = "1.0"', "", load("data")),
    "its module calls `os._exit`": ('PSYCHE_PLUGIN_API = "1.0"', "import os; os._exit(3)", load("data")),
    "the factory calls `os._exit`": ("create=lambda context: DummyData", "create=lambda context: leave() or DummyData", read),
    "a module that it imports is missing": ('PSYCHE_PLUGIN_API = "1.0"', "import missing_library", load("data")),
    "a module that it requires is missing": (
        'summary="mine", settings=None',
        'summary="mine", settings=None, requires={"missing_library": "pip install missing-library"}',
        load("data"),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_each_break_ends_in_its_sentence(mine: Registry, name: str) -> None:
    old, new, use = BREAKS[name]
    registry = mine(old, new)
    with pytest.raises(PsycheError) as caught:
        use(registry)
    assert caught.value.sentence.replace(__version__, "0.1.0") == ROWS[name]


def test_a_newer_minor_version_of_the_api_is_a_warning(mine: Registry) -> None:
    with pytest.warns(PluginApiWarning) as caught:
        mine('PSYCHE_PLUGIN_API = "1.0"', 'PSYCHE_PLUGIN_API = "1.9"').load("data", "Mine")
    assert [str(each.message) for each in caught] == [ROWS["plugin API 1.9"]]


def test_a_name_that_two_distributions_have(mine: Registry) -> None:
    mine()
    registry = mine(distribution="yours")
    with warnings.catch_warnings(), pytest.raises(PsycheError) as caught:
        registry.load("optimizer", "Mine")
    assert str(caught.value) == ROWS["two distributions have the name"]


def test_an_entry_point_that_names_more_than_a_module(mine: Registry) -> None:
    with pytest.raises(PsycheError) as caught:
        mine(behind=":hooks").load("data", "Mine")
    assert str(caught.value) == ROWS["the entry point names more than a module"]


def test_every_row_is_tested() -> None:
    rest = {"plugin API 1.9", "two distributions have the name", "the entry point names more than a module"}
    assert set(ROWS) == {*BREAKS, *rest}
