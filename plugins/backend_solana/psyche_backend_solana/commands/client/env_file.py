"""Reads the file of `psyche run-manager --env-file FILE`: names and values, as in the guides for members.

The file has NAME=VALUE lines without shell syntax. It takes precedence over the environment. Known names may lack the prefix
`PSYCHE_`; a name with the prefix takes precedence. The error for a malformed line contains the line's number and not its text,
which may be a secret.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from psyche_core.errors import ConfigError

PREFIX = "PSYCHE_"
NAMES = (
    "WALLET_PRIVATE_KEY_PATH",
    "RAW_WALLET_PRIVATE_KEY",
    "RPC",
    "WS_RPC",
    "RPC_2",
    "WS_RPC_2",
    "RPC_3",
    "WS_RPC_3",
    "RUN_ID",
    "AUTHORIZER",
    "OWNER",
    "DATA_PARALLELISM",
    "TENSOR_PARALLELISM",
    "MICRO_BATCH_SIZE",
    "ALLOW_IMAGE",
    "ALLOW_INSTALL",
    "CONTAINER_PROGRAM",
    "CONTAINER_OPTIONS",
)
"""Names that may appear in the file without our prefix."""
ALIASES = {"WALLET_PATH": "WALLET_PRIVATE_KEY_PATH"}
"""The spelling of one of the guides."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def read_env_file(path: Path) -> dict[str, str]:
    """The values in the file, by the names that our programs read. Raises ConfigError."""
    try:
        text = path.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {getattr(error, 'strerror', error)}"
        raise ConfigError(message) from error

    return with_prefix(read_env(text, source=str(path)))


def read_env(text: str, *, source: str) -> dict[str, str]:
    """Parse NAME=VALUE lines. `#` begins a comment line; quotes around a value are removed. Raises ConfigError."""
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        written = line.strip().removeprefix("export ").strip()
        if not written or written.startswith("#"):
            continue
        name, equals, value = written.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not _NAME.fullmatch(name) or "\0" in value:
            message = f"{source}, line {number}: expected NAME=VALUE"
            raise ConfigError(message)

        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[name] = value
    return found


def with_prefix(given: Mapping[str, str]) -> dict[str, str]:
    """The same values, with our prefix added to known names. A name that already has the prefix takes precedence."""
    known = {ALIASES.get(name, name): value for name, value in given.items() if name in ALIASES} | {
        name: value for name, value in given.items() if name not in ALIASES
    }
    return {(PREFIX + name if name in NAMES else name): value for name, value in known.items()} | {
        name: value for name, value in given.items() if name.startswith(PREFIX)
    }


def words(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The words of a variable, separated by spaces; words with spaces are quoted as in a shell. Raises ConfigError."""
    try:
        return tuple(shlex.split(environment.get(PREFIX + name, "")))
    except ValueError as error:
        message = f"{name}: expected words with spaces between them, quoted as in a shell: {error}"
        raise ConfigError(message) from error


def yes(environment: Mapping[str, str], name: str) -> bool | None:
    """Whether a variable means yes; None if it is missing or empty. Raises ConfigError if it is neither yes nor no."""
    said = environment.get(PREFIX + name, "").strip().lower()
    if not said:
        return None
    if said in (*_YES, *_NO):
        return said in _YES

    message = f"{name}: got {said!r:.80}, expected 1 (yes) or 0 (no)"
    raise ConfigError(message)
