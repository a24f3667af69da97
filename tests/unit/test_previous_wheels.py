"""How `make release-check PREVIOUS=…` finds the plugins of wheels, and what excuses one that breaks."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parents[1] / "packaging" / "test_previous_release.py"
    spec = importlib.util.spec_from_file_location("previous_release", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "previous_release", made)
    monkeypatch.delenv("PREVIOUS", raising=False)
    spec.loader.exec_module(made)
    return made


def test_every_plugin_of_a_wheel_is_found_and_the_core_s_are_not(module: ModuleType, tmp_path: Path) -> None:
    for name, entry_points in {
        "psyche_core-0.1.0": "[psyche.plugins]\nbackend.memory = psyche_core.builtin.hooks\n",
        "psyche_optim_mine-0.1.0": "[psyche.plugins]\noptimizer.Mine = mine.hooks\nsharding.mine = mine.hooks\n",
        "other-2.0": "[console_scripts]\nother = other:main\n",
    }.items():
        with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{name}.dist-info/entry_points.txt", entry_points)
    found = [(plugin.distribution, plugin.version, plugin.entry_point) for plugin in module.earlier(tmp_path)]
    assert found == [("psyche-optim-mine", "0.1.0", "optimizer.Mine"), ("psyche-optim-mine", "0.1.0", "sharding.mine")]


def test_only_what_the_change_log_says_of_a_plugin_excuses_it(module: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "+one.breaking.md").write_text("psyche-optim-mine must give `exact`.")
    (tmp_path / "+two.added.md").write_text("psyche-data-yours may do more.")
    assert module.announced("psyche-optim-mine", tmp_path)
    assert not module.announced("psyche-data-yours", tmp_path)
