"""What is particular to Jsonl."""

from pathlib import Path

import pytest
from psyche_data_jsonl.hooks import create
from psyche_data_jsonl.settings import JsonlSettings

from psyche_core.errors import DataError
from psyche_core.hookspecs import DataContext
from psyche_core.types import BatchId


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"text": "enough text for a sample"}\nno JSON\n', "the line at byte 37 is no JSON object with text"),
        ('{"words": "enough"}\n', "the line at byte 0 is no JSON object with text: 'text'"),
        ('{"text": 7}\n', "text of the line at byte 0 must be a text, got a int"),
        ('{"text": "few"}\n', "has 4 tokens in 1 files, a sample needs 8; is it right?"),
        ("", "has 0 tokens"),
    ],
)
async def test_what_cannot_be_used_is_a_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "texts.jsonl").write_text(content)
    settings = JsonlSettings(location="texts.jsonl")
    with pytest.raises(DataError) as raised:
        await create(DataContext(settings=settings, sequence_length=8, base=tmp_path)).__aenter__()
    assert sentence in str(raised.value)


@pytest.mark.anyio
async def test_a_file_that_changed_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"body": "one text"}\n{"body": "another text"}\n')
    settings = JsonlSettings(location="texts.jsonl", field="body")
    async with create(DataContext(settings=settings, sequence_length=8, base=tmp_path)) as provider:
        file.write_text('{"body": "two text"}\n{"body": "another longer text"}\n')
        with pytest.raises(DataError, match="the text at byte 21 has 20 bytes and had 13; start again"):
            await provider.read([BatchId(1, 1)], timeout=5)
