"""Installs another version of the client with pip, in a separate virtual environment.

There is one folder for each version and Python, in psyche's cache folder. A marker file, written last, says that the environment
is complete. Without it the folder is made again, because an environment cannot be moved after it was made. pip uses the member's
own settings (`PIP_INDEX_URL`, `PIP_FIND_LINKS`, …, from the environment or the file) and installs `psyche-core` of one version
with its dependencies. pip gets no secret of the wallet. Environments are never removed here, because another manager may use one;
the user may delete the folder whenever no manager runs.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from filelock import FileLock, Timeout

from psyche_backend_solana.commands.client.plan import PipEnvironment
from psyche_backend_solana.commands.client.process import Launch, Ready, print_line, run_tool
from psyche_backend_solana.settings import RAW_WALLET
from psyche_core.errors import UserError

EXTRAS = ("solana", "distro", "http", "quic", "train", "parquet", "gcs", "metrics", "otlp", "wandb")
"""Extras that a member's client may need."""
PLUGINS = ("psyche-backend-solana", "psyche-optim-distro", "psyche-data-http", "psyche-p2p-quic", "psyche-tracker-wandb")
"""Distributions behind the extras that are released together with psyche-core, under its version."""
MAKE_SECONDS = 300.0
INSTALL_SECONDS = 3600.0
LOCK_POLL_SECONDS = 0.2
WHOLE = "psyche-environment.json"
_OF_OUR_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


def requirements(plan: PipEnvironment) -> list[str]:
    """The requirements for pip.

    All our distributions have one version, because an extra alone would install the newest plugins with an old core.
    """
    return [f"psyche-core[{','.join(EXTRAS)}]=={plan.version}", *(f"{name}=={plan.version}" for name in PLUGINS)]


async def prepare_environment(
    plan: PipEnvironment, arguments: tuple[str, ...], *, environment: Mapping[str, str], given: Mapping[str, str]
) -> Ready:
    """Make or find the environment; return what starts its client.

    arguments: of `psyche`. environment: the manager's, updated with the file's values. given: the file's values. Raises
    UserError.
    """
    clean = {name: value for name, value in environment.items() if name not in _OF_OUR_PYTHON}
    folder = cache_folder(environment) / "clients" / f"{plan.version}-{sys.implementation.cache_tag}"
    async with _locked(folder.with_name(folder.name + ".lock")):
        if not _is_whole(folder, plan):
            print_line(f"installing {plan} in {folder}")
            await _make(folder, plan, for_pip(clean, given))
    launch = Launch((str(_program(folder, "psyche")), *arguments), clean)
    return lambda: launch


def for_pip(environment: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The environment for pip: without psyche's variables, and only with the file's variables for pip and for network access."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("PSYCHE_")
        and name not in (RAW_WALLET, "RAW_IDENTITY_SECRET_KEY")
        and (name not in given or name.startswith("PIP_") or name.lower().endswith("_proxy"))
    }


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Psyche's cache folder, chosen as in `psyche_core`."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "psyche"

    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "psyche"


async def _make(folder: Path, plan: PipEnvironment, environment: Mapping[str, str]) -> None:
    await anyio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
    code = await run_tool((sys.executable, "-m", "venv", str(folder)), environment, timeout=MAKE_SECONDS)
    if code != 0:
        message = f"python could not make an environment in {folder} (exit code {code}); see its output above"
        raise UserError(message)

    python = str(_program(folder, "python"))
    pip = (python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *requirements(plan))
    code = await run_tool(pip, environment, timeout=INSTALL_SECONDS)
    if code != 0:
        message = (
            f"pip could not install {' '.join(requirements(plan))} (exit code {code}); see its output above; "
            "PIP_INDEX_URL and PIP_FIND_LINKS say where it looks"
        )
        raise UserError(message)
    if not _program(folder, "psyche").exists():
        message = f"psyche-core {plan.version} has no command `psyche` and cannot be run; tell the run's owner"
        raise UserError(message)

    (folder / WHOLE).write_text(json.dumps({"requirements": requirements(plan)}))


def _is_whole(folder: Path, plan: PipEnvironment) -> bool:
    try:
        said = json.loads((folder / WHOLE).read_text())
    except (OSError, ValueError):
        return False

    there = all(_program(folder, name).exists() for name in ("python", "psyche"))  # its Python may have been removed
    return there and said == {"requirements": requirements(plan)}


def _program(folder: Path, name: str) -> Path:
    return folder / "bin" / name


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold a lock, because two managers may need the same environment. Raises UserError if the folder cannot be used."""
    lock = FileLock(path, thread_local=False)
    told = False
    while not _try_lock(lock):
        if not told:
            print_line(f"another run-manager is preparing {path.stem}; waiting for it")
            told = True
        await anyio.sleep(LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def _try_lock(lock: FileLock) -> bool:
    path = Path(lock.lock_file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except OSError as error:
        message = f"the folder {path.parent} cannot be used ({error.strerror}); set XDG_CACHE_HOME to one that can be written to"
        raise UserError(message) from error

    return True
