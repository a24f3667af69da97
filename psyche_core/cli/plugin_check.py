"""What `psyche plugins check` does: everything that can be known of a plugin without a test file, step by step.

Each step ends in a sentence. The first failure of import, plugin API or registration ends the check: what follows needs them.
Conformance runs in a process of its own, so that a plugin that hangs or ends the process is a sentence, too.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from psyche_core.cli.plugin_factory import try_factory
from psyche_core.cli.plugin_import import Imported, try_import
from psyche_core.cli.plugin_training import try_training
from psyche_core.hookspecs import PLUGIN_API, Registration
from psyche_core.plugin_errors import guarded, label, summary_of
from psyche_core.plugin_switches import CORE
from psyche_core.plugins import PluginApiWarning, PluginRecord, described_settings
from psyche_core.plugins.advice import Dependencies, settings_advice
from psyche_core.plugins.child_process import run_alone
from psyche_core.plugins.loading import HOOKS, Refused, checked_api, imported, registration_of
from psyche_core.testing.contracts import CONTRACTS, Contract

Outcome = Literal["ok", "warning", "failed", "skipped"]

CONFORMANCE_SECONDS = 600
"""Time limit of the whole conformance step."""

MOST_LETTERS = 300
"""Longest sentence of a failed test that is shown."""

_CLASSES: Mapping[str, str] = {
    "backend": "backend.BackendConformance",
    "optimizer": "optimizer.OptimizerConformance",
    "data": "data.DataConformance",
    "transport": "transport.TransportConformance",
    "model": "model.ModelConformance",
    "sharding": "sharding.ShardingConformance",
    "relay": "relay.RelayConformance",
    "tracker": "tracker.TrackerConformance",
    "store": "store.StoreConformance",
    "command": "command.CommandConformance",
}

_TESTS: Mapping[str, str] = {
    "optimizer": """
from psyche_core.hookspecs import OptimizerContext
from psyche_core.testing.optimizer import OptimizerConformance

class TestPlugin(OptimizerConformance):
    resends_refused = not DROPS_REFUSED

    def make_optimizer(self, model):
        settings = REGISTRATION.settings.model_validate(SETTINGS)
        return REGISTRATION.create(OptimizerContext(settings=settings, model=model))
""",
    "model": """
from psyche_core.testing.model import ModelConformance

class TestPlugin(ModelConformance):
    create = staticmethod(REGISTRATION.create)
    config = MODEL_CONFIG
""",
    "command": """
from psyche_core.testing.command import CommandConformance

class TestPlugin(CommandConformance):
    registration = REGISTRATION
    hooks = MODULE
""",
}
_HEAD = """
from psyche_core.plugins import PluginRegistry

REGISTRATION = PluginRegistry.discover().load({kind!r}, {name!r})
MODULE, SETTINGS, MODEL_CONFIG, DROPS_REFUSED = {module!r}, {settings!r}, {model_config!r}, {drops_refused!r}
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a check: what it looked at, how that ended, and a sentence."""

    name: str
    outcome: Outcome
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user adds.

    Attributes:
        settings: the plugin's own table.
        model_config: a model's config.json.
        drops_refused: whether an optimizer drops what was not accepted, and documents it.
        conformance: whether to run the conformance tests.
        training: whether to train with it, if nothing before failed.
    """

    settings: Mapping[str, Any]
    model_config: Mapping[str, Any] | None = None
    drops_refused: bool = False
    conformance: bool = True
    training: bool = True


def check_plugin(record: PluginRecord, given: Given, *, tell: Callable[[str], None] = lambda _: None) -> Iterator[Step]:
    """All steps that can be done, as they are done. tell: called with what is being done, where that takes long."""
    failed = ""
    for step in _check(record, given, tell):
        failed = failed or (step.name if step.outcome == "failed" else "")
        yield step
    if not given.training:
        return
    if failed:
        yield Step("training", "skipped", f"first what failed above: {failed}")
        return

    tried = try_training(record, given.settings, given.model_config, tell=tell)
    outcome: Outcome = "skipped" if tried.trained is None else "ok" if tried.trained else "failed"
    yield Step("training", outcome, tried.sentence)


def _check(record: PluginRecord, given: Given, tell: Callable[[str], None]) -> Iterator[Step]:
    """All steps but training."""
    if record.status == "failed":  # already, without being imported
        yield Step("entry point", "failed", record.cause)
        return

    alone = Imported() if record.distribution == CORE else try_import(record.module)
    if alone.problem:
        yield Step("import", "failed", alone.problem)
        return

    try:
        module = imported(record)
        told = f"{record.module} can be imported"
        if alone.changed:
            told += f", and changes {', '.join(alone.changed)} for the whole program; change only what is your own"
        yield Step("import", "warning" if alone.changed else "ok", told)
        with warnings.catch_warnings(record=True, category=PluginApiWarning) as newer:
            warnings.simplefilter("always", PluginApiWarning)
            api = checked_api(module, record)
        ours = f", newer than this core's {'.'.join(map(str, PLUGIN_API))}: it may call for something that is not there"
        yield Step("plugin API", "warning" if newer else "ok", f"it was written for plugin API {api}{ours if newer else ''}")
    except Refused as refused:
        yield Step("import" if refused.status == "failed" else "plugin API", "failed", str(refused))
        return

    try:
        with warnings.catch_warnings():  # it was told
            warnings.simplefilter("ignore", PluginApiWarning)
            registration, _ = registration_of(record)
    except Refused as refused:
        yield Step("dependencies" if refused.status == "incomplete" else "registration", "failed", str(refused))
        return

    yield Step("registration", "ok", f"{HOOKS[record.kind][0]} registers {type(registration).__name__} {registration.name}")
    yield from _check_settings(registration, given)
    yield _check_dependencies(record)
    yield _check_factory(record, guarded(registration, called=label(record.kind, record.name, record.origin)), given)
    if given.conformance:
        tell("conformance: its tests run,")
        yield _check_conformance(record, registration, given)


