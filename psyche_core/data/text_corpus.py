"""Token files made from the texts of an installed package, once, at first use.

A package is only read, never imported. Every `.md` and `.txt` file in it is one document. The last `held_out` share of each
document is held out, so that training and validation text have the same authors and never overlap. Special tokens are those that
the tokenizer's own post-processor adds. The folder then holds

    manifest.json             the sources and settings, written last
    train/tokens.bin          little-endian tokens of all documents, one after the other
    validation/tokens.bin     the held-out parts

If the tokenizer, package version, token size or share changes, the files are made again. A folder with token files but without a
manifest is the user's own and is not changed. One process writes at a time; the others wait for it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from psyche_core.config.run_config import DataFile, TextSource
from psyche_core.data.token_files import EXTENSIONS, TRAINING_FOLDER
from psyche_core.errors import DataError, InputError

VALIDATION_FOLDER = "validation"
MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1

_SUFFIXES = (".md", ".txt")
_TOKEN_CODES = {2: "H", 4: "I"}
_LOCK_POLL_SECONDS = 0.05

_HEADING = re.compile(r"^#+[ \t]*", re.MULTILINE)
_ESCAPE = re.compile(r"\\([^\w\s])")
_TRAILING_BLANKS = re.compile(r"[ \t]+$", re.MULTILINE)
_MANY_LINES = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True)
class TextProgress:
    """Progress of the preparation. documents: number done. total: number of all. tokens: written so far, in both parts."""

    documents: int
    total: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PreparedText:
    """Token files that are ready. Counts are in tokens. written: whether this call made them. texts: number of documents."""

    training: Path
    validation: Path
    training_tokens: int
    validation_tokens: int
    written: bool
    texts: int = 0


def prepare_text(
    data_file: DataFile,
    *,
    folder: Path | None = None,
    progress: Callable[[TextProgress], None] | None = None,
    timeout: float = 600.0,
) -> PreparedText | None:
    """Make the token files for `[text]` of a `data.toml`, unless they exist. Blocking: call it in a worker thread.

    data_file: the parsed data.toml. folder: where its relative paths start (default: the working directory, which is right if
    its paths are resolved already). progress: called in the same thread before the first document and after each. timeout:
    seconds to wait for another process that is writing. Returns None if there is nothing to make: there is no `[text]`, or the
    folder holds the user's own token files. Raises DataError, TimeoutError.
    """
    data_file = data_file.resolved(folder or Path())
    if data_file.text is None or _users_own(data_file.dir):
        return None

    source = _Source.of(data_file, data_file.text)
    try:
        data_file.dir.mkdir(parents=True, exist_ok=True)
        with _locked(data_file.dir / ".lock", timeout=timeout):
            ready = _already_there(data_file.dir, source)
            return ready if ready is not None else _write(data_file.dir, source, data_file.text, progress)
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise

        message = f"cannot write token files to {data_file.dir}: {error.strerror}; choose another dir in data.toml"
        raise InputError(message) from error


def check_text(data_file: DataFile) -> bool:
    """Whether the token files of a data.toml with resolved paths exist; False if `prepare_text` has to make them.

    Reads the tokenizer and finds the package, and writes nothing. Raises DataError for a problem that would make `prepare_text`
    fail.
    """
    if data_file.text is None or _users_own(data_file.dir):
        return True

    source = _Source.of(data_file, data_file.text)
    if _already_there(data_file.dir, source) is not None:
        return True

    _tokenizer(data_file.text, source)
    _package_folders(data_file.text.package)
    return False


def plain_text(markdown: str) -> str:
    """Text without Markdown markup: headings, emphasis, escapes, entities, trailing blanks. At most one empty line in a row."""
    text = markdown.replace("\r\n", "\n")
    text = _HEADING.sub("", text)
    text = _ESCAPE.sub(r"\1", text)
    text = unescape(text.replace("*", "").replace("_", ""))
    text = _TRAILING_BLANKS.sub("", text)
    return _MANY_LINES.sub("\n\n", text).strip() + "\n"


def split_document(text: str, held_out: float) -> tuple[str, str]:
    """(training part, held-out part): the last `held_out` share of the characters, cut after a line's end."""
    cut = text.rfind("\n", 0, len(text) - round(len(text) * held_out)) + 1 if held_out else len(text)
    return text[:cut], text[cut:]


def package_texts(package: str) -> dict[str, str]:
    """The plain texts of an installed package by path within it, in ascending order. Raises DataError when it is not installed.

    The package is found without importing it, so that none of its code runs.
    """
    texts = {}
    for root in _package_folders(package):
        for path in root.rglob("*"):
            if path.suffix in _SUFFIXES and path.is_file():
                texts[path.relative_to(root).as_posix()] = plain_text(path.read_text(encoding="utf-8"))

    if not texts:
        message = f"the package {package!r} has no text files ({', '.join(_SUFFIXES)}); name a package with texts"
        raise InputError(message)

    return dict(sorted(texts.items()))


def _package_folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or spec.submodule_search_locations is None:
        message = f"the text package {package!r} is not installed; run `pip install {package}`"
        raise InputError(message)

    return [Path(folder) for folder in spec.submodule_search_locations]


