"""The step "factory" of `psyche plugins check`: make an object of the plugin, from what a run would give its factory.

Nothing is sent to anybody: what is made is not entered, and is gone afterwards. A backend gets the address of a server of its
own, which is started on this machine and ended. A tracker begins to keep a run when it is made, so only its check is called.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from psyche_core.errors import ConfigError, ModelError, PsycheError, UserError
from psyche_core.hookspecs import BackendRegistration, ModelContext, Registration
from psyche_core.plugin_errors import label, leaf_exceptions, summary_of
from psyche_core.plugins import PluginRecord, validate_settings


@dataclass(frozen=True, slots=True)
class Made:
    """How it went: None for `made` if nothing could be made here, and a sentence."""

    made: bool | None
    sentence: str


def try_factory(
    record: PluginRecord, registration: Registration, settings: Mapping[str, Any], model_config: Mapping[str, Any] | None
) -> Made:
    """Make an object of a plugin. registration: guarded. settings: its own table. model_config: a model's config.json."""
    table = getattr(registration, "settings", None)
    try:
        try:
            validated = None if table is None else validate_settings(registration, settings, where=record.name)
        except ConfigError as error:  # if they were given, the step before this one has failed
            return Made(None, f"it needs settings; give them with --settings: {_one_line(error)}")
        with tempfile.TemporaryDirectory(prefix="psyche-check-", ignore_cleanup_errors=True) as folder:
            return _make(record, registration, validated, model_config, Path(folder))
    except UserError as error:
        if table is not None and not settings:
            return Made(None, f"it needs settings; give them with --settings: {_one_line(error)}")
        return Made(False, error.sentence)
    except PsycheError as error:
        return Made(False, error.sentence)
    except ModuleNotFoundError as error:
        told = f"the module {error.name} is not installed; a {record.kind} plugin needs pip install 'psyche-core[train]'"
        return Made(False, told)
    except Exception as error:  # foreign code may raise anything
        first = next(leaf_exceptions(error))
        return Made(False, f"{label(record.kind, record.name, record.origin)} failed with {summary_of(first)}")


def _one_line(error: PsycheError) -> str:
    """An error of several keys has a line for each."""
    return "; ".join(error.sentence.splitlines())


def _make(record: PluginRecord, registration: Any, settings: Any, model_config: Mapping[str, Any] | None, folder: Path) -> Made:
    match record.kind:
        case "command":
            return _load(registration)
        case "tracker":
            return _check(registration, settings)
        case "model":
            return _build(registration, model_config, folder)
        case "backend" if registration.needs_address and registration.create_server is None:
            return Made(None, "it needs the address of a coordinator, and has no create_server that could make one here")
    from psyche_core.testing.contexts import context_for

    context: Any = context_for(registration, settings=settings, folder=folder)
    if record.kind == "data":
        context = replace(context, base=Path.cwd())  # as for the training that follows
    try:
        made = registration.create(context)
    except ModelError as error:
        if record.kind != "sharding":
            raise
        return Made(None, f"it makes no engine for a single rank, and training has two; it says: {error.sentence}")
    name = f"create gives {_a(type(made).__name__)}"
    if record.kind == "optimizer":
        return Made(True, f"{name} for a model of {len(made.masters)} tensors")
    if record.kind == "sharding":
        count = len(made.placements)
        made.close()
        return Made(True, f"{name} for a single rank, which places {count} tensors")
    if record.kind == "store":
        made.close()
        return Made(True, f"{name} for {context.url}")
    return Made(True, f"{name}{_given(registration, context)}")


def _a(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIO' else 'a'} {name}"


def _given(registration: Registration, context: Any) -> str:
    """What else is worth to be known of how an object was made."""
    if isinstance(registration, BackendRegistration):
        return f" for its own server at {context.address}" if context.address else ", which finds the run by its name"
    return ""


def _load(registration: Any) -> Made:
    import click

    command = registration.load()
    if not isinstance(command, click.Command):
        return Made(False, f"load gives a {type(command).__name__}, expected a click command")
    return Made(True, f"load gives the command {command.name}")


def _check(registration: Any, settings: Any) -> Made:
    if registration.check is not None:
        registration.check(settings)
    told = "its check accepts these settings, and training makes one" if registration.check else "training makes one"
    return Made(None, f"a tracker begins to keep a run when it is made; {told}")


def _build(registration: Any, model_config: Mapping[str, Any] | None, folder: Path) -> Made:
    if model_config is None:
        return Made(None, "give the config.json of a small model with --model-config")
    (folder / "config.json").write_text(json.dumps(dict(model_config)), encoding="utf-8")
    made = registration.create(ModelContext(source=folder, max_seq_len=16, seed=bytes(32), device="cpu"))
    return Made(True, f"create gives {_a(type(made).__name__)} of {len(made.parameters)} tensors")
