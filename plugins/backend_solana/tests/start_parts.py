"""For tests of start mode: a client that only notes what happens to it, as a program, a package and a container's."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from psyche_backend_solana.commands.client.environment import PLUGINS

SECONDS = 60.0

STUB = """
import json, os, signal, sys, time

def note(what, **facts):
    with open(os.environ["STUB_LOG"], "a") as log:
        log.write(json.dumps({"what": what, "pid": os.getpid(), **facts}) + "\\n")

def client(name):
    told = []

    def hear(number, frame):
        told.append(number)
        note("told", name=name, signal=number)
        if len(told) > 1:
            os._exit(130)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hear)
    note("started", name=name, argv=sys.argv[1:], environment=dict(os.environ))
    hold = os.environ.get("STUB_HOLD")
    while not told or (hold and not os.path.exists(hold)):
        time.sleep(0.01)
    note("left", name=name)
"""
"""Waits until it is told to leave; with STUB_HOLD until that file is there, too. A second telling ends it at once with 130."""

DOCKER = """
program, words = sys.argv[0], sys.argv[1:]
note("docker", words=words)
pid = os.environ["STUB_LOG"] + ".pid"
if words[0] == "pull":
    sys.exit(int(os.environ.get("STUB_PULL", "0")))
elif words[:2] == ["image", "inspect"]:
    sys.exit(0 if os.environ.get("STUB_HERE") else 1)
elif words[0] == "stop":
    os.kill(int(open(pid).read()), signal.SIGKILL)
elif words[0] == "run":
    open(pid, "w").write(str(os.getpid()))
    client("image")
"""


def write_stub(path: Path, rest: str = 'client("stub")\n') -> Path:
    """A program of the stub's code, and what follows it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{STUB}\n{rest}")
    path.chmod(0o755)
    return path


def write_wheel(folder: Path, name: str, version: str, *, files: dict[str, str], more: str = "", commands: str = "") -> None:
    """A wheel, as pip wants it. more: further lines of METADATA; commands: console scripts."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    content = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n{more}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{commands}\n",
    }
    lines = [f"{path},sha256={_hash(text)},{len(text.encode())}" for path, text in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in content.items():
            wheel.writestr(path, text)


def write_client_wheels(folder: Path, version: str) -> None:
    """psyche-core of a version, whose client is the stub, and what its extra `solana` needs; and newer plugins beside them.

    The client tells its version only if the plugins are of the same.
    """
    extra = 'Provides-Extra: solana\nRequires-Dist: psyche-backend-solana; extra == "solana"\n'
    plugins = [name.replace("-", "_") for name in PLUGINS]
    imports = f"import {', '.join(plugins)}\n    assert {{{', '.join(f'{name}.version' for name in plugins)}}} == {{{version!r}}}"
    code = STUB + f"\n\ndef main():\n    {imports}\n    client({version!r})\n"
    write_wheel(folder, "psyche_core", version, files={"psyche_core.py": code}, more=extra, commands="psyche = psyche_core:main")
    for name in plugins:
        for its in (version, "99.0"):
            write_wheel(folder, name, its, files={f"{name}.py": f"version = {its!r}\n"})


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def notes(log: Path, what: str | None = None) -> list[dict[str, Any]]:
    """What stubs have noted; only whole lines."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    return [one for one in told if what in (None, one["what"])]


async def until(met: Callable[[], Any], *, seconds: float = SECONDS) -> None:
    """Wait for it. Fails when it takes too long."""
    with anyio.fail_after(seconds):
        while not met():
            await anyio.sleep(0.02)
