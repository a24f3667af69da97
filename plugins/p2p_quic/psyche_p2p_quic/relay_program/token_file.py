"""The file with the tokens that a relay accepts: one a line, # for comments. Read again when it changes."""

from __future__ import annotations

import stat
from pathlib import Path

from psyche_core.errors import ConfigError
from psyche_core.regular_files import read_entries

_MOST_CHARACTERS = 512


def first_tokens(path: Path) -> tuple[str, ...]:
    """Return the tokens with which a relay starts, at least one. Raises as `read_tokens`, and ConfigError for an empty file."""
    tokens = read_tokens(path)
    if not tokens:
        message = f"the token file {path} holds no token; `openssl rand -hex 32 > {path}` makes one"
        raise ConfigError(message)
    return tokens


def read_tokens(path: Path) -> tuple[str, ...]:
    """Return the tokens; none for a file that holds none, so that the last one can be revoked.

    Raises UserError for a file that cannot be read, ConfigError for one with other content.
    """
    tokens = []
    for number, token in read_entries(path, "the token file"):
        if len(token) > _MOST_CHARACTERS or not all("!" <= character <= "~" for character in token):
            message = (
                f"line {number} of the token file {path} must be one token of at most {_MOST_CHARACTERS} printable ASCII "
                "characters without spaces; `openssl rand -hex 32` makes one"
            )
            raise ConfigError(message)
        tokens.append(token)
    return tuple(tokens)


def fingerprint(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes when the file does; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if stat.S_ISREG(found.st_mode) else None
