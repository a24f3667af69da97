"""The file in a project that says what it was made from: `.psyche-project.json`.

With the digest of each file as it was generated, an update tells a file that its author changed from one that he left alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psyche_core.__about__ import __version__
from psyche_core.errors import UserError
from psyche_core.plugins.projects.generating import Answers
from psyche_core.regular_files import regular

RECORD = ".psyche-project.json"
FORMAT = 1
MAX_BYTES = 1 << 20

_REMEDY = f"take {RECORD} from the project's history, or remove it and give --kind and --name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a project was made from.

    Attributes:
        version: of psyche-core.
        answers: with which it was made.
        digests: SHA-256 in hexadecimal of each file as it was generated, by path.
    """

    version: str
    answers: Answers
    digests: Mapping[str, str]

    @classmethod
    def of(cls, answers: Answers, contents: Mapping[str, bytes]) -> Record:
        """The record of a project with these files from the present templates."""
        digests = {path: digest(content) for path, content in sorted(contents.items())}
        return cls(version=__version__, answers=answers, digests=digests)

    @classmethod
    def read(cls, folder: Path) -> Record | None:
        """The record of a project; None if it has none. Raises UserError for one that is damaged, or of a newer psyche."""
        path = folder / RECORD
        try:
            with open(path, "rb", opener=regular) as file:
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            raise UserError(message) from error

        try:
            plain = _plain(data)
            version, form = str(plain["psyche"]), plain["format"]
            newer = form > FORMAT or _release(version) > _release(__version__)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _damaged(path) from error
        if newer:
            message = f"{folder} was made or updated by psyche {version}, this is psyche {__version__}; upgrade psyche-core first"
            raise UserError(message)

        try:
            answers = Answers(kind=_text(plain["kind"]), name=_text(plain["name"]), year=int(plain["year"]))
            digests = {_text(path): _text(each) for path, each in plain["files"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(path) from error
        return cls(version=version, answers=answers, digests=digests)

    def document(self) -> bytes:
        """The file's bytes."""
        plain = {
            "format": FORMAT,
            "psyche": self.version,
            "kind": self.answers.kind,
            "name": self.answers.name,
            "year": self.answers.year,
            "files": dict(sorted(self.digests.items())),
        }
        return (json.dumps(plain, indent=2) + "\n").encode()


def digest(content: bytes) -> str:
    """As records have it."""
    return hashlib.sha256(content).hexdigest()


def _plain(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        message = f"over {MAX_BYTES} bytes"
        raise ValueError(message)
    plain = json.loads(data)
    if not isinstance(plain, dict):
        message = "no object"
        raise TypeError(message)
    return plain


def _text(value: object) -> str:
    if not isinstance(value, str):
        message = f"expected text, got a {type(value).__name__}"
        raise TypeError(message)
    return value


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without zeros at the end and what follows: 0.2 is 0.2.0rc1. Raises ValueError."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    if found is None:
        message = f"no version: {version}"
        raise ValueError(message)
    numbers = [int(part) for part in found[0].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _damaged(path: Path) -> UserError:
    message = (
        f"{path} is not what psyche plugins new writes: expected an object of JSON with format, psyche, kind, name, year, files"
    )
    return UserError(f"{message}; {_REMEDY}")
