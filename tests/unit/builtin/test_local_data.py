"""The `Local` data location."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from psyche_core.builtin.local_data import LocalData, LocalSettings
from psyche_core.config.run_config import parse_data_file
from psyche_core.data.ordering.data_shuffle import shuffled_order
from psyche_core.errors import DataError
from psyche_core.hookspecs import DataContext
from psyche_core.testing.data import DataConformance
from psyche_core.types import BatchId

SEED = bytes(range(1, 33))


class TestLocalData(DataConformance):
    def provider(self, source: Path) -> LocalData:
        return LocalData(source, sequence_length=self.sequence_length, token_size=self.token_size)


class TestFourBytes(DataConformance):
    token_size = 4

    def provider(self, source: Path) -> LocalData:
        return LocalData(source, sequence_length=self.sequence_length, token_size=self.token_size)


class TestShuffled(DataConformance):
    def provider(self, source: Path) -> LocalData:
        return LocalData(source, sequence_length=self.sequence_length, token_size=self.token_size, seed=SEED)

    def expected(self) -> list[bytes]:
        rows = super().expected()
        return [rows[place] for place in shuffled_order(len(rows), SEED)]


def write_rows(path: Path, values: list[int]) -> None:
    """One two-byte sequence of four equal tokens per value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(value.to_bytes(2, "little") * 4 for value in values))


async def read_values(provider: LocalData, count: int) -> list[int]:
    async with provider:
        samples = await provider.read([BatchId(0, count - 1)], timeout=5.0)
    return [int.from_bytes(samples.tokens[at : at + 2], "little") for at in range(0, len(samples.tokens), 8)]


async def test_relative_location_starts_at_the_contexts_base(tmp_path: Path) -> None:
    write_rows(tmp_path / "corpus" / "a.bin", [5, 6])
    context = DataContext(settings=LocalSettings(location="corpus"), sequence_length=4, base=tmp_path)

    assert await read_values(LocalData.from_context(context), 2) == [5, 6]


async def test_a_train_folder_is_preferred(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.bin", [1])
    write_rows(tmp_path / "train" / "tokens.bin", [2])
    write_rows(tmp_path / "validation" / "tokens.bin", [3])

    assert await read_values(LocalData(tmp_path, sequence_length=4, token_size=2), 1) == [2]


async def test_data_file_is_shuffled_with_its_seed(tmp_path: Path) -> None:
    write_rows(tmp_path / "tokens" / "a.bin", list(range(20)))
    text = f'dir = "tokens"\ntoken_size = "TwoBytes"\nseq_len = 4\nshuffle_seed = {list(SEED)}\n'
    data_file = parse_data_file(text, source="data.toml").resolved(tmp_path)

    assert await read_values(LocalData.from_data_file(data_file), 20) == list(shuffled_order(20, SEED))


async def test_settings_choose_token_size_and_shuffle(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"".join(value.to_bytes(4, "little") for value in range(10)))
    settings = LocalSettings.model_validate({"location": "a.bin", "token_size": "FourBytes", "shuffle": {"Seeded": list(SEED)}})

    async with LocalData.from_context(DataContext(settings=settings, sequence_length=1, base=tmp_path)) as provider:
        samples = await provider.read([BatchId(0, 9)], timeout=5.0)

    assert samples.token_size == 4
    assert [samples.tokens[at] for at in range(0, 40, 4)] == list(shuffled_order(10, SEED))


@pytest.mark.parametrize("wrong", [{}, {"location": ""}, {"location": "x", "tokensize": 2}, {"location": "x", "token_size": "2"}])
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LocalSettings.model_validate(wrong)


async def test_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot look for token files in .*nowhere: No such file"):
        async with LocalData(tmp_path / "nowhere", sequence_length=4, token_size=2):
            pass


async def test_reading_before_entering_is_a_programming_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="enter the provider"):
        await LocalData(tmp_path, sequence_length=4, token_size=2).read([BatchId(0, 0)], timeout=1.0)
