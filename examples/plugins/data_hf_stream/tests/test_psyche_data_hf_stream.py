"""What is particular to HfStream."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from psyche_data_hf_stream.hooks import create
from psyche_data_hf_stream.settings import HfStreamSettings
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers

from psyche_core.errors import DataError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider
from psyche_core.types import BatchId


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """datasets asks nobody about local files."""
    asked: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **_: asked.append(words[0]))
    yield
    assert asked == []


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with a tokenizer of words, w0 to w99."""
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(100)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def provider_of(base: Path, **settings: object) -> DataProvider:
    given = {"location": "texts", "tokenizer": "tokenizer.json", **settings}
    context = DataContext(settings=HfStreamSettings.model_validate(given), sequence_length=4, base=base, cache=base / "cache")
    return create(context)


def words(first: int, last: int) -> str:
    return " ".join(f"w{number}" for number in range(first, last + 1))


async def ids(provider: DataProvider, first: int, last: int) -> list[int]:
    samples = await provider.read([BatchId(first, last)], timeout=60)
    return [int.from_bytes(samples.tokens[at : at + 2], "little") for at in range(0, len(samples.tokens), 2)]


@pytest.mark.anyio
async def test_lines_of_text_are_texts_and_a_batch_may_wrap_around(base: Path) -> None:
    (base / "texts").mkdir()
    (base / "texts" / "a.txt").write_text(f"{words(1, 3)}\n{words(4, 9)}\n")
    (base / "texts" / "b.txt").write_text(f"{words(10, 14)}\n")
    (base / "texts" / "c.md").write_text("left out")
    async with provider_of(base, form="text", index_tokens=4) as provider:
        assert provider.num_sequences == 3
        assert await ids(provider, 1, 1) == [5, 6, 7, 8]
        assert await ids(provider, 2, 4) == [*range(9, 13), *range(1, 9)]


@pytest.mark.anyio
async def test_a_large_file_is_read_from_its_middle(base: Path) -> None:
    """More texts than datasets has in one of its batches."""
    lines = [f'{{"body": "w{number % 100}"}}\n' for number in range(8000)]
    (base / "texts").mkdir()
    (base / "texts" / "a.jsonl").write_text("".join(lines))
    async with provider_of(base, field="body", index_tokens=777) as provider:
        assert provider.num_sequences == 2000
        for number in (0, 194, 195, 1000, 1999):
            assert await ids(provider, number, number) == [(4 * number + each) % 100 for each in range(4)]


@pytest.mark.anyio
async def test_a_file_that_changed_is_noticed(base: Path) -> None:
    file = base / "texts.jsonl"
    file.write_text(f'{{"text": "{words(1, 9)}"}}\n')
    async with provider_of(base, location="texts.jsonl") as provider:
        file.write_text(f'{{"text": "{words(1, 10)}"}}\n')
        with pytest.raises(DataError, match="changed since it was read first; start again"):
            await ids(provider, 0, 0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("content", "settings", "sentence"),
    [
        (f'{{"text": "{words(1, 9)}"}}\nno JSON\n', {}, "datasets cannot "),
        ('{"words": "w1"}\n', {}, "text of a row must be a text, got NoneType; the row has words"),
        ('{"text": 7}\n', {}, "text of a row must be a text, got int"),
        ('{"text": "w1 w2"}\n', {}, "has 2 tokens in 1 files, a sample needs 4; is it right?"),
        ('{"text": "w1"}\n', {"separator": "<end>"}, "has no token '<end>'"),
        ('{"text": "w1"}\n', {"tokenizer": "none.json"}, "cannot read the tokenizer"),
        ('{"text": "w1"}\n', {"location": "https://example.org/texts.jsonl"}, "is neither a file nor a folder"),
    ],
)
async def test_what_cannot_be_used_is_a_sentence(base: Path, content: str, settings: dict[str, str], sentence: str) -> None:
    (base / "texts").mkdir()
    (base / "texts" / "a.jsonl").write_text(content)
    with pytest.raises(DataError) as raised:
        await provider_of(base, **settings).__aenter__()
    assert sentence in str(raised.value)


def test_only_forms_that_are_data_are_taken() -> None:
    """Not any module that datasets could load."""
    with pytest.raises(ValidationError):
        HfStreamSettings.model_validate({"location": "texts", "tokenizer": "t.json", "form": "someone/script"})
