"""Every check that a data provider must pass, against JSON lines with known tokens."""

import json
from pathlib import Path

import pytest
from psyche_data_hf_stream.provider import HfStream
from psyche_data_hf_stream.settings import HfStreamSettings
from tokenizers import Tokenizer, models, pre_tokenizers

from psyche_core.testing.data import DataConformance
from psyche_core.testing.registration import RegistrationConformance

FILES = (("The quick brown fox jumps over the lazy dog. " * 2, "", "short"), ("Pack my box", "with five dozen liquor jugs."))
VOCABULARY = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def write_tokenizer(path: Path) -> None:
    """A token for each byte, and one more."""
    tokenizer = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(path))


class HfStreamTests(DataConformance):
    """Not collected itself; two sizes of the index are tested below."""

    index_tokens = 0

    def provider(self, source: Path) -> HfStream:
        settings = HfStreamSettings(
            location=".", tokenizer="../tokenizer.json", separator="<|end|>", index_tokens=self.index_tokens
        )
        return HfStream(settings, base=source, cache=source.parent / "cache", sequence_length=self.sequence_length)

    @pytest.fixture
    def source(self, token_folder: Path) -> Path:
        """JSON lines instead of the token files that the class writes."""
        for file in token_folder.iterdir():
            file.unlink()
        for number, texts in enumerate(FILES):
            lines = "\n".join(json.dumps({"id": 1, "text": text}) for text in texts)
            (token_folder / f"{number}.jsonl").write_text(lines + "\n")
        write_tokenizer(token_folder.parent / "tokenizer.json")
        return token_folder

    def expected(self) -> list[bytes]:
        ids = [
            number
            for texts in FILES
            for text in texts
            for number in (*(VOCABULARY["Ġ" if letter == " " else letter] for letter in text), len(VOCABULARY))
        ]
        rows = [ids[at : at + self.sequence_length] for at in range(0, len(ids), self.sequence_length)]
        return [b"".join(number.to_bytes(2, "little") for number in row) for row in rows if len(row) == self.sequence_length]


class TestAPlaceForEachText(HfStreamTests):
    index_tokens = 1


class TestOnePlace(HfStreamTests):
    index_tokens = 2**18


class TestRegistration(RegistrationConformance):
    kind, name = "data", "HfStream"
    heavy = (*RegistrationConformance.heavy, "datasets", "tokenizers")

    def settings(self, folder: Path) -> dict[str, str]:
        return {"location": str(folder), "tokenizer": "tokenizer.json"}
