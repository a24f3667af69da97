"""Checks what a program's options name on this machine, before anything is connected or built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.train_local import TrainLocalSettings
from psyche_core.errors import ConfigError

_ALWAYS_THERE = ("auto", "cpu")


def expect_device(settings: ClientSettings | TrainLocalSettings) -> None:
    """Check that the device exists. Raises NoSuchDevice. May load torch, so do not call it in the event loop."""
    if settings.device in _ALWAYS_THERE:
        return  # loading torch takes seconds, and there is nothing to check

    from psyche_core.models.hf.devices import pick_devices

    pick_devices(settings.device)


def expect_held_out(settings: ClientSettings | TrainLocalSettings) -> None:
    """Check that --validation-data exists. Raises ConfigError."""
    if settings.validation_data is not None:
        expect_tokens(settings.validation_data, option="--validation-data")


def expect_evaluations(settings: ClientSettings) -> None:
    """Check that the folder of --eval-include-path exists. Raises ConfigError."""
    folder = settings.eval_include_path
    if folder is not None and not folder.is_dir():
        message = f"--eval-include-path {str(folder)!r} is no folder; give one with YAML files of lm-evaluation-harness"
        raise ConfigError(message)


def expect_publishing(settings: ClientSettings) -> None:
    """Check the folder of --publish-journal, and that there will be a journal. Raises ConfigError."""
    folder = settings.publish_journal
    if folder is None:
        return

    if sys.platform == "win32":  # Windows cannot replace a file that is being copied
        message = "--publish-journal does not work on Windows; leave it out"
        raise ConfigError(message)
    if settings.checkpoint_dir is None:
        message = "--publish-journal copies the journal beside the checkpoints, so it needs --checkpoint-dir FOLDER"
        raise ConfigError(message)
    if folder.exists() and not folder.is_dir():
        message = f"--publish-journal {folder} is a file; give a folder, which is made when there is none"
        raise ConfigError(message)


def expect_checkpoint_dir(settings: TrainLocalSettings) -> None:
    """Make the folder of --checkpoint-dir, so that nothing is trained that cannot be saved. Raises ConfigError."""
    if settings.checkpoint_dir is not None:
        _expect_writable(settings.checkpoint_dir, option="--checkpoint-dir")


def expect_result_files(settings: ClientSettings) -> None:
    """Make the folders that results are written into. Raises ConfigError."""
    if settings.write_gradients_dir is not None:
        _expect_writable(settings.write_gradients_dir, option="--write-gradients-dir")
    if settings.write_distro_data is not None:
        _expect_writable(settings.write_distro_data, option="--write-distro-data")


def _expect_writable(folder: Path, *, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        reason = (isinstance(error, OSError) and error.strerror) or error
        message = f"{option} {str(folder)!r}: {reason}; give a folder that can be written"
        raise ConfigError(message) from error
    if not writable:
        message = f"{option} {str(folder)!r} cannot be written; give another folder"
        raise ConfigError(message)


def expect_tokens(place: Path, *, option: str) -> None:
    """Check that the path of an option exists. Raises ConfigError."""
    try:
        place.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        reason = (isinstance(error, OSError) and error.strerror) or error
        message = f"{option} {str(place)!r}: {reason}; give a token file or a folder of them (`psyche data tokenize` makes some)"
        raise ConfigError(message) from error