def _check_settings(registration: Registration, given: Given) -> Iterator[Step]:
    model: type[BaseModel] | None = getattr(registration, "settings", None)
    if model is None:
        yield Step("settings", "ok", "it takes no settings")
        return

    try:
        described = described_settings(model)
    except Exception as error:  # a field may have any class, of which pydantic makes no schema
        yield Step("settings", "failed", f"{model.__name__} has no JSON schema, so it cannot be shown: {summary_of(error)}")
        return

    problems = list(settings_advice(model))
    required = [name for name, field in described.items() if field["required"] and name not in given.settings]
    if required:
        yield Step("settings", "warning" if problems else "ok", "; ".join([f"{', '.join(required)} must be given", *problems]))
        return

    try:
        model.model_validate(dict(given.settings))
    except ValidationError as error:
        yield Step("settings", "failed", f"{model.__name__} refuses {json.dumps(given.settings)}: {summary_of(error)}")
        return

    told = f"{model.__name__} has {len(described)} keys" + (" and accepts what was given" if given.settings else "")
    yield Step("settings", "warning" if problems else "ok", "; ".join([told, *problems]))


def _check_dependencies(record: PluginRecord) -> Step:
    """Whether what the distribution names is installed, and whether it names psyche-core with an upper bound."""
    if record.distribution == CORE:
        return Step("dependencies", "ok", "it comes with psyche-core")
    try:
        found = Dependencies.of(record.distribution)
    except PackageNotFoundError:
        return Step("dependencies", "failed", f"{record.distribution} has no readable metadata; install it again")
    if found.missing:
        told = f"not installed: {', '.join(found.missing)}; pip install {record.distribution}"
        return Step("dependencies", "failed", told)
    if found.others:
        told = f"{record.distribution} needs {', '.join(found.others)}; install both in versions that fit"
        return Step("dependencies", "failed", told)
    if found.advice:
        return Step("dependencies", "warning", found.advice)
    return Step("dependencies", "ok", f"{found.count} requirements are installed; works with {found.core}")


def _check_factory(record: PluginRecord, registration: Registration, given: Given) -> Step:
    tried = try_factory(record, registration, given.settings, given.model_config)
    return Step("factory", "skipped" if tried.made is None else "ok" if tried.made else "failed", tried.sentence)


def _check_conformance(record: PluginRecord, registration: Registration, given: Given) -> Step:
    name = f"psyche_core.testing.{_CLASSES[record.kind]}"
    if record.kind not in _TESTS:
        return Step(
            "conformance", "skipped", f"inherit {name} in a test: it needs what only you know of your {record.kind} plugin"
        )
    if record.kind == "model" and given.model_config is None:
        return Step("conformance", "skipped", "give the config.json of a small model with --model-config")
    if find_spec("pytest") is None:
        return Step("conformance", "skipped", "it needs pytest; install it with: pip install 'psyche-core[testing]'")

    model: type[BaseModel] | None = getattr(registration, "settings", None)
    if model is not None and any(field.is_required() and key not in given.settings for key, field in model.model_fields.items()):
        return Step("conformance", "skipped", "it needs settings; give them with --settings")

    head = _HEAD.format(
        kind=record.kind,
        name=f"{record.distribution}:{record.name}",
        module=record.module,
        settings=dict(given.settings),
        model_config=None if given.model_config is None else dict(given.model_config),
        drops_refused=given.drops_refused,
    )
    with tempfile.TemporaryDirectory(prefix="psyche-check-") as folder:
        test, report = Path(folder, "test_plugin.py"), Path(folder, "report.xml")
        test.write_text(head + _TESTS[record.kind], encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "psyche_core.testing.pytest_plugin"]
        command += ["--rootdir", folder, "-c", os.devnull]
        done = run_alone([*command, f"--junitxml={report}", str(test)], cwd=Path(folder), seconds=CONFORMANCE_SECONDS)
        if done.status is None:
            return Step("conformance", "failed", f"{name} did not end within {CONFORMANCE_SECONDS} s: a call of yours hangs")
        if not report.exists():
            told = (done.output + done.errors).decode(errors="replace")
            lines = told.strip().splitlines() or [f"exit status {done.status}"]
            return Step("conformance", "failed", f"{name} could not run: {lines[-1]}")
        return _read_report(name, report, CONTRACTS[record.kind])


def _read_report(name: str, report: Path, contract: Contract) -> Step:
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314  # pytest wrote it a moment ago
    failures = [
        f"{case.get('name')}: {_sentence(problem.get('message') or '')}"
        for case in cases
        for problem in (*case.findall("failure"), *case.findall("error"))
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    if failures:
        told = f"{len(failures)} of {len(cases)} tests of {name} failed: {'; '.join(failures[:3])}"
        return Step("conformance", "failed", f"{told}{' …' if len(failures) > 3 else ''}; {contract}")
    left = f", {skipped} do not apply" if skipped else ""
    return Step("conformance", "ok", f"{len(cases) - skipped} tests of {name} pass{left}")


def _sentence(message: str) -> str:
    """The first line of a failure's message; pytest's comparison of values comes after it."""
    first = next(iter(message.strip().splitlines()), "").removeprefix("AssertionError: ")
    return first if len(first) <= MOST_LETTERS else f"{first[:MOST_LETTERS]}…"
