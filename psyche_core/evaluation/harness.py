"""Scores in benchmarks, by lm-evaluation-harness, with its tasks, prompts and metrics. Needs the extra `eval`.

`TaskSet` finds tasks by name and loads their data once; `score` measures a model on them. Programs import this module only when
an evaluation is wanted.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import lm_eval.api.task
import lm_eval.evaluator
import numpy as np
import torch
import transformers
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from psyche_core.config.sentences import nearest
from psyche_core.errors import InputError, ModelError
from psyche_core.models.hf.quiet import first_line
from psyche_core.text_safety import printable

ALIASES: Mapping[str, str] = {"ceval": "ceval-valid", "ceval_valid": "ceval-valid", "mmlu_cf": "mmlu_continuation"}
"""Names of tasks in the Rust Psyche that lm-evaluation-harness spells differently."""

MAIN_METRICS: tuple[str, ...] = ("acc_norm", "acc", "exact_match")
"""Metrics that may be a task's main metric, in this order; if a task has none of them, its first metric is used."""

# Keep log lines and progress bars of the library off the terminal, which shows a run or an answer in JSON.
_logger = logging.getLogger("lm_eval")
_logger.handlers, _logger.propagate = [logging.NullHandler()], False
lm_eval.api.task.tqdm = functools.partial(tqdm, disable=True)


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a model in one task or group of tasks.

    metrics: by name, without the filter if there is only one. stderr: standard errors, where known. documents: how many were
    measured, None for a group that does not say. shots: examples before each question.
    """

    task: str
    metrics: Mapping[str, float]
    stderr: Mapping[str, float]
    documents: int | None
    shots: int | None

    @property
    def main(self) -> tuple[str, float] | None:
        """The task's main metric and its value."""
        for name in MAIN_METRICS:
            for key, value in self.metrics.items():
                if key.partition(",")[0] == name:
                    return key, value
        return next(iter(self.metrics.items()), None)


class TaskSet:
    """Tasks by name, each loaded once.

    include: folders with the user's own tasks, as YAML files. A YAML file may name Python functions in files next to it, which
    are then run: use only files that you trust. Raises InputError for an unknown name, and for a data set that cannot be loaded.
    """

    def __init__(self, names: Sequence[str], *, include: Sequence[Path] = ()) -> None:
        for folder in include:
            if not folder.is_dir():
                message = f"there is no folder {folder} with tasks; name one with YAML files of lm-evaluation-harness"
                raise InputError(message)
        self._manager: Any = all_tasks(tuple(str(folder.absolute()) for folder in include))
        self.names: list[str] = [self._known(name) for name in names]
        self._held: Any = None

    def load(self) -> Any:
        """Return the tasks of `names` as lm_eval has them, loaded at the first call."""
        if self._held is None:
            for name in self.names:
                _load_one(self._manager.load, name)
            self._held = self._manager.load(self.names)
        return self._held

    def _known(self, name: str) -> str:
        known = set(self._manager.all_tasks)
        for found in (name, ALIASES.get(name.lower(), ""), name.lower()):
            if found in known:
                return found

        near = nearest(name, known)
        hint = f"did you mean {near}?" if near is not None else "`lm_eval ls tasks` lists them"
        message = f"there is no evaluation task {printable(name, at_most=80)!r}; {hint}"
        raise InputError(message)


@functools.cache
def all_tasks(include: tuple[str, ...]) -> Any:
    """Return lm_eval's list of its own tasks and those in folders. It reads 14,000 files, so it is cached for the process."""
    with _quiet():
        return TaskManager(include_path=list(include) or None)


_Hf: Any = HFLM


class _HarnessModel(_Hf):  # type: ignore[misc]  # lm_eval is untyped
    """A model as lm_eval's program opens it (`--model hf`). shows: whether to show progress bars; for the rest see HFLM."""

    shows: bool = False

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **more: Any) -> Any:
        return super()._loglikelihood_tokens(requests, disable_tqdm=disable_tqdm or not self.shows, **more)

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        """Return the log-likelihood of each continuation."""
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm or not self.shows)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
        """Return the log-likelihood of each text."""
        return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm or not self.shows)

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        """Return the text that the model writes for each request."""
        return super().generate_until(requests, disable_tqdm=disable_tqdm or not self.shows)


HarnessModel: Any = _HarnessModel
"""The class, typed Any because its base class is untyped."""


