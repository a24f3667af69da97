"""The file with the tokens that a relay accepts: one a line, # for comments. Read again when it changes."""

from __future__ import annotations

import stat
from pathlib import Path

from psyche_core.errors import ConfigError, UserError

_MAX_BYTES = 1 << 20
_MOST_CHARACTERS = 512


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens. Raises UserError for a file that cannot be read, ConfigError for one that holds something else."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        message = f"cannot read the tokens {path}: {error.strerror}"
        raise UserError(message) from error

    if len(data) > _MAX_BYTES:
        message = f"the token file {path} is over {_MAX_BYTES} bytes; it should hold one token a line"
        raise ConfigError(message)

    tokens = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        token = line.partition("#")[0].strip()
        if not token:
            continue
        if len(token) > _MOST_CHARACTERS or not all("!" <= character <= "~" for character in token):
            message = (
                f"line {number} of the token file {path} must be one token of at most {_MOST_CHARACTERS} printable ASCII "
                "characters without spaces; `openssl rand -hex 32` makes one"
            )
            raise ConfigError(message)
        tokens.append(token)
    if not tokens:
        message = f"the token file {path} holds no token; `openssl rand -hex 32 > {path}` makes one"
        raise ConfigError(message)
    return tuple(tokens)


def fingerprint(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file does; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if stat.S_ISREG(found.st_mode) else None
