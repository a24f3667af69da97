"""What `psyche doctor` looks at on this machine. Each check gives results with a remedy; none changes anything.

The network is not used: `psyche doctor` must work before anything is set up.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from psyche_core.errors import ConfigError, IdentityError, ModelError, PsycheError
from psyche_core.wire.key_files import read_key_file
from psyche_core.wire.signing import SecretKey

if TYPE_CHECKING:
    from psyche_core.config.run_config import RunFile
    from psyche_core.plugins import PluginRegistry

Status = Literal["ok", "warning", "problem"]

LEAST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 2 << 30
"""Free disk space without which even small runs fail: logs, caches and a checkpoint."""
LEAST_OPEN_FILES = 1024
HOST_BYTES = 8
"""Bytes of the machine's memory for each parameter: masters and the optimizer's momentum, float32."""
DEVICE_BYTES = 8
"""Bytes of the device's memory for each parameter: weights and gradients, float32."""
DISK_COPIES = 4
"""Copies of the float32 weights that fit on the disk: download, checkpoints, journal."""
FIRST_RELEASE = 1_735_689_600
"""Unix time of 2025-01-01: a clock before it is wrong."""

_UNSYNCHRONISED = 0x40
_STATUS_OFFSET = 40
_TIMEX_BYTES = 256


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at. text: what was found. remedy: what to do, empty if nothing is to be done."""

    check: str
    status: Status
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> CheckResult:
    """A result that needs nothing."""
    return CheckResult(check, "ok", text)


def check_python() -> Iterator[CheckResult]:
    """The interpreter and psyche-core."""
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info[:2] < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        yield CheckResult("python", "problem", text, f"install Python {least} or newer and make a new environment with it")
    else:
        yield ok("python", f"{text}, psyche-core {version('psyche-core')}")


def check_torch(device: str) -> Iterator[CheckResult]:
    """torch, transformers and the device. device: as `--device` takes it."""
    install = "pip install 'psyche-core[train]'"
    missing = [name for name in ("torch", "transformers", "safetensors") if _version(name) is None]
    if missing:
        yield CheckResult("torch", "problem", f"{', '.join(missing)} not installed, so no model can be trained here", install)
        return
    try:
        import torch

        from psyche_core.models.hf.devices import pick_devices
    except (ImportError, OSError) as error:  # a library that torch needs is missing or broken
        yield CheckResult("torch", "problem", f"torch cannot be imported: {error}", f"install it again: {install}")
        return

    yield ok("torch", f"torch {torch.__version__}, transformers {_version('transformers')}")
    try:
        devices = pick_devices(device)
    except PsycheError as error:
        yield CheckResult("device", "problem", str(error), "check the driver (nvidia-smi) and torch's build, or use --device cpu")
        return
    for each in devices:
        if each.type == "cuda":
            free, total = torch.cuda.mem_get_info(each)
            yield ok("device", f"{torch.cuda.get_device_name(each)}: {_size(free)} of {_size(total)} free")
        else:
            yield ok("device", f"{each.type}, {os.cpu_count()} processors")


def check_model(run: RunFile, *, base: Path, device: str) -> tuple[int, list[CheckResult]]:
    """The number of a run's parameters, 0 if unknown, and whether this machine's memory suffices for them.

    Activations are not counted: they depend on --micro-batch-size.
    """
    try:
        count = count_parameters(run, base=base)
    except (ModelError, ConfigError) as error:
        return 0, [CheckResult("model", "problem", str(error), "see --base, or `psyche predownload --state FILE`")]
    if count is None:
        text = "the run's model is not a folder of this machine, so its size is not known"
        return 0, [
            CheckResult("model", "warning", text, "`psyche predownload --state FILE` gets it; --base says where paths start")
        ]

    return count, list(_memory(count, device=device))


def _memory(count: int, *, device: str) -> Iterator[CheckResult]:
    import torch

    from psyche_core.models.hf.devices import pick_devices
    from psyche_core.models.memory import free_bytes

    yield ok("model", f"{count / 1e6:.1f} million parameters")
    try:
        first = pick_devices(device)[0]
    except PsycheError:
        return  # reported by check_torch
    needs_host = count * (HOST_BYTES if first.type == "cuda" else HOST_BYTES + DEVICE_BYTES)
    yield _compare(
        "memory", "memory", needs_host, free_bytes(), "end other programs, add memory or swap, or train a smaller model"
    )
    if first.type == "cuda":
        remedy = "--gradient-checkpointing, --micro-batch-size 1 or --tensor-parallelism need less; or use a larger device"
        yield _compare("device memory", f"memory of {first}", count * DEVICE_BYTES, torch.cuda.mem_get_info(first)[0], remedy)


def count_parameters(run: RunFile, *, base: Path) -> int | None:
    """Number of parameters of a run's model, counted without its weights; None if it is not on this machine or no HF model.

    Raises ModelError.
    """
    from psyche_core.models.hf.model_types import MODEL_TYPES
    from psyche_core.training.checkpoints import sources

    llm = run.model.LLM
    folder = sources.local_folder(llm.checkpoint, base=base)
    if folder is None or llm.architecture not in MODEL_TYPES:
        return None

    import torch
    import transformers

    from psyche_core.models.hf.configuration import read_configuration
    from psyche_core.models.hf.quiet import first_line, quiet

    configuration = read_configuration(folder, required_types=MODEL_TYPES[llm.architecture])
    auto: Any = transformers.AutoModelForCausalLM
    try:
        with quiet(), torch.device("meta"):
            module = auto.from_config(configuration.parsed)
    except Exception as error:  # a wrong configuration can raise almost any exception in transformers
        message = f"cannot build the model of {folder}: {first_line(error)}"
        raise ModelError(message) from error
    return sum(int(parameter.numel()) for parameter in module.parameters())


def check_disk(places: Sequence[tuple[str, Path]], *, model_bytes: int) -> Iterator[CheckResult]:
    """Free space where the client writes. places: (option, folder). model_bytes: of the float32 weights, 0 if unknown."""
    for option, folder in places:
        there = next((each for each in (folder, *folder.absolute().parents) if each.exists()), Path("/"))
        try:
            free = shutil.disk_usage(there).free
        except OSError as error:
            yield CheckResult("disk", "problem", f"{option} {folder}: {error.strerror}", "choose another folder")
            continue
        if not os.access(there, os.W_OK | os.X_OK):
            yield CheckResult("disk", "problem", f"{option} {folder} cannot be written", f"choose another folder with {option}")
            continue
        needs = max(LEAST_FREE_BYTES, DISK_COPIES * model_bytes)
        text = f"{option} {folder}: {_size(free)} free"
        if free < needs:
            yield CheckResult(
                "disk", "warning", f"{text}, about {_size(needs)} are needed", f"make room, or choose another {option}"
            )
        else:
            yield ok("disk", text)


def check_clock() -> Iterator[CheckResult]:
    """Whether the clock is plausible and, on Linux, synchronised. Rounds end by the clock."""
    if time.time() < FIRST_RELEASE:
        shown = time.strftime("%Y-%m-%d", time.gmtime())
        yield CheckResult("clock", "problem", f"the clock says {shown}, which is in the past", "set the clock, with NTP")
        return
    synchronised = _synchronised()
    if synchronised is False:
        yield CheckResult(
            "clock",
            "warning",
            "the system does not say that its clock is synchronised; rounds and certificates need the right second",
            "`timedatectl set-ntp true`, or start chrony; inside a container, on its host",
        )
    else:
        yield ok("clock", "synchronised" if synchronised else "plausible; the system does not tell whether it is synchronised")


def _synchronised() -> bool | None:
    """Whether Linux' kernel says that something disciplines its clock; None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    try:
        ask = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True).adjtimex
        buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes = 0: only read
        if ask(buffer) < 0:
            return None
    except (OSError, AttributeError, TypeError):
        return None

    status = int.from_bytes(buffer.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], sys.byteorder)
    return not status & _UNSYNCHRONISED


