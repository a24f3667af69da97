"""The tables of `data.toml`: token files of a run's data, or the text to make them from. Tables of the run file: `schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from psyche_core.config.schema import U8, Table


def _directory(value: Any) -> Any:
    if not isinstance(value, str | Path):
        message = "must be a path in quotes"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports ValueError only
    if value == "":
        message = 'must not be empty; write "." for the folder of this file'
        raise ValueError(message)
    if "\0" in str(value):
        message = "must not contain NUL characters"
        raise ValueError(message)

    return Path(value)


Directory = Annotated[Path, BeforeValidator(_directory)]


class TextSource(Table):
    """`[text]` in data.toml, not in the reference: how to make the token files at first use.

    Attributes:
        package: an installed package that contains the text.
        tokenizer: tokenizer file.
        held_out: fraction kept for evaluation.
    """

    package: Annotated[str, Field(min_length=1)]
    tokenizer: Directory
    held_out: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05


class DataFile(Table):
    """`data.toml`: token files in a folder. seq_len in tokens; shuffle_seed is 32 bytes."""

    dir: Directory
    token_size: Literal["TwoBytes", "FourBytes"]
    seq_len: Annotated[int, Field(ge=1, le=2**32 - 1)]
    shuffle_seed: Annotated[tuple[U8, ...], Field(strict=False, min_length=32, max_length=32)]
    text: TextSource | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes per token: 2 or 4."""
        return {"TwoBytes": 2, "FourBytes": 4}[self.token_size]

    @property
    def seed(self) -> bytes:
        """The shuffle seed as 32 bytes."""
        return bytes(self.shuffle_seed)

    def resolved(self, base: Path) -> Self:
        """Return a copy whose relative paths start at `base`, the folder of the file."""
        text = self.text.model_copy(update={"tokenizer": base / self.text.tokenizer}) if self.text else None
        return self.model_copy(update={"dir": base / self.dir, "text": text})
