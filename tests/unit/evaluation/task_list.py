"""lm_eval's list of its tasks, which takes five seconds to read: once in this process, or without its own tasks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest


@functools.cache
def _read(include: tuple[str, ...]) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=list(include) or None)


def known_tasks(include_path: Sequence[str] | None = None) -> Any:
    """lm_eval's TaskManager with its own tasks and those of folders."""
    return _read(tuple(include_path or ()))


def read_once(patch: pytest.MonkeyPatch) -> None:
    """Let our code have that list, too."""
    patch.setattr("psyche_core.evaluation.harness.TaskManager", known_tasks)


def only_from_folders(patch: pytest.MonkeyPatch) -> None:
    """Let our code have the tasks of its own folders only."""
    from lm_eval.tasks import TaskManager

    patch.setattr("psyche_core.evaluation.harness.TaskManager", functools.partial(TaskManager, include_defaults=False))
