"""Makes a folder of token files from texts.

    dataset.json              the sources and settings
    tokenizer.json            a copy of the tokenizer
    train/tokens.bin          little-endian tokens of all documents, one after the other
    validation/tokens.bin     the held-out ones, if there are any

The tokenizer adds no special tokens of its own; special tokens in the text are read as plain words. The token that ends a text
follows every document. The vocabulary's size decides the token size. The tokenizers library works in parallel; the result does
not depend on the number of threads. The folder is written under a temporary name and renamed when it is complete, so it exists
completely or not at all. A folder that psyche did not make is never replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from psyche_core.data.text.documents import Piece, pieces
from psyche_core.data.text.tokenizer_files import TOKENIZER_FILE, end_token, load_tokenizer, tokenizer_path, vocabulary_size
from psyche_core.errors import DataError, InputError

TRAINING, VALIDATION = "train", "validation"
TOKENS_FILE = "tokens.bin"
DESCRIPTION = "dataset.json"
DESCRIPTION_FORMAT = 1

BATCH_CHARACTERS = 2 << 20
"""Size of the text given to the library at once; its threads share it."""

_CODES = {2: "H", 4: "I"}


@dataclass(frozen=True, slots=True)
class TokenizeProgress:
    """Progress. size: bytes of text done, of `total`. documents: number finished. tokens: number written."""

    size: int
    total: int
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """A finished folder.

    Counts are in tokens and include end tokens. end: name and id of the token after every document, or None.
    """

    folder: Path
    documents: int
    training_tokens: int
    validation_tokens: int
    token_size: int
    vocabulary: int
    end: tuple[str, int] | None


def tokenize_texts(
    paths: Iterable[Path],
    folder: Path,
    *,
    tokenizer: Path,
    end: str = "auto",
    token_size: int | None = None,
    held_out: float = 0.0,
    text_key: str = "text",
    overwrite: bool = False,
    progress: Callable[[TokenizeProgress], None] | None = None,
) -> TokenizedTexts:
    """Make `folder` from the texts in `paths`. Blocking.

    tokenizer: a tokenizer.json or a folder with one. end: the token after every document: "auto", "none", a token or its id.
    token_size: 2 or 4 bytes, None to choose it by the vocabulary. held_out: share from 0 to below 1 for validation. text_key:
    key of the text in `.jsonl` files. overwrite: replace a folder that this function made. progress: called after each batch.
    Raises DataError.
    """
    paths = list(paths)
    _check_target(folder, overwrite=overwrite)
    source = tokenizer_path(tokenizer)
    library = load_tokenizer(source)
    vocabulary = vocabulary_size(library)
    token_size = _fitting(token_size, vocabulary, source)
    ending = end_token(library, source, end)
    library.encode_special_tokens = True  # "<|endoftext|>" inside a text does not end it
    total = sum(path.stat().st_size for path in paths)

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".partial"))
    except OSError as error:
        message = f"cannot write beside {folder}: {error.strerror}; choose another folder"
        raise DataError(message) from error

    try:
        with _Writer(partial, token_size, held_out=held_out > 0) as writer:
            done = documents = 0
            for batch in _batches(pieces(paths, held_out=held_out, text_key=text_key)):
                encoded = library.encode_batch_fast([piece.text for piece in batch], add_special_tokens=False)
                for piece, encoding in zip(batch, encoded, strict=True):
                    writer.write(encoding.ids, held_out=piece.held_out)
                    if piece.last and ending is not None:
                        writer.write([ending[1]], held_out=piece.held_out)
                    done += piece.size
                    documents += piece.documents
                if progress is not None:
                    progress(TokenizeProgress(done, total, documents, sum(writer.tokens.values())))

        made = TokenizedTexts(
            folder, documents, writer.tokens[TRAINING], writer.tokens[VALIDATION], token_size, vocabulary, ending
        )
        if not made.training_tokens:
            message = f"the {len(paths)} files have no text to train on; give texts, or hold out less"
            raise InputError(message)

        shutil.copyfile(source, partial / TOKENIZER_FILE)
        _write_description(partial / DESCRIPTION, made, source)
        _publish(partial, folder)
    except OSError as error:
        message = f"cannot write {folder}: {error.strerror}; nothing of it was kept"
        raise DataError(message) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)

    return made


def described(folder: Path) -> Mapping[str, Any] | None:
    """The contents of `dataset.json` in a folder; None if psyche did not write one there."""
    try:
        found = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        return found if found["format"] == DESCRIPTION_FORMAT and found["token_size"] in _CODES else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _check_target(folder: Path, *, overwrite: bool) -> None:
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return
    except OSError as error:
        message = f"cannot look into {folder}: {error.strerror}; choose another folder"
        raise DataError(message) from error

    if described(folder) is None:
        message = f"{folder} is there already and was not made by this command; choose another folder"
        raise InputError(message)
    if not overwrite:
        message = f"{folder} is there already; choose another folder, or replace it with --overwrite"
        raise InputError(message)


def _fitting(token_size: int | None, vocabulary: int, source: Path) -> int:
    needed = 2 if vocabulary <= 2**16 else 4
    if token_size is not None and token_size < needed:
        message = f"{source} has {vocabulary} ids, too many for {token_size} bytes a token; use 4"
        raise InputError(message)

    return needed if token_size is None else token_size


def _batches(found: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in found:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Writer:
    """Writes the token files of a new folder. tokens: number written so far, by part."""

    def __init__(self, folder: Path, token_size: int, *, held_out: bool) -> None:
        self.tokens = {TRAINING: 0, VALIDATION: 0}
        self._folder = folder
        self._code = _CODES[token_size]
        self._parts = (TRAINING, VALIDATION) if held_out else (TRAINING,)
        self._streams: dict[str, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for part in self._parts:
            (self._folder / part).mkdir()
            self._streams[part] = self._stack.enter_context((self._folder / part / TOKENS_FILE).open("wb"))
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._stack:
            if kind is None:
                for stream in self._streams.values():
                    stream.flush()
                    os.fsync(stream.fileno())

    def write(self, ids: list[int], *, held_out: bool) -> None:
        tokens = array(self._code, ids)
        if sys.byteorder == "big":
            tokens.byteswap()
        part = VALIDATION if held_out else TRAINING
        tokens.tofile(self._streams[part])
        self.tokens[part] += len(tokens)


def _write_description(path: Path, made: TokenizedTexts, source: Path) -> None:
    described = {
        "format": DESCRIPTION_FORMAT,
        "token_size": made.token_size,
        "documents": made.documents,
        "training_tokens": made.training_tokens,
        "validation_tokens": made.validation_tokens,
        "vocabulary": made.vocabulary,
        "end": None if made.end is None else {"token": made.end[0], "id": made.end[1]},
        "tokenizer_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
    }
    with path.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(described, indent=2) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _publish(partial: Path, folder: Path) -> None:
    """Move the finished folder to its place. An older folder is renamed first and deleted last."""
    partial.chmod(0o755)
    if not folder.exists() or not any(folder.iterdir()):
        partial.replace(folder)  # also replaces an empty folder
        return

    aside = partial.with_suffix(".old")
    folder.replace(aside)
    try:
        partial.replace(folder)
    except BaseException:
        aside.replace(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)
