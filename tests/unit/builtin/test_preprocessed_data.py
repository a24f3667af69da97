"""The `Preprocessed` data location."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from psyche_core.builtin.preprocessed_data import PreprocessedData, PreprocessedSettings
from psyche_core.data.ordering.data_shuffle import shuffled_order
from psyche_core.errors import DataError
from psyche_core.hookspecs import DataContext
from psyche_core.testing.data import DataConformance
from psyche_core.types import BatchId

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SEED = bytes(range(1, 33))


class TestPreprocessedData(DataConformance):
    token_size = 4
    seed: bytes | None = None

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        return self.written(tmp_path / "prepared")

    def written(self, folder: Path) -> Path:
        folder.mkdir()
        for number, (tokens, count) in enumerate(zip(self.file_tokens(), self.file_sequences, strict=True)):
            values = memoryview(tokens).cast("I")[: count * self.sequence_length].tolist()
            rows = [values[at : at + self.sequence_length] for at in range(0, len(values), self.sequence_length)]
            pq.write_table(pa.table({"inputs": rows}), folder / f"train-{number}.parquet", row_group_size=2)
        return folder

    def provider(self, source: Path) -> PreprocessedData:
        return PreprocessedData(str(source), sequence_length=self.sequence_length, seed=self.seed)

    def break_source(self, token_folder: Path) -> None:
        super().break_source(token_folder.parent / "prepared")


class TestShuffled(TestPreprocessedData):
    seed = SEED

    def expected(self) -> list[bytes]:
        rows = super().expected()
        return [rows[place] for place in shuffled_order(len(rows), SEED)]


async def test_settings_choose_split_and_shuffle(tmp_path: Path) -> None:
    for split, first in (("train", 0), ("validation", 50)):
        (tmp_path / "set" / split).mkdir(parents=True)
        pq.write_table(pa.table({"inputs": [[first + n] for n in range(20)]}), tmp_path / "set" / split / "0.parquet")
    settings = PreprocessedSettings.model_validate({"location": "set", "split": "validation", "shuffle": {"Seeded": list(SEED)}})

    context = DataContext(settings=settings, sequence_length=1, base=tmp_path)
    async with PreprocessedData.from_context(context) as provider:
        samples = await provider.read([BatchId(0, 19)], timeout=5.0)

    assert [samples.tokens[at] - 50 for at in range(0, 80, 4)] == list(shuffled_order(20, SEED))


async def test_a_batch_longer_than_the_data_set_is_not_shortened(tmp_path: Path) -> None:
    pq.write_table(pa.table({"inputs": [[1], [2]]}), tmp_path / "train.parquet")

    async with PreprocessedData(str(tmp_path), sequence_length=1) as provider:
        samples = await provider.read([BatchId(1, 7)], timeout=5.0)

    assert samples.count == 7
    assert [samples.tokens[at] for at in range(0, 28, 4)] == [2, 1, 2, 1, 2, 1, 2]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache as it is after a download, and no network."""
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    repository = cache / "datasets--somebody--talks"
    snapshot = repository / "snapshots" / ("a" * 40)
    (snapshot / "data").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    pq.write_table(pa.table({"inputs": [[5], [6]]}), snapshot / "data" / "train-00000-of-00001.parquet")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return cache


@pytest.mark.usefixtures("hub")
async def test_a_data_set_in_the_hubs_cache_needs_no_network(tmp_path: Path) -> None:
    async with PreprocessedData("somebody/talks", sequence_length=1, base=tmp_path) as provider:
        assert provider.num_sequences == 2


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", ["somebody/others", "nowhere"])
async def test_a_data_set_that_cannot_be_had_is_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        DataError, match=f"/{name} does not exist, and {name} is neither a folder here nor a data set that could be downloaded"
    ):
        async with PreprocessedData(name, sequence_length=1, base=tmp_path):
            pass


@pytest.mark.parametrize("name", ["/nowhere/at/all", "../x", "a b", "x" * 5000, "nul\0"])
async def test_a_missing_folder_is_not_looked_for_on_the_hub(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"does not exist|cannot look for"):
        async with PreprocessedData(name, sequence_length=1, base=tmp_path):
            pass


async def test_reading_before_entering_is_a_programming_error() -> None:
    with pytest.raises(RuntimeError, match="enter the provider"):
        await PreprocessedData("x", sequence_length=4).read([BatchId(0, 0)], timeout=1.0)


@pytest.mark.parametrize("wrong", [{}, {"location": ""}, {"location": "x", "split": "evil"}, {"location": "x", "size": 2}])
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PreprocessedSettings.model_validate(wrong)
