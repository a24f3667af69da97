"""Turns the end of a program into one sentence and an exit code.

It handles our exception tree, exception groups (a task group wraps what its tasks raise), stopping signals, missing extras, and
exceptions from a plugin's code, which are named with the plugin's distribution. An unknown exception is a defect of psyche-core:
it is not handled and shows its traceback.
"""

from __future__ import annotations

import traceback

from psyche_core.errors import PsycheError, UserError

USER_ERROR = 2
FAILURE = 1

_OURS = ("psyche_core", "click", "__main__", "")
"""Packages whose code ends programs as it should."""

_EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "safetensors": "train",
    "tokenizers": "train",
    "numpy": "train",
    "pyarrow": "parquet",
    "matplotlib": "plot",
    "pytest": "testing",
    "starlette": "web",
    "uvicorn": "web",
    "lm_eval": "eval",
    "opentelemetry": "otlp",
    "prometheus_client": "metrics",
}


class Interrupted(Exception):
    """A stopping signal ended the program after it had cleaned up."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}")
        self.signal_number = signal_number


def describe_failure(error: BaseException) -> tuple[str, int] | None:
    """Sentence and exit code for an exception; None for one whose traceback should be shown.

    The sentence is empty if there is nothing to add (a stopping signal: the exit code is 128 + its number, as in shells).
    """
    if isinstance(error, BaseExceptionGroup):
        return _describe_group(error)
    if isinstance(error, Interrupted):
        return "", 128 + error.signal_number
    if isinstance(error, UserError):
        return error.sentence, USER_ERROR
    if isinstance(error, PsycheError):
        return error.sentence, FAILURE
    if isinstance(error, ModuleNotFoundError):
        return _describe_missing_module(error)
    if isinstance(error, BrokenPipeError):
        return "", FAILURE
    if isinstance(error, Exception) or (isinstance(error, SystemExit) and _may_be_a_plugins(error)):
        return _describe_plugin_fault(error)

    return None


def _may_be_a_plugins(ended: SystemExit) -> bool:
    """Whether other code than ours ended the program: nearly all programs end by SystemExit, and finding plugins takes time."""
    raised_in = ""
    for frame, _ in traceback.walk_tb(ended.__traceback__):
        raised_in = str(frame.f_globals.get("__name__", ""))
    return raised_in.partition(".")[0] not in _OURS


def _describe_plugin_fault(error: Exception | SystemExit) -> tuple[str, int] | None:
    """The sentence about an exception that a plugin's code raised; None if only our own code is in its traceback."""
    from psyche_core.plugin_errors import explain_plugin  # only after a failure: finding plugins reads the environment
    from psyche_core.plugins import PluginRegistry

    places = list(PluginRegistry.discover().places())
    if isinstance(error, SystemExit):  # a command may end so
        commands = {module.partition(".")[0] for kind, _, _, module in places if kind == "command"}
        places = [place for place in places if place[3].partition(".")[0] not in commands]
    sentence = explain_plugin(error, places)
    return None if sentence is None else (f"{sentence}; psyche --debug shows the traceback", FAILURE)


def _describe_group(group: BaseExceptionGroup[BaseException]) -> tuple[str, int] | None:
    """The group's first failure if all of them can be described; a defect among them shows the whole group."""
    described = [describe_failure(error) for error in group.exceptions]
    known = [failure for failure in described if failure is not None]
    return known[0] if len(known) == len(described) else None


def _describe_missing_module(error: ModuleNotFoundError) -> tuple[str, int] | None:
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return None

    extra = _EXTRAS[package]
    return f"this command needs {package}, which is not installed; pip install 'psyche-core[{extra}]'", USER_ERROR
