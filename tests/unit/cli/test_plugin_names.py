"""Sentences about names that no installed plugin has."""

from __future__ import annotations

import pytest

from psyche_core.cli.plugin_names import unknown
from psyche_core.plugins import PluginRecord, PluginRegistry


@pytest.fixture(scope="module")
def records() -> list[PluginRecord]:
    return list(PluginRegistry.discover().list())


def without(records: list[PluginRecord], name: str) -> tuple[list[PluginRecord], list[PluginRecord]]:
    """The records without those of this name, and these alone, as if they were not installed."""
    return [one for one in records if one.name != name], [one for one in records if one.name == name]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mlflo", "no plugin is named mlflo; did you mean tracker.mlflow? It is not installed; "),
        ("tracker.mlflo", "no plugin is named tracker.mlflo; did you mean tracker.mlflow? It is not installed; "),
        ("mlflow", "the tracker plugin mlflow is not installed; "),
        ("distro", "no plugin is named distro; did you mean Distro?"),
        ("optimizer.mlflo", "no plugin is named optimizer.mlflo; known: AdamW, "),
    ],
)
def test_the_nearest_name_is_told_also_of_what_is_not_installed(records: list[PluginRecord], name: str, sentence: str) -> None:
    here, missing = without(records, "mlflow")
    assert missing
    assert str(unknown(name, here, missing)).startswith(sentence)
