"""A plugin's own table of a run file: validated by the plugin's model, and described key by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import BaseModel

from psyche_core.config.run_config import RunFile
from psyche_core.config.sentences import validated
from psyche_core.errors import ConfigError, PluginError, PluginMissing
from psyche_core.hookspecs import OptimizerRegistration, Registration
from psyche_core.storage.model_stores.url import OWN_SCHEMES, scheme_of

_BOUNDS = (
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "pattern",
)


class LoadsPlugins(Protocol):
    """A registry, or a test's."""

    def load(self, kind: str, name: str, /) -> Registration:
        """The registration of a plugin. Raises PluginError."""


def validate_settings(registration: Registration, settings: Mapping[str, Any] | None, *, where: str) -> BaseModel | None:
    """A plugin's own table, validated by its own model; None if the plugin takes no settings.

    where: dotted key of the table, for messages. Raises ConfigError with one sentence per problem.
    """
    model: type[BaseModel] | None = getattr(registration, "settings", None)
    given = dict(settings or {})
    if model is None:
        if given:
            message = f"{where}: {registration.name} takes no settings, got {', '.join(given)}"
            raise ConfigError(message)

        return None

    return validated(model, given, where=where)


def _unverifiable(registration: OptimizerRegistration, settings: object, *, percent: int) -> list[str]:
    """The problem of a run whose shares are to be checked though they cannot be, if there is one."""
    why = registration.why_unverifiable(settings) if percent > 0 else None
    if why is None:
        return []

    problem = (
        f"config.verification_percent = {percent}: what {registration.name} trains with these settings cannot be checked: "
        f"{why}; set it to 0 or change the optimizer's settings"
    )
    return [problem]


def check_run_file_plugins(run_file: RunFile, registry: LoadsPlugins, *, elsewhere: bool = False) -> tuple[str, ...]:
    """Load the plugins that a run names and validate their settings. Raises ConfigError with every problem, one per line.

    elsewhere: only others use them, so one that is not installed here is no problem. Returns a sentence about each such plugin.
    """
    llm = run_file.model.LLM
    problems: list[str] = []
    unchecked: list[str] = []
    named = [
        ("model", "architecture", llm.architecture, None),
        ("data", "data_location", llm.data_location.name, llm.data_location.settings),
        ("optimizer", "optimizer", llm.optimizer.name, llm.optimizer.settings),
    ]
    bucket = str((llm.checkpoint.settings or {}).get("bucket", ""))
    if scheme_of(bucket) not in ("", *OWN_SCHEMES):
        named.append(("store", f"checkpoint.{llm.checkpoint.name}.bucket", scheme_of(bucket), None))
    for kind, key, choice_name, settings in named:
        where = f"model.LLM.{key}"
        try:
            registration = registry.load(kind, choice_name)
            if kind in ("data", "optimizer"):
                valid = validate_settings(registration, settings, where=f"{where}.{choice_name}")
                if isinstance(registration, OptimizerRegistration):
                    problems += _unverifiable(registration, valid, percent=run_file.config.verification_percent)
        except PluginMissing as error:
            told = f"{where} = {choice_name}: {error}"
            if elsewhere:
                unchecked.append(f"{told}; so it is not checked here, but by every member, each of which needs it")
            else:
                problems.append(told)
        except PluginError as error:
            problems.append(f"{where} = {choice_name}: {error}")
        except ConfigError as error:
            problems.append(str(error))

    if problems:
        raise ConfigError("\n".join(problems))
    return tuple(unchecked)


def described_settings(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Each key of a settings model: type, whether it is required, default, bounds, choices and description, as plain values.

    Keys: `type` (JSON's names, `number or null`), `required`, `default` (absent for a required key), `choices` (if the values are
    enumerated), `bounds` (JSON Schema's words: `minimum`, `exclusiveMaximum`, …) and `description`.
    """
    schema = model.model_json_schema(mode="validation", by_alias=False)
    definitions = schema.get("$defs", {})
    required = schema.get("required", ())
    found: dict[str, dict[str, Any]] = {}
    for name, entry in schema.get("properties", {}).items():
        variants = [_resolved(each, definitions) for each in entry.get("anyOf", entry.get("oneOf", (entry,)))]
        described: dict[str, Any] = {"type": " or ".join(_type(each) for each in variants), "required": name in required}
        if name not in required:
            described["default"] = entry.get("default")
        choices = [value for each in variants for value in each.get("enum", [each["const"]] if "const" in each else ())]
        if choices:
            described["choices"] = choices
        bounds = {word: each[word] for each in variants for word in _BOUNDS if word in each}
        if bounds:
            described["bounds"] = bounds
        described["description"] = entry.get("description", "")
        found[name] = described

    return found


def _resolved(entry: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry, or the definition that it refers to."""
    target = entry.get("$ref", "")
    return {**definitions.get(target.rpartition("/")[2], {}), **entry} if target else entry


def _type(entry: Mapping[str, Any]) -> str:
    kind = entry.get("type")
    if kind is None and "const" in entry:
        kind = {str: "string", bool: "boolean", int: "integer", float: "number"}.get(type(entry["const"]))
    if kind == "array" and isinstance(entry.get("items"), Mapping):
        return f"array of {_type(entry['items'])}"
    return str(kind or "any")
