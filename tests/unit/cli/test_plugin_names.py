"""Sentences about names that no installed plugin has."""

from __future__ import annotations

import pytest

from psyche_core.cli.plugin_names import unknown
from psyche_core.plugins import PluginRecord, PluginRegistry
from psyche_core.plugins.directory import not_installed


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


def test_one_that_is_not_installed_is_shown_with_its_distribution_and_what_it_is() -> None:
    (record,) = [one for one in not_installed([]) if (one.kind, one.name) == ("tracker", "mlflow")]
    assert record.status == "not installed"
    assert record.distribution == "psyche-tracker-mlflow"
    assert "MLflow" in record.summary
    assert "pip install 'psyche-core[mlflow]'" in record.cause
