"""The folder of a testnet's results: only one that is empty, or that a testnet made and trained nothing in, is written to.

A folder with an earlier run is emptied only if the user says so. Says what a stopped testnet leaves.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w
from filelock import FileLock, Timeout

from psyche_core.__about__ import __version__
from psyche_core.config.options.testnet import TestnetSettings
from psyche_core.config.run_config import RunFile
from psyche_core.errors import UserError
from psyche_core.storage.checkpoint_names import MANIFEST_FILE, checkpoints, step_of
from psyche_core.telemetry.events import StepApplied
from psyche_core.telemetry.sinks import from_json
from psyche_core.ui.run_metrics import RunMetrics

MARKER = "testnet.json"
"""File that marks a folder as made by psyche, so that it may be replaced."""

STATE_FILE = "state.toml"
"""The run file in the folder of results, if it differs from that of the configuration."""

CHECKPOINTS = "checkpoint"
"""The folder of the first client's checkpoints, in the folder of results; named in `arguments`, too."""

LOCK_FILE = ".testnet.lock"
"""File that a running testnet holds locked in its folder of results. It exists also when none is running."""

JOURNALS = "journals"
"""The folder of the first client's published journals, in the folder of results; named in `arguments`, too."""

_OURS = ("events", "logs", "keys", CHECKPOINTS, JOURNALS, "report.json", "loss.png", STATE_FILE, MARKER)
_TAIL_BYTES = 1 << 20


@contextmanager
def reserved_folder(out: Path) -> Iterator[None]:
    """Keep other testnets away from a folder of results until the block ends. Creates the folder if necessary.

    Raises UserError if another testnet is running in it, or if it holds files that no testnet made or cannot be written.
    """
    try:
        _refuse_strange_files(out)
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / LOCK_FILE, thread_local=False)
        lock.acquire(timeout=0)
    except Timeout as error:
        message = f"a testnet is running in {out}; wait for it or stop it, or choose another --out"
        raise UserError(message) from error
    except OSError as error:
        raise _unwritable(out, error) from error

    try:
        yield
    finally:
        lock.release()


def prepare_folder(out: Path, settings: TestnetSettings, run: RunFile) -> None:
    """Make an empty folder for the results. Replaces one of an earlier testnet only if it trained nothing, or with --overwrite.

    Raises UserError for a folder of an earlier run without --overwrite, and for any other folder that is not empty.
    """
    try:
        _refuse_strange_files(out)
        step = trained_steps(out)
        if step is not None and not settings.overwrite:
            message = f"{out} holds a run at step {step}; choose another --out, or --overwrite to delete it"
            raise UserError(message)

        _keep_what_is_read(out, settings)
        for name in _OURS:
            old = out / name
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
        for name in ("events", "logs", "keys"):
            (out / name).mkdir(parents=True)
        made_by = {"psyche": __version__, "run_id": run.run_id, "num_clients": settings.num_clients}
        (out / MARKER).write_text(json.dumps(made_by) + "\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(out, error) from error


def trained_steps(out: Path) -> int | None:
    """The last step that a testnet in this folder applied or saved; None if it trained nothing."""
    steps = [step for path in (out / "events").glob("*.jsonl") if (step := _last_applied(path)) is not None]
    for path in (out / CHECKPOINTS).glob("*-step*"):
        digits = path.name.rpartition("-step")[2]
        if digits.isdecimal() and (path / MANIFEST_FILE).exists():
            steps.append(int(digits))
    return max(steps, default=None)


def stopped_sentence(out: Path, settings: TestnetSettings, run: RunFile) -> str:
    """What a testnet that a signal ended leaves behind, and whether and how its training can be continued."""
    step = trained_steps(out)
    if step is None:
        return f"stopped before the first step; logs and events are in {out}, and the same command starts the run again"

    again = "start it again with another --out, or with --overwrite to delete what is there"
    saved = [path for path in checkpoints(out / CHECKPOINTS, run.run_id) if (path / MANIFEST_FILE).exists()]
    sentence = (
        f"stopped at step {step}; report, events and logs are in {out}. The run itself cannot be continued, since a testnet does "
        f"not keep the server's state: {again}"
    )
    if not saved:
        return sentence

    command = shlex.join(
        [
            *("psyche", "testnet", "start", "--num-clients", str(settings.num_clients)),
            *("--config-path", str(settings.config_path), "--out", f"{out}-2", "--first-client-checkpoint", str(saved[-1])),
        ]
    )
    return (
        f"{sentence}. Its model after step {step_of(saved[-1], run.run_id)} is in {saved[-1]}; a new run begins with it by "
        f"`{command}`"
    )


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
    if (out / JOURNALS).exists():
        yield out / JOURNALS


def _refuse_strange_files(out: Path) -> None:
    if out.exists() and not (out / MARKER).exists() and any(path.name != LOCK_FILE for path in out.iterdir()):
        message = f"{out} is not empty and was not made by a testnet; choose another folder with --out"
        raise UserError(message)


def _unwritable(out: Path, error: OSError) -> UserError:
    return UserError(f"cannot write results to {out}: {error.strerror}; choose another folder with --out")


def _last_applied(events: Path) -> int | None:
    """The last applied step in a file of events."""
    with events.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
        lines = stream.read().decode(errors="replace").splitlines()
    for line in reversed(lines):
        parsed = from_json(line) if '"step_applied"' in line else None
        if parsed is not None and isinstance(parsed[1], StepApplied):
            return parsed[1].step
    return None


def _keep_what_is_read(out: Path, settings: TestnetSettings) -> None:
    """Raise UserError if the run reads something that would be deleted before it starts."""
    read = {"--first-client-checkpoint": settings.first_client_checkpoint, "--validation-data": settings.validation_data}
    for option, value in read.items():
        if value is None:
            continue

        path = Path(value).resolve()
        if path.exists() and any(path.is_relative_to(out.resolve() / name) for name in _OURS):
            message = f"{option} {value} lies in {out}, which is emptied for the new run; choose another --out"
            raise UserError(message)
