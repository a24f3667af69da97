"""Clients that are forked from one process which has imported torch already: to import it takes a client most of its time.

A forked client is a process like any other: it has a number, files, signals and an end of its own, and runs
`python -m psyche_core ARGUMENTS` from its first line, in another network namespace if asked. What it shares with its like is what
was imported, and the seed with which Python hashes strings. Members that are started from nothing, as a user starts them, train
in test_testnet.py and test_solana.py.

This file is both sides: tests import it, and it is the program that is forked.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

IMPORTED = (
    "psyche_core.cli.commands.member.client",
    "psyche_core.client.setup.assemble",
    "psyche_core.builtin.hf_models",
    "psyche_backend_tcp.client",
    "psyche_optim_distro.optimizer",
    "psyche_optim_distro.backends.numba.compress",
    "psyche_optim_distro.backends.numba.update",
    "psyche_p2p_quic.transport",
    "transformers.models.llama.modeling_llama",
)
"""What a client of these tests imports sooner or later."""

CLONE_NEWNET = 0x40000000
REQUEST_BYTES = 1 << 20
SECONDS = 60.0


class Process(Protocol):
    """What tests use of a process; subprocess.Popen has it."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


class ForkServer:
    """Starts the program with the first fork."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: int, network: str = ""
    ) -> Process:
        """Run `python -m psyche_core ARGUMENTS` in a folder.

        log: file that gets its output and errors. network: file of the network namespace to run in, "" for ours.
        """
        request = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment), "network": network}
        return _Forked(self, int(self.ask(request, log)["pid"]))

    def ask(self, request: Mapping[str, Any], *files: int) -> dict[str, Any]:
        """Send a request to the program and return its answer."""
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.settimeout(SECONDS)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env={name: value for name, value in os.environ.items() if not name.startswith("PSYCHE_")}
                    | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                )
        socket.send_fds(self._socket, [json.dumps(request).encode()], files)
        answer = self._socket.recv(REQUEST_BYTES)
        assert answer, "the fork server is gone"
        return dict(json.loads(answer))

    def close(self) -> None:
        """End the program."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(timeout=SECONDS)


class _Forked:
    """A process that was forked; like subprocess.Popen."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        if self._code is None:
            self._code = self._server.ask({"ended": self.pid})["code"]
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                assert timeout is not None
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            handle = os.pidfd_open(self.pid)  # it cannot be another's number: nobody has waited for it yet
            try:
                select.select([handle], [], [], left)
            finally:
                os.close(handle)
        return code

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


# ---------------------------------------------------------------------------------------------------------------- the program


def serve(connection: socket.socket) -> None:
    """Answer requests until the tests close the connection. Returns in each forked process, which is then the client."""
    for name in IMPORTED:
        __import__(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: who forks must have one"
    gc.freeze()
    while True:
        message, files, *_ = socket.recv_fds(connection, REQUEST_BYTES, 1)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = {"code": os.waitstatus_to_exitcode(status) if pid else None}
        else:
            pid = os.fork()
            if not pid:
                connection.close()
                become(request, files[0])
                return
            answer = {"pid": pid}
            os.close(files[0])
        with contextlib.suppress(BrokenPipeError):
            connection.send(json.dumps(answer).encode())


def become(request: Mapping[str, Any], log: int) -> None:
    """Be in the folder and the environment that a client was asked for, with its arguments and its log."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if request["network"]:
        enter_network(request["network"])
    os.chdir(request["folder"])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["environment"])
    more = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in known]
    sys.path[:1] = [request["folder"], *more]  # as `python -m`
    sys.argv = ["psyche_core", *request["arguments"]]


def enter_network(path: str) -> None:
    """Move this thread, the only one, to a network namespace, as `nsenter --net=PATH` does."""
    with Path(path).open("rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)


def main() -> NoReturn:
    """The program."""
    serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("psyche_core", run_name="__main__", alter_sys=True)
    raise SystemExit


if __name__ == "__main__":
    main()
