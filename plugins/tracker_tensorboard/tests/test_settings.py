"""What cannot work is said before the run begins."""

from pathlib import Path

import pytest

from psyche_core.errors import ConfigError
from psyche_tracker_tensorboard.settings import TensorboardSettings, check


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write TensorBoard files into .*file.*--tensorboard-dir"):
        check(TensorboardSettings(tensorboard_dir=tmp_path / "file"))


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_TENSORBOARD_DIR", str(tmp_path / "here"))
    check(TensorboardSettings())
    assert (tmp_path / "here").is_dir()
    assert TensorboardSettings(tensorboard_dir=tmp_path).tensorboard_dir == tmp_path, "an argument wins"
