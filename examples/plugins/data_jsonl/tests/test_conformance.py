"""Every check that a data provider must pass, against JSON lines with known bytes."""

import json
from pathlib import Path

import pytest
from psyche_data_jsonl.provider import Jsonl

from psyche_core.testing.data import DataConformance
from psyche_core.testing.registration import RegistrationConformance

FILES = (("The quick brown fox jumps over the lazy dog. " * 2, "", "short"), ("Pack my böx", "with five dozen liquor jugs.\n"))


class TestJsonl(DataConformance):
    def provider(self, source: Path) -> Jsonl:
        return Jsonl(source, field="text", sequence_length=self.sequence_length)

    @pytest.fixture
    def source(self, token_folder: Path) -> Path:
        """JSON lines instead of the token files that the class writes."""
        for file in token_folder.iterdir():
            file.unlink()
        for number, texts in enumerate(FILES):
            lines = "\n\n".join(json.dumps({"id": 1, "text": text}) for text in texts)
            (token_folder / f"{number}.jsonl").write_text(lines + "\n")
        return token_folder

    def expected(self) -> list[bytes]:
        stream = b"".join(text.encode() + b"\0" for texts in FILES for text in texts)
        rows = [stream[at : at + self.sequence_length] for at in range(0, len(stream), self.sequence_length)]
        return [b"".join(bytes([byte, 0]) for byte in row) for row in rows if len(row) == self.sequence_length]


class TestRegistration(RegistrationConformance):
    kind, name = "data", "Jsonl"

    def settings(self, folder: Path) -> dict[str, str]:
        return {"location": str(folder)}
