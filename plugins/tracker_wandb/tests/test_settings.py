"""Options, variables, and a key that is missing: said before the run begins."""

from pathlib import Path

import pytest

from psyche_core.config.options.loading import load_settings
from psyche_core.errors import ConfigError
from psyche_tracker_wandb.settings import WandbSettings, check


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user without any variables, files or key."""
    for name in ("API_KEY", "IDENTITY_TOKEN_FILE", "BASE_URL", "PROJECT", "RUN_GROUP", "ENTITY", "MODE", "DIR"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_a_missing_key_is_one_sentence_with_the_ways_out() -> None:
    with pytest.raises(ConfigError, match=r"needs an API key: set WANDB_API_KEY, or run `wandb login`.*--wandb-mode offline"):
        check(WandbSettings())


def test_offline_needs_no_key() -> None:
    check(WandbSettings(wandb_mode="offline"))


def test_a_key_of_the_environment_or_of_a_login_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password secret\n")
    check(WandbSettings())
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    with pytest.raises(ConfigError, match="needs an API key"):
        check(WandbSettings())
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    check(WandbSettings())


def test_a_damaged_login_file_is_no_key_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine\n")
    with pytest.raises(ConfigError, match="needs an API key"):
        check(WandbSettings())


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*file.*--wandb-dir"):
        check(WandbSettings(wandb_mode="offline", wandb_dir=tmp_path / "file"))


def test_their_variables_count_after_ours_and_after_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    assert WandbSettings().wandb_project == "theirs"
    monkeypatch.setenv("PSYCHE_WANDB_PROJECT", "ours")
    assert WandbSettings().wandb_project == "ours"
    assert load_settings(WandbSettings, {"wandb_project": "given"}).wandb_project == "given"


def test_a_bad_mode_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="--wandb-mode: got 'maybe'"):
        load_settings(WandbSettings, {"wandb_mode": "maybe"})
