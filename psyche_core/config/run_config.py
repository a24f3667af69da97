"""The run configuration: reads and checks `state.toml` and `data.toml` and turns them into frozen values.

Import from this module; the tables are in `schema`, the rules between keys in `rules`. All problems of a file are reported
together, one sentence per line; nothing is corrected silently. This module does not use environment variables or torch, and only
the functions `load_*` do I/O.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from psyche_core.config.data_file import DataFile, TextSource
from psyche_core.config.rules import (
    check_cold_start,
    check_config,
    check_model,
    cold_start_problems,
    config_problems,
    model_problems,
    progress_problems,
)
from psyche_core.config.schema import (
    CHECKPOINTS,
    LR_SCHEDULES,
    Choice,
    ConstantSchedule,
    CoordinatorConfig,
    DecaySchedule,
    GcsRepo,
    HubRepo,
    LLMConfig,
    ModelConfig,
    NetworkConfig,
    ProgressConfig,
    RunFile,
    VerificationConfig,
    WarmupStableDecaySchedule,
)
from psyche_core.config.sentences import problems_of, sentences
from psyche_core.errors import ConfigError
from psyche_core.regular_files import regular
from psyche_core.text_safety import printable

__all__ = [
    "CHECKPOINTS",
    "LR_SCHEDULES",
    "Choice",
    "ConstantSchedule",
    "CoordinatorConfig",
    "DataFile",
    "DecaySchedule",
    "GcsRepo",
    "HubRepo",
    "LLMConfig",
    "ModelConfig",
    "NetworkConfig",
    "ProgressConfig",
    "RunFile",
    "TextSource",
    "VerificationConfig",
    "WarmupStableDecaySchedule",
    "check_cold_start",
    "check_config",
    "check_data_file",
    "check_model",
    "checked_run",
    "from_plain",
    "load_data_file",
    "load_run_file",
    "parse_data_file",
    "parse_run_file",
    "to_plain",
]

MAX_FILE_BYTES = 1 << 20

_SAVED_BY_SERVER = ("epoch_state", "run_state_start_unix_timestamp", "pending_pause")
"""Top-level keys that the reference server writes into its saved states. They describe the time of saving and are ignored."""

_OUT_OF_RANGE = re.compile(r" = (?P<value>-?\d+): must be at (least|most) (?P<bound>\d+)")

_Table = TypeVar("_Table", bound=BaseModel)


def parse_run_file(text: str, *, source: str, run_id: str | None = None) -> RunFile:
    """Read and check a `state.toml`. Raises ConfigError with every problem, one per line.

    source: its name, for messages. run_id: the run's name if the text has none, as in an owner's `config.toml`. If it is None,
    the text must contain the name.
    """
    plain = {key: value for key, value in _toml(text, source).items() if key not in _SAVED_BY_SERVER}
    if run_id is not None:
        plain.setdefault("run_id", run_id)
    return checked_run(plain, source=source)


def checked_run(plain: Mapping[str, Any], *, source: str) -> RunFile:
    """Return a run configuration made from its tables as plain values, checked by the rules of a `state.toml`.

    source: its name, for messages. Raises ConfigError with every problem, one per line.
    """
    problems: list[str] = []
    try:
        run_file = RunFile.model_validate(plain)
    except ValidationError as error:
        problems += map(printable, _nearest_rules(problems_of(error, RunFile), plain))
    problems += _broken_rules(plain)
    if problems:
        raise ConfigError("\n".join(f"{source}: {problem}" for problem in problems))

    return run_file


def load_run_file(path: Path, *, run_id: str | None = None) -> RunFile:
    """Read a file and call `parse_run_file` on it. Raises ConfigError, also if the file cannot be read."""
    return parse_run_file(_text(path, "run configuration"), source=str(path), run_id=run_id)


def parse_data_file(text: str, *, source: str) -> DataFile:
    """Read a `data.toml`. Paths stay as written. Raises ConfigError with every problem, one per line."""
    try:
        return DataFile.model_validate(_toml(text, source))
    except ValidationError as error:
        raise ConfigError("\n".join(f"{source}: {problem}" for problem in sentences(error, DataFile))) from error


def load_data_file(path: Path) -> DataFile:
    """Read a file and call `parse_data_file` on it. Relative paths start at the file's folder. Raises ConfigError."""
    return parse_data_file(_text(path, "data configuration"), source=str(path)).resolved(path.parent)


