"""An environment of its own for each kind of peer, made when it is needed and kept in a cache folder.

`pip install` does it, with whatever index and constraints the system's pip is set up with. Nothing of it enters ours.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

INSTALL_SECONDS = 1800.0


class UnavailableError(Exception):
    """An environment cannot be made; the message says why in a line."""


def python_of(name: str, requirements: Sequence[str], *, cache: Path, say: Callable[[str], None]) -> Path:
    """The interpreter of an environment with these requirements; it is made if the cache does not have it.

    Raises UnavailableError.
    """
    folder = cache / f"{name}-{_digest(requirements)}"
    python = folder / "bin" / "python"
    done = folder / "installed.txt"
    if done.exists():
        return python
    say(f"{name}: installing {', '.join(requirements)} into {folder} (once) ...")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
        frozen = _run(str(python), "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
    except UnavailableError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    done.write_text(frozen)
    say(f"{name}: installed")
    return python


def versions(name: str, requirements: Sequence[str], *, cache: Path) -> dict[str, str]:
    """Versions of what was asked for, in an environment that has been made; {} where it has not."""
    file = cache / f"{name}-{_digest(requirements)}" / "installed.txt"
    listed = file.read_text().splitlines() if file.exists() else []
    found = dict(line.split("==", 1) for line in listed if "==" in line)
    asked = [requirement.partition("==")[0] for requirement in requirements]
    return {package: found[package] for package in asked if package in found}


def _digest(requirements: Sequence[str]) -> str:
    text = "\n".join((*requirements, sys.version))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
        raise UnavailableError("; ".join(errors)[:500] or f"{command[0]} ended with {done.returncode}")
    return done.stdout