@dataclass(frozen=True, slots=True)
class _Source:
    """Everything that determines the contents of the token files; part of the manifest."""

    package: str
    package_version: str
    tokenizer_sha256: str
    held_out: float
    token_size: int

    @classmethod
    def of(cls, data_file: DataFile, text: TextSource) -> _Source:
        try:
            digest = hashlib.sha256(text.tokenizer.read_bytes()).hexdigest()
        except OSError as error:
            message = f"cannot read the tokenizer {text.tokenizer}: {error.strerror}; expected a tokenizer.json"
            raise InputError(message) from error

        return cls(text.package, _package_version(text.package), digest, text.held_out, data_file.token_bytes)

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def _package_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"  # importable from a source tree, or missing: package_texts distinguishes them


def _users_own(folder: Path) -> bool:
    """Whether the folder contains token files that we did not make.

    The manifest is checked last, because another process that is writing creates it before any token file.
    """
    places = (folder, folder / TRAINING_FOLDER)
    has_tokens = any(path.suffix in EXTENSIONS for place in places if place.is_dir() for path in place.iterdir())
    return has_tokens and not (folder / MANIFEST).exists()


def _already_there(folder: Path, source: _Source) -> PreparedText | None:
    """The existing token files, or None.

    Their manifest must be complete and have the same source, and the files must have the right sizes.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        same = manifest["format"] == MANIFEST_FORMAT and manifest["complete"] and manifest["source"] == source.as_json()
        ready = _prepared(folder, manifest["training_tokens"], manifest["validation_tokens"], written=False)
        sizes = (ready.training_tokens * source.token_size, ready.validation_tokens * source.token_size)
        found = tuple(_token_file(place).stat().st_size for place in (ready.training, ready.validation))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # missing, damaged or of another version: it is made again

    return ready if same and found == sizes else None


def _tokenizer(text: TextSource, source: _Source) -> Any:
    """A tokenizer of the tokenizers library. Raises DataError, also if its ids do not fit into the token size."""
    try:
        from tokenizers import Tokenizer  # slow to import, and needed only once per machine
    except ModuleNotFoundError as error:
        message = "making token files from text needs the tokenizers package; get it with: pip install tokenizers"
        raise DataError(message) from error

    try:
        tokenizer = Tokenizer.from_file(str(text.tokenizer))
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        message = f"{text.tokenizer} is not a tokenizer.json that the tokenizers library can read: {error}"
        raise InputError(message) from error

    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    if vocabulary > 256**source.token_size:
        message = (
            f"{text.tokenizer} has {vocabulary} entries, too many for {source.token_size} bytes a token; "
            'set token_size = "FourBytes" in data.toml'
        )
        raise DataError(message)

    return tokenizer


def _write(folder: Path, source: _Source, text: TextSource, progress: Callable[[TextProgress], None] | None) -> PreparedText:
    tokenizer = _tokenizer(text, source)
    texts = package_texts(text.package)
    training, validation = (array(_TOKEN_CODES[source.token_size]) for _ in range(2))
    if progress is not None:
        progress(TextProgress(0, len(texts), 0))
    for number, document in enumerate(texts.values(), start=1):
        for part, tokens in zip(split_document(document, text.held_out), (training, validation), strict=True):
            if part:
                tokens.extend(tokenizer.encode(part).ids)
        if progress is not None:
            progress(TextProgress(number, len(texts), len(training) + len(validation)))

    ready = replace(_prepared(folder, len(training), len(validation), written=True), texts=len(texts))
    manifest = {
        "format": MANIFEST_FORMAT,
        "complete": True,
        "source": source.as_json(),
        "documents": len(texts),
        "training_tokens": ready.training_tokens,
        "validation_tokens": ready.validation_tokens,
    }
    _write_json(folder / MANIFEST, manifest | {"complete": False})  # after a crash from here on, the files are made again
    for place, tokens in ((ready.training, training), (ready.validation, validation)):
        if sys.byteorder == "big":
            tokens.byteswap()
        place.mkdir(exist_ok=True)
        _write_atomically(_token_file(place), tokens.tobytes())
    _write_json(folder / MANIFEST, manifest)
    return ready


def _prepared(folder: Path, training_tokens: int, validation_tokens: int, *, written: bool) -> PreparedText:
    return PreparedText(folder / TRAINING_FOLDER, folder / VALIDATION_FOLDER, training_tokens, validation_tokens, written)


def _token_file(place: Path) -> Path:
    return place / "tokens.bin"


def _write_json(path: Path, value: dict[str, Any]) -> None:
    _write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically: it has all of `content` or stays unchanged.

    The caller holds the lock, so nobody else uses the temporary name.
    """
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


@contextmanager
def _locked(path: Path, *, timeout: float) -> Iterator[None]:
    """Hold an operating-system lock on `path`; the system releases it when the process ends. Raises TimeoutError."""
    try:
        with FileLock(path, timeout=timeout, poll_interval=_LOCK_POLL_SECONDS):
            yield
    except Timeout:
        message = f"another process has been preparing {path.parent} for {timeout:g} s; wait until it ends, or stop it"
        raise TimeoutError(message) from None