def check_data_file(data: DataFile, model: ModelConfig) -> None:
    """Raise ConfigError if a `data.toml` does not fit the run."""
    if data.seq_len != model.LLM.max_seq_len:
        message = f"data.toml: seq_len = {data.seq_len}: must equal model.LLM.max_seq_len ({model.LLM.max_seq_len})"
        raise ConfigError(message)


def to_plain(table: CoordinatorConfig | ModelConfig) -> dict[str, Any]:
    """Return the table as strings, numbers, lists and dicts, which can be sent. `from_plain` returns an equal table."""
    return table.model_dump()


def from_plain(table: type[_Table], plain: Any) -> _Table:
    """Read a table written by `to_plain`. Raises only ConfigError, whatever `plain` is."""
    try:
        return table.model_validate(plain)
    except ValidationError as error:
        raise ConfigError("\n".join(sentences(error, table))) from error


def _broken_rules(plain: Mapping[str, Any]) -> Iterator[str]:
    """Yield the broken rules of all tables that can be read. Each table is read alone, so a bad key hides no other problems."""
    config = _read_alone(CoordinatorConfig, plain.get("config"))
    model = _read_alone(ModelConfig, plain.get("model"))
    progress = _read_alone(ProgressConfig, plain.get("progress", {}))
    if config is not None:
        yield from config_problems(config)
    if model is not None:
        yield from model_problems(model)
    if progress is not None:
        yield from progress_problems(progress, config.total_steps if config is not None else None)
    if config is not None and model is not None:
        yield from cold_start_problems(config, model)


def _nearest_rules(problems: list[tuple[str, str]], plain: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentences of problems. A number outside its type's range is told the rule of its key, if that has one.

    Otherwise `total_steps = -3` would have to be at least 0, and 0 then at least 1.
    """
    ranged = {path: found for path, text in problems if (found := _OUT_OF_RANGE.fullmatch(text)) is not None}
    nearest = plain
    for path, found in ranged.items():
        nearest = _replaced(nearest, path.split("."), int(found["bound"]))
    rules = list(_broken_rules(nearest)) if ranged else []
    for path, text in problems:
        if path in ranged:
            at_bound = f"{path} = {ranged[path]['bound']}: "
            named = [rule.removeprefix(at_bound) for rule in rules if rule.startswith(at_bound)]
            yield f"{path} = {ranged[path]['value']}: {named[0]}" if named else path + text
        else:
            yield path + text


def _replaced(table: Any, keys: list[str], value: int) -> Any:
    """A copy of nested tables with another value at a path; unchanged if there is no such path."""
    key, *below = keys
    if not isinstance(table, Mapping) or key not in table:
        return table
    return {**table, key: _replaced(table[key], below, value) if below else value}


def _read_alone(table: type[_Table], plain: Any) -> _Table | None:
    try:
        return table.model_validate(plain)
    except ValidationError:
        return None  # already reported for the whole file


def _text(path: Path, what: str) -> str:
    try:
        with open(path, "rb", opener=regular) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        text = content.decode()
    except OSError as error:
        message = f"cannot read the {what} {path}: {error.strerror}"
        raise ConfigError(message) from error
    except UnicodeDecodeError as error:
        message = f"the {what} {path} is not UTF-8 text (byte {error.start}); expected a TOML file"
        raise ConfigError(message) from error

    if len(content) > MAX_FILE_BYTES:
        message = f"the {what} {path} is over {MAX_FILE_BYTES} bytes; expected a small TOML file"
        raise ConfigError(message)

    return text


def _toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError; a number with too many digits raises one too
        message = f"{source} is not valid TOML: {error}"
        raise ConfigError(message) from error
