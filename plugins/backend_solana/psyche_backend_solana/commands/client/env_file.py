"""Reads the file of `psyche run-manager --env-file FILE`: names and values, as in the guides for members.

The file has NAME=VALUE lines without shell syntax. It takes precedence over the environment. Names of our options may lack the
prefix `PSYCHE_`; a name with the prefix takes precedence. A name that looks like an option and is none is reported. The error for
a malformed line contains the line's number and not its text, which may be a secret.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from psyche_core.config.sentences import nearest
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
    "ALLOW_IMAGE",
    "ALLOW_INSTALL",
    "CONTAINER_PROGRAM",
    "CONTAINER_OPTIONS",
)
"""Names that may appear in the file without our prefix."""
CLIENT_NAMES = (
    "ATTENTION",
    "BASE",
    "BIND_P2P_INTERFACE",
    "BIND_P2P_PORT",
    "CACHE_DIR",
    "CHECKPOINT_DIR",
    "COMPUTE_DTYPE",
    "DATA_PARALLELISM",
    "DELETE_OLD_STEPS",
    "DEVICE",
    "EVAL_FEWSHOT",
    "EVAL_INCLUDE_PATH",
    "EVAL_SEED",
    "EVAL_TASKS",
    "EVAL_TASK_MAX_DOCS",
    "EVENTS_DIR",
    "EVENTS_FILE",
    "GCS_BUCKET",
    "GCS_PREFIX",
    "GRADIENT_CHECKPOINTING",
    "HUB_REPO",
    "IDENTITY_SECRET_KEY_PATH",
    "JOURNAL_SIZE",
    "KEEP_EVENT_FILES",
    "KEEP_STEPS",
    "LOG",
    "LOGS",
    "MAX_CONCURRENT_DOWNLOADS",
    "MAX_CONCURRENT_PARAMETER_REQUESTS",
    "METRICS_LOCAL_PORT",
    "MICRO_BATCH_SIZE",
    "MODEL_STORE",
    "RAW_IDENTITY_SECRET_KEY",
    "RECONNECT_SECONDS",
    "OPTIM_STATS_STEPS",
    "OTLP_AUTH_HEADER",
    "OTLP_LOGS_URL",
    "OTLP_METRICS_URL",
    "OTLP_REPORT_INTERVAL",
    "OTLP_TRACING_URL",
    "PROMPT_TASK",
    "PUBLISH_JOURNAL",
    "SHARDING",
    "SIDECAR_BIND",
    "SIDECAR_LOCAL_RANKS",
    "SIDECAR_SECRET_FILE",
    "TENSOR_PARALLELISM",
    "TORCH_THREADS",
    "TRACKER",
    "TRANSPORT",
    "VALIDATION_DATA",
    "VALIDATION_SEQUENCES",
    "VALIDATION_TOKEN_SIZE",
    "WRITE_DISTRO_DATA",
    "WRITE_GRADIENTS_DIR",
    "WRITE_LOG",
)
"""Options of `psyche client train` that may also appear without our prefix; a test compares them with the program's."""
TRACKER_NAMES = (
    *("WANDB_PROJECT", "WANDB_RUN", "WANDB_GROUP", "WANDB_ENTITY", "WANDB_MODE", "WANDB_DIR", "TENSORBOARD_DIR"),
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT", "MLFLOW_RUN_NAME"),
)
"""Options of trackers that may also appear without our prefix."""
ALIASES = {"WALLET_PATH": "WALLET_PRIVATE_KEY_PATH", "WALLET_FILE": "WALLET_PRIVATE_KEY_PATH", "SCRATCH_DIR": "CACHE_DIR"} | {
    f"OLTP_{name}": f"OTLP_{name}" for name in ("AUTH_HEADER", "LOGS_URL", "METRICS_URL", "REPORT_INTERVAL", "TRACING_URL")
}
"""Other spellings in guides and programs of the reference implementation."""
_NOT_READ = {
    "BACKEND": "a client that run-manager starts always uses the backend solana",
    "SERVER_ADDR": "a client that run-manager starts reads the run from the chain; use RPC",
}
"""Names that somebody may expect to work, and why nothing reads them."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def read_env_file(path: Path) -> dict[str, str]:
    """The values in the file, by the names that our programs read. Raises ConfigError."""
    try:
        text = path.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {getattr(error, 'strerror', error)}"
        raise ConfigError(message) from error

    given = read_env(text, source=str(path))
    for sentence in ignored(given):
        click.echo(f"warning: {path}: {sentence}", err=True)
    return with_prefix(given)


def ignored(given: Mapping[str, str]) -> list[str]:
    """A sentence for each name in the file that looks like an option and that nothing reads. Values are not shown."""
    found = []
    options = {*NAMES, *CLIENT_NAMES, *TRACKER_NAMES, *ALIASES}
    for name in given:
        bare = name.removeprefix(PREFIX)
        near = nearest(bare, options)
        if name in _NOT_READ:
            found.append(f"{name} is ignored: {_NOT_READ[name]}")
        elif name.startswith(PREFIX) and bare in ALIASES:
            found.append(f"{name} is ignored; its name here is {ALIASES[bare]}")
        elif bare not in options and near is not None and (name.startswith(PREFIX) or _misspelt(bare, near)):
            found.append(f"{name} is passed on to the client, but is no option of it; did you mean {near}?")
    return found


def _misspelt(name: str, option: str) -> bool:
    """Whether a name is an option's name without our prefix, apart from `-`, case or a plural, and not another program's."""
    return name.upper().rstrip("S") == option.rstrip("S")


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
    ours = (*NAMES, *CLIENT_NAMES, *TRACKER_NAMES)
    return {(PREFIX + name if name in ours else name): value for name, value in known.items()} | {
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
