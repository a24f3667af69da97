"""Loads tokenizers from `tokenizer.json` files, and finds their token for the end of a text.

Only the `tokenizers` library is needed, no transformers and no network. The token that ends a text is read from
`tokenizer_config.json` beside it, otherwise found by the names that tokenizers commonly give it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from psyche_core.errors import DataError, InputError

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
MAX_CONFIG_BYTES = 64 << 20

COMMON_ENDS = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<|eot|>",
    "<eos>",
    "<|im_end|>",
    "[EOS]",
    "[SEP]",
    "<|end▁of▁sentence|>",
)


def tokenizer_path(place: Path) -> Path:
    """The tokenizer.json at `place`: the file itself, or the one in that folder. Raises InputError."""
    path = place / TOKENIZER_FILE if place.is_dir() else place
    if not path.is_file():
        message = f"there is no tokenizer at {path}; expected a {TOKENIZER_FILE} or a folder with one"
        raise InputError(message)

    return path


def load_tokenizer(path: Path) -> Any:
    """A `tokenizers.Tokenizer` from a tokenizer.json. Raises DataError."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        message = "this needs the tokenizers package; get it with: pip install tokenizers"
        raise DataError(message) from error

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        message = f"{path} is not a {TOKENIZER_FILE} that the tokenizers library can read: {error}"
        raise DataError(message) from error

    tokenizer.no_truncation()  # many published files contain settings for short inputs
    tokenizer.no_padding()
    return tokenizer


def vocabulary_size(tokenizer: Any) -> int:
    """All ids are below this number, which includes added tokens and gaps between ids."""
    return int(max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)) + 1


def end_token(tokenizer: Any, path: Path, wanted: str = "auto") -> tuple[str, int] | None:
    """Name and id of the token that ends a text; None if there is none.

    path: the tokenizer.json. wanted: "auto" to look for it, "none", a token or its id (digits are an id). Raises InputError if
    that is not a token.
    """
    if wanted == "none":
        return None

    if wanted != "auto":
        number = int(wanted) if wanted.isdecimal() else tokenizer.token_to_id(wanted)
        if number is None or (name := tokenizer.id_to_token(number)) is None:
            message = f"{path} has no token {wanted!r}; name one of its tokens or ids, auto or none"
            raise InputError(message)
        return name, number

    for name in (_configured_end(path), *COMMON_ENDS):
        number = tokenizer.token_to_id(name) if name is not None else None
        if number is not None:
            return str(name), int(number)

    return None


def _configured_end(path: Path) -> str | None:
    try:
        with path.with_name(CONFIG_FILE).open("rb") as stream:
            found = json.loads(stream.read(MAX_CONFIG_BYTES))["eos_token"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # it is only a hint

    name = found.get("content") if isinstance(found, dict) else found
    return name if isinstance(name, str) else None
