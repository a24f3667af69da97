"""Conformance of a registration: entry point, settings and factory, as runs find them. A plugin's whole test is:

    class TestRegistration(RegistrationConformance):
        kind, name = "optimizer", "Mine"

The plugin must be installed (`pip install -e .`): it is found by its entry point, through the same registry that a run uses.
What a plugin is made from is known here for most kinds; where it is not, override `context`.
"""

# ruff: noqa: D102  # the tests' names describe them

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import click

from psyche_core import hookspecs
from psyche_core.errors import ConfigError
from psyche_core.hookspecs import Registration
from psyche_core.plugin_switches import CORE
from psyche_core.plugins import PluginRecord, PluginRegistry, validate_settings
from psyche_core.plugins.advice import Dependencies, settings_advice
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.contexts import context_for
from psyche_core.testing.contracts import REGISTRATION, Contract
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.sentences import raises, shown

HEAVY = ("torch", "transformers", "numpy", "jax")
UNKNOWN_KEY = "no_plugin_has_this_key"


class RegistrationConformance(Conformance):
    """Inherit, and set `kind` and `name`.

    Attributes:
        kind: of the plugin, as in the entry point.
        name: of the plugin, as runs and options say it.
        heavy: modules that registering must not import.
    """

    contract: ClassVar[Contract] = REGISTRATION
    kind: ClassVar[str]
    name: ClassVar[str]
    heavy: ClassVar[tuple[str, ...]] = HEAVY

    def settings(self, folder: Path) -> Mapping[str, Any]:  # noqa: ARG002  # for those who override it
        """The plugin's own table with which the factory is tried. Override it if keys are required; folder: an empty one."""
        return {}

    def context(self, settings: Any, folder: Path) -> Any | None:
        """What the factory is called with; None leaves that test out. settings: validated; folder: an empty one.

        A backend gets the address of its own server, which is started and ended for that; a sharding engine is alone. Override it
        for a model (ModelContext.source is a folder with its config.json) and for what needs more than is given here.
        """
        return context_for(self._load(PluginRegistry.discover()), settings=settings, folder=folder)

    def test_one_entry_point_names_it(self) -> None:
        record = self._record(PluginRegistry.discover())
        assert record.status == "not loaded", (
            f"one entry point must name the plugin, and {record.entry_point} ({record.origin}) cannot be used: {record.cause}"
        )

    def test_it_is_registered_for_this_plugin_api(self) -> None:
        registry = PluginRegistry.discover()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            registration = self._load(registry)
        summary = registration.summary
        assert summary.strip(), "the registration's summary is empty; say in a few words what the plugin does"
        assert "\n" not in summary, f"the registration's summary must be one line, got {shown(summary)}"
        record = self._record(registry)
        assert record.status == "ok", f"{record.entry_point} must be usable, its status is {record.status}: {record.cause}"

    def test_its_settings_are_described_and_unknown_keys_are_refused(self, tmp_path: Path) -> None:
        registration = self._load(PluginRegistry.discover())
        given = dict(self.settings(tmp_path))
        validate_settings(registration, given, where=self.name)
        with raises(ConfigError, f"its settings must refuse the unknown key {UNKNOWN_KEY}", match=UNKNOWN_KEY):
            validate_settings(registration, {**given, UNKNOWN_KEY: 1}, where=self.name)
        model = getattr(registration, "settings", None)
        advice = [] if model is None else list(settings_advice(model))
        assert not advice, (
            f"its settings must be described and refuse unknown keys; {model.__name__ if model else ''}: {'; '.join(advice)}"
        )

    def test_its_factory_makes_one(self, tmp_path: Path) -> None:
        registration: Any = self._load(PluginRegistry.discover())
        if self.kind == "command":
            command = registration.load()
            assert isinstance(command, click.Command), f"load must give a click command, got a {type(command).__name__}"
            return
        context = self.context(validate_settings(registration, self.settings(tmp_path), where=self.name), tmp_path)
        if context is None:
            pytest.skip(f"only you know from what your {self.kind} plugin is made; override context")
        made = registration.create(context)  # the registry's copy refuses what is not of the kind, in a sentence
        if self.kind == "tracker":
            made.finish(success=False, reason="it was only tried")
        if self.kind == "store":
            made.close()

    def test_registering_imports_nothing_heavy(self) -> None:
        script = (
            "import sys\nfrom psyche_core.plugins import PluginRegistry\n"
            f"PluginRegistry.discover().load({self.kind!r}, {self.name!r})\n"
            f"print([name for name in {self.heavy!r} if name in sys.modules])"
        )
        done = subprocess.run(  # noqa: S603  # our own interpreter
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"another process cannot load {self.kind}.{self.name}: {done.stderr.strip()[-500:]}"
        assert done.stdout.strip() == "[]", f"registering imports {done.stdout.strip()}; import it in the factory"

    def test_its_distribution_says_with_which_versions_it_works(self) -> None:
        record = self._record(PluginRegistry.discover())
        if record.distribution == CORE:
            pytest.skip("it comes with psyche-core")
        found = Dependencies.of(record.distribution)
        assert not found.missing, f"not installed: {', '.join(found.missing)}; pip install {record.distribution}"
        assert not found.advice, (
            f"the distribution must say with which versions of psyche-core it works; {record.distribution}: {found.advice}"
        )

    def _record(self, registry: PluginRegistry) -> PluginRecord:
        found = [record for record in registry.list() if (record.kind, record.name) == (self.kind, self.name)]
        assert found, (
            f"no entry point {self.kind}.{self.name} in the group {hookspecs.GROUP}; it must be in pyproject.toml, and the "
            "project installed: pip install -e ."
        )
        return found[0]

    def _load(self, registry: PluginRegistry) -> Registration:
        self._record(registry)
        return registry.load(self.kind, self.name)
