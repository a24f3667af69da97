"""`psyche doctor`: what it finds on this machine, and on machines that lack something."""

from __future__ import annotations

import json
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from psyche_core.cli.commands import doctor_checks
from psyche_core.cli.commands.doctor_checks import CheckResult
from psyche_core.plugins import PluginRegistry
from psyche_core.wire.signing import SecretKey
from tests.unit.cli.conftest import Psyche

REPOSITORY = Path(__file__).parents[3]
STATE = REPOSITORY / "examples" / "local_testnet" / "state.toml"


def results(psyche: Psyche, *words: object, code: int = 0) -> dict[str, list[CheckResult]]:
    result = psyche("doctor", "--json", *words)
    assert result.code == code, result.out
    told = json.loads(result.out)
    assert told["ok"] is (code == 0)
    found: dict[str, list[CheckResult]] = {}
    for row in told["findings"]:
        assert row["remedy"] or row["status"] == "ok", "whatever is not ok has a remedy"
        found.setdefault(row["check"], []).append(CheckResult(**row))
    return found


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wallet of whoever runs the tests is looked at."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_this_machine_can_take_part_in_the_example(psyche: Psyche, tmp_path: Path) -> None:
    key = tmp_path / "me.key"
    SecretKey.generate().save(key)
    found = results(psyche, "--state", STATE, "--device", "cpu", "--checkpoint-dir", tmp_path / "checkpoints", "-i", key)
    assert found["model"][0].text == "1.1 million parameters"
    assert {"python", "torch", "device", "memory", "disk", "clock", "identity", "plugins", "run file"} <= set(found)
    assert [each.text.partition(":")[0].split()[0] for each in found["disk"]] == ["--cache-dir", "--checkpoint-dir"]


def test_a_key_that_others_can_read_is_a_problem_with_its_remedy(psyche: Psyche, tmp_path: Path) -> None:
    key, wallet = tmp_path / "me.key", tmp_path / "wallet.json"
    SecretKey.generate().save(key)
    wallet.write_text("[]")
    for path in (key, wallet):
        path.chmod(0o644)
    found = results(psyche, "-i", key, "-w", wallet, code=2)
    for check, path in (("identity", key), ("wallet", wallet)):
        assert found[check][0].status == "problem"
        assert f"chmod 600 {path}" in found[check][0].remedy


def test_the_usual_wallet_is_looked_at(psyche: Psyche, tmp_path: Path) -> None:
    wallet = tmp_path / "home" / ".config" / "solana" / "id.json"
    wallet.parent.mkdir(parents=True)
    wallet.write_text("[]")
    wallet.chmod(0o600)
    assert results(psyche)["wallet"][0].status == "ok"


def test_a_device_that_is_not_here_is_a_problem(psyche: Psyche) -> None:
    assert "cuda:99" in results(psyche, "--device", "cuda:99", code=2)["device"][0].text


def test_a_run_whose_plugins_are_missing_is_a_problem(psyche: Psyche, tmp_path: Path) -> None:
    state = tmp_path / "state.toml"
    state.write_text(STATE.read_text().replace('architecture = "HfLlama"', 'architecture = "Mamba9"'))
    assert "Mamba9" in results(psyche, "--state", state, code=2)["run file"][0].text


def test_a_run_file_with_a_mistake_is_a_problem_not_an_end(psyche: Psyche, tmp_path: Path) -> None:
    state = tmp_path / "state.toml"
    state.write_text("run_id = 3")
    found = results(psyche, "--state", state, code=2)
    assert found["run file"][0].status == "problem"
    assert "clock" in found


def test_the_text_shows_a_remedy_below_what_it_is_for(psyche: Psyche, tmp_path: Path) -> None:
    result = psyche("doctor", "-i", tmp_path / "nothing.key")
    assert result.code == 2
    lines = result.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("problem  identity"))
    assert lines[at + 1].strip().startswith("-> make one with")


def test_little_memory_is_a_problem_and_hardly_enough_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from psyche_core.models import memory

    for free, status in ((15_000_000, "problem"), (17_000_000, "warning"), (40_000_000, "ok"), (None, "warning")):
        monkeypatch.setattr(memory, "free_bytes", lambda free=free: free)
        _, found = doctor_checks._memory(1_000_000, device="cpu")
        assert found.status == status, free


def test_a_full_disk_and_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    full, *_ = doctor_checks.check_disk([("--cache-dir", tmp_path / "a" / "b")], model_bytes=1 << 60)
    assert (full.status, "are needed" in full.text) == ("warning", True)
    (below,) = doctor_checks.check_disk([("--cache-dir", tmp_path / "file" / "b")], model_bytes=0)
    assert below.status == "problem"


def test_a_clock_of_the_past_is_a_problem_and_an_unsynchronised_one_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for synchronised, status in ((True, "ok"), (None, "ok"), (False, "warning")):
        monkeypatch.setattr(doctor_checks, "_synchronised", lambda value=synchronised: value)
        assert next(doctor_checks.check_clock()).status == status
    monkeypatch.setattr(time, "time", lambda: 86400.0)
    assert next(doctor_checks.check_clock()).status == "problem"


def test_a_broken_plugin_is_named() -> None:
    broken = EntryPoint("optimizer.Broken", "no_such_module_anywhere", "psyche.plugins")
    found = list(doctor_checks.check_plugins(PluginRegistry.discover(entry_points=(broken,)), None))
    assert found[0].status == "problem"
    assert "optimizer.Broken" in found[0].text
