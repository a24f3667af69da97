"""A Redis of this machine's, as a process: it can be killed, and come back without what it had."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from psyche_core.testing.ports import free_port

PROGRAM = shutil.which("redis-server")


class RedisProcess:
    """folder: where it runs. It keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Return once it takes connections."""
        assert PROGRAM is not None
        options = [
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(self._folder),
        ]
        self._process = subprocess.Popen([PROGRAM, *options], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if "Ready to accept connections" in line:
                return
        raise AssertionError("redis-server ended: " + "".join(said))

    def kill(self) -> None:
        """It ends at once, and says goodbye to nobody."""
        if self._process is not None and self._process.stdout is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
