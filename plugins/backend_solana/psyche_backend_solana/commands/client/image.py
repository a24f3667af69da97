"""Runs a client from a container image with docker or podman.

An image needs only the command `psyche` on its PATH. The container gets the host's network, because members connect to each
other's addresses; the GPUs, where there are any; the wallet file, mounted read-only; and a volume for its cache. It gets no
other file of this machine and no privilege (the reference implementation gives all). Variables are passed by name, with their
values in the environment of docker itself, so that no secret is on a command line. An image that was pulled is also used when
the network or the registry is not available later. The output of docker is shown unchanged.
"""

from __future__ import annotations

import csv
import io
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from psyche_backend_solana.commands.client.plan import Image
from psyche_backend_solana.commands.client.process import Launch, Ready, print_line, run_tool, succeeds
from psyche_backend_solana.settings import RAW_WALLET
from psyche_core.errors import UserError

PROGRAMS = ("docker", "podman")
PULL_SECONDS = 3600.0
LOOK_SECONDS = 60.0
END_SECONDS = 10
"""Seconds that docker itself waits from SIGTERM to SIGKILL."""
CACHE = "/var/cache/psyche"
WALLET = "/run/psyche/wallet.json"
CACHE_NAME, WALLET_NAME = "PSYCHE_CACHE_DIR", "PSYCHE_WALLET_PRIVATE_KEY_PATH"
NVIDIA = Path("/dev/nvidiactl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """How images are run on this machine.

    program: name or path of docker or podman; None uses the first one found. local: never pull. entrypoint: the command in the
    image. more: further options of `docker run`. gpus: whether the machine has any.
    """

    program: str | None = None
    local: bool = False
    entrypoint: str = "psyche"
    more: tuple[str, ...] = ()
    gpus: bool = field(default_factory=NVIDIA.exists)

    def found(self, path: str | None) -> str:
        """The program's path. path: folders to search, in the format of PATH. Raises UserError."""
        wanted = PROGRAMS if self.program is None else (self.program,)
        for name in wanted:
            there = shutil.which(name, path=path)
            if there is not None:
                return there

        message = (
            f"the run asks for a container image, and there is no {' or '.join(wanted)} here: install {' or '.join(PROGRAMS)}, "
            "or give its path with --container-program"
        )
        raise UserError(message)


async def prepare_image(
    image: Image,
    containers: Containers,
    arguments: tuple[str, ...],
    *,
    environment: Mapping[str, str],
    given: Mapping[str, str],
    wallet: Path | None,
) -> Ready:
    """Pull the image; return what starts it.

    arguments: of `psyche`. environment: the manager's, updated with the file's values. given: the file's values. The container
    gets all of them and all variables that begin with PSYCHE_. wallet: the wallet's file on this machine. Raises UserError.
    """
    program = containers.found(environment.get("PATH"))
    if containers.local:
        if not await _is_here(program, image, environment):
            message = (
                f"the image {image.reference} is not on this machine, and --local forbids pulling it; build or load it first"
            )
            raise UserError(message)
    else:
        print_line(f"pulling {image.reference}")
        code = await run_tool((program, "pull", image.reference), environment, timeout=PULL_SECONDS)
        if code != 0 and not await _is_here(program, image, environment):
            message = f"{program} could not pull the image {image.reference} (exit code {code}); see its output above"
            raise UserError(message)
        if code != 0:
            print_line(f"{image.reference} could not be pulled; the one that is on this machine is used")

    inside, mounts = dict(environment), []
    names = {*given, *(name for name in environment if name.startswith("PSYCHE_") or name == RAW_WALLET)}
    if wallet is not None:
        mounts.append(_mount("type=bind", f"src={_absolute(wallet)}", f"dst={WALLET}", "readonly"))
        inside[WALLET_NAME] = WALLET
        names.add(WALLET_NAME)
    if CACHE_NAME not in names:
        mounts.append(_mount("type=volume", "src=psyche-cache", f"dst={CACHE}"))
        inside[CACHE_NAME] = CACHE
        names.add(CACHE_NAME)

    def ready() -> Launch:
        name = f"psyche-{secrets.token_hex(4)}"
        options = ["--rm", "--init", "--pull=never", "--network=host", "--shm-size=1g", "--security-opt=no-new-privileges"]
        options += [f"--name={name}", f"--entrypoint={containers.entrypoint}", *_gpus(program, containers)]
        options += [*mounts, *(word for one in sorted(names) if one in inside for word in ("-e", one)), *containers.more]
        return Launch(
            (program, "run", *options, image.reference, *arguments),
            inside,
            end=(program, "stop", "-t", str(END_SECONDS), name),
        )

    return ready


async def _is_here(program: str, image: Image, environment: Mapping[str, str]) -> bool:
    return await succeeds((program, "image", "inspect", image.reference), environment, timeout=LOOK_SECONDS)


def _gpus(program: str, containers: Containers) -> tuple[str, ...]:
    if not containers.gpus:
        return ()

    podman = os.path.basename(program).startswith("podman")  # noqa: PTH119  # a program's name
    return ("--device=nvidia.com/gpu=all",) if podman else ("--gpus=all",)


def _absolute(path: Path) -> Path:
    return path.expanduser().resolve()


def _mount(*fields: str) -> str:
    """An option --mount. Its value is a line of CSV, so that a path may contain commas."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return f"--mount={line.getvalue()}"
