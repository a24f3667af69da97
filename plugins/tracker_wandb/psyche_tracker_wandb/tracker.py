"""The tracker: one run of Weights & Biases for each start of a client.

The step is a figure of its own and the axis of all others, so that a run which goes back, and measurements that come late, are
kept at the steps they belong to.

What the library would do with the process is switched off: it captures no output, does not stop the process when somebody presses
"Stop run" on the page, and looks at neither the code nor the command line, which may hold secrets.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping

import wandb

from psyche_core.interfaces import TrackedRun, Tracker
from psyche_tracker_wandb.settings import WandbSettings

logger: logging.Logger = logging.getLogger("psyche.trackers.wandb")

STEP = "step"
FINISH_SECONDS = 15.0
"""How long the library uploads at the end; what is left then is on disk."""

_ONE_AT_A_TIME = threading.Lock()
"""The library replaces functions of `sys` while it starts, which we put back."""


class WandbTracker(Tracker):
    """Sends figures. Raises the library's errors."""

    def __init__(self, run: TrackedRun, settings: WandbSettings) -> None:
        with _ONE_AT_A_TIME:
            process = sys.exit, sys.excepthook
            try:
                wandb.setup(wandb.Settings(silent=True))  # before it says where it found the key
                self._run = wandb.init(
                    project=settings.wandb_project,
                    name=settings.wandb_run or run.name,
                    group=settings.wandb_group or run.run_id,
                    entity=settings.wandb_entity,
                    mode=settings.wandb_mode,
                    dir=str(settings.wandb_dir),
                    job_type="client",
                    config={**run.config, "member": run.member},
                    reinit="create_new",
                    settings=wandb.Settings(
                        silent=True,
                        host=run.name,
                        console="off",
                        save_code=False,
                        disable_git=True,
                        disable_code=True,
                        x_disable_meta=True,
                        finish_timeout=FINISH_SECONDS,
                        stop_fn=_not_stopped,
                    ),
                )
            finally:
                sys.exit, sys.excepthook = process
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)

    def log_figures(self, step: int, figures: Mapping[str, float], *, time: float) -> None:
        """A row of the run's history."""
        self._run.log({STEP: step, "_timestamp": time, **figures})

    def log_text(self, step: int, key: str, text: str, *, time: float) -> None:
        """The same with a text."""
        self._run.log({STEP: step, "_timestamp": time, key: text})

    def finish(self, *, success: bool, reason: str) -> None:
        """Upload the rest, for a bounded time, and mark the run as finished or failed."""
        self._run.summary["ended"] = reason
        self._run.finish(exit_code=0 if success else 1)


def _not_stopped() -> None:
    """Instead of an interrupt of the client."""
    logger.warning("somebody asked to stop this client on the page of Weights & Biases; it goes on, stop it with Ctrl-C")
