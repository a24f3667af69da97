"""The folder of a testnet's results: only one that is empty or was made by a testnet is written to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import tomli_w

from psyche_core.__about__ import __version__
from psyche_core.config.options.testnet import TestnetSettings
from psyche_core.config.run_config import RunFile
from psyche_core.errors import UserError
from psyche_core.ui.run_metrics import RunMetrics

MARKER = "testnet.json"
"""File that marks a folder as made by psyche, so that it may be replaced."""

STATE_FILE = "state.toml"
"""The run file in the folder of results, if it differs from that of the configuration."""

_OURS = ("events", "logs", "keys", "checkpoint", "report.json", "loss.png", STATE_FILE, MARKER)


def prepare_folder(out: Path, settings: TestnetSettings, run: RunFile) -> None:
    """Make an empty folder for the results, and replace one of an earlier testnet. Raises UserError for any other folder."""
    try:
        if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
            message = f"{out} is not empty and was not made by a testnet; choose another folder with --out"
            raise UserError(message)

        for name in _OURS:
            old = out / name
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
        for name in ("events", "logs", "keys"):
            (out / name).mkdir(parents=True)
        made_by = {"psyche": __version__, "run_id": run.run_id, "num_clients": settings.num_clients}
        (out / MARKER).write_text(json.dumps(made_by) + "\n", encoding="utf-8")
    except OSError as error:
        message = f"cannot write results to {out}: {error.strerror}; choose another folder with --out"
        raise UserError(message) from error


def state_file(settings: TestnetSettings, run: RunFile, *, out: Path) -> Path:
    """The run file that the server reads: the user's own, or ours in the folder `out` if the run was changed."""
    if settings.first_client_checkpoint is None:
        return settings.config_path.absolute() / "state.toml"

    state = out / STATE_FILE
    state.write_bytes(tomli_w.dumps(run.model_dump(exclude_none=True)).encode())
    return state


def result_files(out: Path, metrics: RunMetrics) -> Iterator[Path]:
    """The files to show to the user at the end."""
    yield out / "report.json"
    if (out / "loss.png").exists():
        yield out / "loss.png"
    if metrics.checkpoints:
        yield Path(metrics.checkpoints[-1].path)