def open_for_harness(
    folder: Path,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    batch_size: int | str = 1,
    tokenizer: Path | None = None,
    shows: bool = False,
) -> Any:
    """Open a model folder so that scores are those of lm_eval's own program. shows: progress bars. Raises ModelError."""
    try:
        with _quiet():
            opened = HarnessModel(
                pretrained=str(folder),
                tokenizer=None if tokenizer is None else str(tokenizer),
                device=device,
                dtype=dtype,
                batch_size=batch_size,
                trust_remote_code=False,
                use_safetensors=True,
            )
            opened.shows = shows
            return opened
    except Exception as error:  # transformers raises many exception types for a folder that it cannot read
        message = f"lm-evaluation-harness cannot read the model in {folder}: {first_line(error)}"
        raise ModelError(message) from error


def score(
    model: Any,
    tasks: TaskSet,
    *,
    shots: int | None = None,
    limit: int | None = None,
    seed: int | None = None,
    alone: bool = True,
) -> list[Score]:
    """Measure a model on tasks.

    shots: examples before each question; None for each task's own number. limit: most documents of each task. seed: for choosing
    examples and all other random choices; None for lm_eval's own seeds. alone: whether nothing else runs in this process. Then
    the global random generators are seeded as lm_eval's program does, and standard errors are estimated. Raises InputError and
    ModelError.
    """
    loaded = tasks.load()
    for task in loaded["tasks"].values():
        fixed = task.get_config("num_fewshot")
        if shots is not None and fixed != 0:  # a task with 0 has its examples in its own text
            task.set_config(key="num_fewshot", value=shots)
        elif fixed is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED if seed is None else seed)
    if alone:
        random.seed(DEFAULT_RANDOM_SEED if seed is None else seed)
        np.random.seed(DEFAULT_OTHER_SEED if seed is None else seed)
        torch.manual_seed(DEFAULT_OTHER_SEED if seed is None else seed)
    try:
        with _quiet():
            found = lm_eval.evaluator.evaluate(
                model, loaded, limit=limit, log_samples=False, bootstrap_iters=100_000 if alone else 0
            )
    except (RuntimeError, ValueError, TypeError, KeyError, AssertionError, ImportError) as error:
        message = f"lm-evaluation-harness could not measure {', '.join(tasks.names)}: {printable(first_line(error), at_most=300)}"
        raise ModelError(message) from error
    assert found is not None, "this is the only process"
    return [_score(name, found) for name in found["results"]]


def _score(name: str, found: Mapping[str, Any]) -> Score:
    values = {key: value for key, value in found["results"][name].items() if isinstance(value, int | float)}
    metrics = {_short(key): float(value) for key, value in values.items() if "," in key and "_stderr," not in key}
    stderr = {_short(key.replace("_stderr,", ",")): float(value) for key, value in values.items() if "_stderr," in key}
    documents = (found.get("n-samples") or {}).get(name) or {}
    return Score(name, metrics, stderr, documents.get("effective"), (found.get("n-shot") or {}).get(name))


def _short(key: str) -> str:
    """Return the metric's name without `,none`; other filters' names stay."""
    return key.removesuffix(",none")


def _load_one(load: Any, name: str) -> None:
    """Load one task's data, so that an error names the task. Raises InputError."""
    try:
        with _quiet():
            load([name])
    except Exception as error:  # datasets and the Hub's library raise many exception types
        if isinstance(error, ConnectionError | OSError) or type(error).__name__ in _NO_DATA:
            message = (
                f"the data of task {name} is not on this machine and cannot be had: {printable(first_line(error), at_most=200)}; "
                "evaluate it once where the Hub can be reached, or bring that cache (HF_HOME)"
            )
        else:
            message = f"the task {name} cannot be loaded: {printable(first_line(error), at_most=300)}"
        raise InputError(message) from error


_NO_DATA = ("DatasetNotFoundError", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "ConnectError", "HfHubHTTPError")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars and lines of lm_eval, datasets and transformers from the terminal."""
    loggers = [logging.getLogger(name) for name in ("datasets", "evaluate", "transformers")]
    levels = [each.level for each in loggers]
    bars = not datasets.are_progress_bars_disabled()
    log: Any = transformers.utils.logging
    shows = log.is_progress_bar_enabled()
    for each in loggers:
        each.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    log.disable_progress_bar()
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
        if bars:
            datasets.enable_progress_bars()
        if shows:
            log.enable_progress_bar()