def check_keys(identity: Path | None, wallet: Path | None) -> Iterator[CheckResult]:
    """Whether key files can be read, by nobody else. Their contents are not shown."""
    if identity is not None:
        try:
            yield ok("identity", f"{identity}: public key {SecretKey.load(identity).public.hex()}")
        except IdentityError as error:
            yield _split("identity", error)
    if wallet is not None:
        try:
            read_key_file(wallet.expanduser(), what="wallet", remedy="make one with `psyche solana keygen FILE`", any_owner=True)
            yield ok("wallet", f"{wallet}: only you can read it")
        except IdentityError as error:
            yield _split("wallet", error)


def check_plugins(registry: PluginRegistry, run: RunFile | None) -> Iterator[CheckResult]:
    """Plugins that do not load, and those that a run needs and are missing."""
    from psyche_core.plugins import check_run_file_plugins
    from psyche_core.plugins.survey import surveyed

    records = surveyed(registry).records
    for record in records:
        if record.status in ("failed", "incompatible", "duplicate"):
            remedy = (
                f"pip install --upgrade {record.distribution}, or uninstall it; see `psyche plugins show {record.entry_point}`"
            )
            yield CheckResult("plugins", "problem", f"{record.entry_point} ({record.origin}): {record.cause}", remedy)
    yield ok("plugins", f"{sum(record.status == 'ok' for record in records)} can be used")
    if run is not None:
        try:
            check_run_file_plugins(run, registry)
            yield ok("run file", f"run {run.run_id}: the plugins it names are here, with valid settings")
        except PsycheError as error:
            yield CheckResult("run file", "problem", str(error), "install what is missing, or correct the run file")


def check_limits() -> Iterator[CheckResult]:
    """How many files and connections the process may open."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files and connections are allowed"
    if 0 <= soft < LEAST_OPEN_FILES:
        yield CheckResult("limits", "warning", text, f"`ulimit -n {4 * LEAST_OPEN_FILES}` before the start, or LimitNOFILE=")
    else:
        yield ok("limits", text)


def _compare(check: str, what: str, needs: int, free: int | None, remedy: str) -> CheckResult:
    if free is None:
        return CheckResult(check, "warning", f"{_size(needs)} are needed; the system does not say how much is free", remedy)

    text = f"{_size(needs)} of {what} are needed beside activations, {_size(free)} are free"
    if free < needs:
        return CheckResult(check, "problem", text, remedy)
    return CheckResult(check, "warning", text, remedy) if free < 1.25 * needs else ok(check, text)


def _split(check: str, error: IdentityError) -> CheckResult:
    """A key file's error, which ends with its remedy after a semicolon."""
    text, _, remedy = str(error).rpartition("; ")
    return CheckResult(check, "problem", text or remedy, remedy)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
