"""Where the options' values come from, and the sentence about a value that breaks a rule.

Sources in order of priority: explicit arguments, then environment variables `PSYCHE_<NAME>`, then the default written in the
settings class. An environment variable never overrides an argument. A value that breaks a rule is an error with one sentence,
whatever its source.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from psyche_core.config.options.groups import place_of
from psyche_core.errors import ConfigError

ENVIRONMENT_PREFIX = "PSYCHE_"
RAW_IDENTITY = "RAW_IDENTITY_SECRET_KEY"
"""Environment variable with an identity's secret key, also read with the prefix."""

EMPTY_PATH = "the path is empty, as from a shell variable that is not set; write . for the current folder, or leave it out"


class ProgramSettings(BaseSettings):
    """What all programs' settings have in common: unknown names are errors, and values do not change."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, env_ignore_empty=True, validate_default=False
    )


def option_fields(cls: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a settings class by name, as people read them: by heading, and there its own before those it inherits."""
    shared = {name for base in cls.__bases__ if issubclass(base, BaseModel) for name in base.model_fields}
    return dict(sorted(cls.model_fields.items(), key=lambda each: (place_of(each[1]), each[0] in shared)))


_Settings = TypeVar("_Settings", bound=BaseModel)


def load_settings(cls: type[_Settings], given: dict[str, Any]) -> _Settings:
    """Return settings from explicit arguments and the environment.

    given: values by field name; None means not given, and so does an empty tuple. A class of pydantic-settings reads the
    environment as it says itself; of a plain pydantic model each field that is not given is read from PSYCHE_<FIELD>. Raises
    ConfigError that names each value that breaks a rule, the rule, and the source of the value.
    """
    explicit = {name: value for name, value in given.items() if value is not None and value != ()}
    _refuse_empty_paths(cls, explicit)
    try:
        return cls(**_from_environment(cls, explicit), **explicit)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(dict(problem), explicit) for problem in error.errors())) from None


def _from_environment(cls: type[BaseModel], explicit: Mapping[str, Any]) -> dict[str, str]:
    """What the environment says of fields that were not given; nothing of a class that reads it itself. Empty is not set."""
    if issubclass(cls, BaseSettings):
        return {}

    variables = {name: ENVIRONMENT_PREFIX + name.upper() for name in cls.model_fields if name not in explicit}
    return {name: os.environ[variable] for name, variable in variables.items() if os.environ.get(variable)}


def _refuse_empty_paths(cls: type[BaseModel], explicit: dict[str, Any]) -> None:
    """Raise ConfigError for an empty path: it would be read as the current folder, and an empty variable as none."""
    for name, field in cls.model_fields.items():
        if not _takes_path(field.annotation):
            continue

        variable = ENVIRONMENT_PREFIX + name.upper()
        read = name not in explicit
        if explicit.get(name) == "" or (read and os.environ.get(variable) == ""):
            message = f"{variable if read else '--' + name.replace('_', '-')}: {EMPTY_PATH}"
            raise ConfigError(message)


def _takes_path(annotation: Any) -> bool:
    return annotation is Path or any(_takes_path(part) for part in get_args(annotation))


def _sentence(problem: dict[str, Any], explicit: dict[str, Any]) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    option, variable = "--" + name.replace("_", "-"), ENVIRONMENT_PREFIX + name.upper()
    if problem["type"] == "missing":
        return f"{option} is needed (or the environment variable {variable})"

    source = variable if name not in explicit and variable in os.environ else option
    rule = str(problem["msg"]).removeprefix("Value error, ")
    if not name:  # of several options together; the input would be all of them, secrets included
        return rule
    if rule.startswith("got "):  # the rule says itself what was got, such as one of several addresses
        return f"{source}: {rule}"
    return f"{source}: got {problem['input']!r}; {rule[0].lower()}{rule[1:]}"
