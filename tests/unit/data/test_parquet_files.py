"""Which Parquet files make up a split."""

from pathlib import Path

import pytest

from psyche_core.data.parquet.files import SplitName, parquet_paths
from psyche_core.errors import DataError


def chosen(root: Path, *names: str, split: SplitName = "train") -> list[str]:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return [path.relative_to(root).as_posix() for path in parquet_paths(root, split)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["default/train/1.parquet", "default/train/0.parquet", "default/test/0.parquet"],
         ["default/train/0.parquet", "default/train/1.parquet"]),
        (["train-large/b.PARQUET", "train-large/a.parquet"], ["train-large/a.parquet", "train-large/b.PARQUET"]),
        (["d/train-00000-of-00002.parquet", "d/train-00001-of-00002.parquet", "d/test-00000-of-00001.parquet"],
         ["d/train-00000-of-00002.parquet", "d/train-00001-of-00002.parquet"]),
        (["train/a.parquet", "trainset.parquet"], ["train/a.parquet"]),  # the hub's layout goes first
        (["b.parquet", "a.parquet", "notes.txt"], ["a.parquet", "b.parquet"]),  # nothing is named after a split
    ],
)  # fmt: skip
def test_split_is_found(tmp_path: Path, names: list[str], expected: list[str]) -> None:
    assert chosen(tmp_path, *names) == expected


def test_another_split_can_be_named(tmp_path: Path) -> None:
    assert chosen(tmp_path, "train-0.parquet", "validation-0.parquet", split="validation") == ["validation-0.parquet"]


def test_a_file_is_itself(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"")

    assert parquet_paths(tmp_path / "rows") == [tmp_path / "rows"]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["notes.txt"], "has no Parquet files"),
        (["test/0.parquet"], r"none of the 1 Parquet files .* is of the split train; expected a folder train/"),
        (["en/train/0.parquet", "de/train/0.parquet"], r"several subsets \(.*de, .*en\); name the folder of one"),
        (["en/train-0.parquet", "de/train-0.parquet"], "several subsets"),
        (["train-00000-of-00003.parquet", "train-00002-of-00003.parquet"], r"has 2 of 3 Parquet files \(number 1 is missing\)"),
    ],
)
def test_what_is_no_split_is_refused(tmp_path: Path, names: list[str], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        chosen(tmp_path, *names)
