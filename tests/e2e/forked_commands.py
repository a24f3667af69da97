"""A `psyche` for shell scripts whose commands are forked, not started from nothing: see fork_server.py.

A shell has to start some program for each command. This one is so small that it starts in a moment: it sends its arguments,
folder, environment and standard files to the tests, which have the real program forked with them, and ends as that does. If it
is ended first, by a signal or with its script, so is the real one.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from fork_server import REQUEST_BYTES, Forked, ForkServer

PROGRAM = """\
import json, os, signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
request = {"arguments": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect("\\0" + sys.argv[1])
socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
code = int(connection.recv(64) or 125)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
"""What a script starts."""


@contextlib.contextmanager
def forked_commands(folder: Path, forks: ForkServer, *, fresh: str) -> Iterator[Path]:
    """A program `psyche` in a folder, for PATH, while the context lasts.

    fresh: the first two words of commands that start from nothing, as a user starts them.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        name = f"psyche-{uuid.uuid4()}"
        listener.bind(f"\0{name}")  # not a file, whose path must be short
        listener.listen()
        program, psyche = folder / "command.py", folder / "psyche"
        program.write_text(PROGRAM)
        python = shlex.quote(sys.executable)
        psyche.write_text(f"""\
#!/bin/sh
[ "$1 $2" = {shlex.quote(fresh)} ] && exec {python} -m psyche_core "$@"
exec {python} -S -E {shlex.quote(str(program))} {name} "$@"
""")
        psyche.chmod(0o755)
        serving = _Serving(listener, forks)
        serving.start()
        try:
            yield psyche
        finally:
            serving.close()


class _Serving(threading.Thread):
    """Has commands forked until it is closed, which ends those that still run."""

    def __init__(self, listener: socket.socket, forks: ForkServer) -> None:
        super().__init__(daemon=True)
        self._listener = listener
        self._forks = forks
        self._connections: list[socket.socket] = []

    def run(self) -> None:
        commands = []
        with contextlib.suppress(OSError):  # it was shut down
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                commands.append(threading.Thread(target=self._command, args=(connection,), daemon=True))
                commands[-1].start()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # its program has ended
                connection.shutdown(socket.SHUT_RDWR)
        for command in commands:
            command.join()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.join()

    def _command(self, connection: socket.socket) -> None:
        with connection:
            message, files, *_ = socket.recv_fds(connection, REQUEST_BYTES, 3, socket.MSG_CMSG_CLOEXEC)
            if not message:
                return
            request = json.loads(message)
            standard = (files[0], files[1], files[2])
            folder, environment = Path(request["folder"]), request["environment"]
            pid = self._forks.fork("psyche_core", request["arguments"], folder, environment, files=standard)
            for each in files:
                os.close(each)
            process, handle = Forked(self._forks, pid), os.pidfd_open(pid)
            try:
                ended, _, _ = select.select([handle, connection], [], [])
            finally:
                os.close(handle)
            if handle not in ended:  # who asked is gone
                process.kill()
            code = process.wait()
            with contextlib.suppress(OSError):
                connection.send(str(code).encode())
