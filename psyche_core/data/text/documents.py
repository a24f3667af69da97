r"""Documents of text files and folders, in pieces that fit in memory. Each piece is for training or held out.

In a folder, all `.txt`, `.md` and `.jsonl` files below it are read, in the order of their paths; a file that is given by name is
accepted with any ending. A text file is one document; its last `held_out` share is held out, cut after the end of a line. A line
of a `.jsonl` file is a document, and whole documents are held out, evenly spread. Long documents are split into pieces after the
end of a line, so that no file is read into memory as a whole. Text is UTF-8 without its byte-order mark and with `\n` at line
ends; invalid UTF-8 or JSON is an error that names its position, and is never skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from psyche_core.errors import DataError, InputError

TEXT_ENDINGS = (".md", ".txt")
LINES_ENDING = ".jsonl"
PIECE_BYTES = 256 << 10
LONGEST_LINE = 64 << 20

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of one document. held_out: not for training. last: the document, or its training or held-out part, ends here.

    size: bytes of files read for it, for progress. documents: number of documents that end with it, 0 or 1.
    """

    text: str
    held_out: bool
    last: bool
    size: int
    documents: int


def text_paths(sources: Iterable[Path]) -> list[Path]:
    """The files in `sources`, in order, each once. Raises InputError if a source cannot be read or has no texts."""
    found: dict[Path, None] = {}
    for source in sources:
        try:
            if source.is_dir():
                below = sorted(_texts_below(source))
                if not below:
                    message = f"{source} has no texts; expected files named *{', *'.join((*TEXT_ENDINGS, LINES_ENDING))}"
                    raise InputError(message)
            else:
                source.stat()
                below = [source]
        except OSError as error:
            message = f"cannot look for texts in {error.filename or source}: {error.strerror}"
            raise InputError(message) from error

        found |= dict.fromkeys(below)

    return list(found)


def _texts_below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for directory, _, names in os.walk(folder, onerror=refuse):
        for name in names:
            if Path(name).suffix.lower() in (*TEXT_ENDINGS, LINES_ENDING):
                yield Path(directory, name)


def pieces(paths: Iterable[Path], *, held_out: float = 0.0, text_key: str = "text") -> Iterator[Piece]:
    """The texts of the files, in order.

    held_out: share from 0 to below 1. text_key: the key of the text in lines of `.jsonl` files. Raises DataError.
    """
    lines_before = 0
    for path in paths:
        try:
            with path.open("rb") as stream:
                if path.suffix.lower() == LINES_ENDING:
                    for piece in _line_documents(stream, path, text_key, held_out, lines_before):
                        lines_before += 1
                        yield piece
                else:
                    yield from _text_document(stream, path, held_out)
        except OSError as error:
            message = f"cannot read the text {path}: {error.strerror}; make it readable or leave out the file"
            raise DataError(message) from error


def _line_documents(stream: BinaryIO, path: Path, text_key: str, held_out: float, before: int) -> Iterator[Piece]:
    """The documents in the lines of a file. before: documents of earlier files, so that held-out documents are spread evenly."""
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            message = f"line {number} of {path} is longer than {LONGEST_LINE} bytes; is it one JSON object per line?"
            raise DataError(message)
        content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        if not content.strip():
            continue

        try:
            record = json.loads(content)
        except (ValueError, RecursionError) as error:
            message = f"line {number} of {path} is not JSON ({error}); expected one object per line"
            raise DataError(message) from error

        text = record.get(text_key) if isinstance(record, dict) else None
        if not isinstance(text, str):
            has = ", ".join(list(record)[:8]) if isinstance(record, dict) else f"a {type(record).__name__}"
            message = f"line {number} of {path} has no text under {text_key!r} (it has {has}); name the key with --text-key"
            raise InputError(message)

        aside = int((before + 1) * held_out) > int(before * held_out)
        before += 1
        yield Piece(_without_surrogates(text, path, number), aside, True, len(line), 1)


def _without_surrogates(text: str, path: Path, number: int) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"line {number} of {path} has an unpaired surrogate ({error.object[error.start]!r}), which is not valid text"
        raise DataError(message) from error

    return text


def _text_document(stream: BinaryIO, path: Path, held_out: float) -> Iterator[Piece]:
    size = os.fstat(stream.fileno()).st_size
    training = size - round(size * held_out)
    at = 0
    waiting: tuple[bytes, bool] | None = None  # the previous piece: whether it is a part's last is known only now
    for content in _cut_after_lines(stream, training):
        aside = at >= training and held_out > 0
        if waiting is not None:
            yield _piece(path, at - len(waiting[0]), waiting, last=waiting[1] != aside, documents=0)
        waiting = (content, aside)
        at += len(content)

    if waiting is not None:
        yield _piece(path, at - len(waiting[0]), waiting, last=True, documents=1)


def _piece(path: Path, at: int, piece: tuple[bytes, bool], *, last: bool, documents: int) -> Piece:
    content, aside = piece
    try:
        text = (content.removeprefix(_BYTE_ORDER_MARK) if at == 0 else content).decode()
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 text: byte {at + error.start} cannot be read; convert it or leave it out"
        raise InputError(message) from error

    return Piece(text.replace("\r\n", "\n"), aside, last, len(content), documents)


def _cut_after_lines(stream: BinaryIO, training: int) -> Iterator[bytes]:
    """The stream in pieces that end after a line. One of them ends at the first line end from byte `training` on."""
    at = 0
    rest = b""
    while chunk := stream.read(PIECE_BYTES):
        rest += chunk
        splits_here = at < training <= at + len(rest)
        cut = (rest.find(b"\n", max(0, training - at - 1)) if splits_here else rest.rfind(b"\n")) + 1
        if not cut and len(rest) >= LONGEST_LINE:
            cut = _character_boundary(rest)
        if cut:
            yield rest[:cut]
            at += cut
            rest = rest[cut:]
    # The rest contains no line end, except perhaps the one where the held-out part begins.
    cut = rest.find(b"\n", max(0, training - at - 1)) + 1 if at < training <= at + len(rest) else 0
    yield from (part for part in (rest[:cut], rest[cut:]) if part)


def _character_boundary(content: bytes) -> int:
    """The end of the last whole UTF-8 character; the end of the content if there is none."""
    for back in range(1, 5):
        if content[-back] & 0xC0 != 0x80:
            return len(content) - back
    return len(content)
