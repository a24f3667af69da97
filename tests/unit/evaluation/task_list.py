"""lm_eval without its own tasks, the list of which takes seconds to read."""

from __future__ import annotations

from typing import Any

import pytest


def only_from_folders(patch: pytest.MonkeyPatch) -> None:
    """Let our code have the tasks of its own folders only."""
    from lm_eval.tasks import TaskManager

    def listed(include: tuple[str, ...]) -> Any:
        return TaskManager(include_path=list(include) or None, include_defaults=False)

    patch.setattr("psyche_core.evaluation.harness.all_tasks", listed)
