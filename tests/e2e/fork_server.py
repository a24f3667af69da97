"""Programs that are forked from one process which has imported torch already: to import it takes a client most of its time.

A forked program is a process like any other: it has a number, files, signals and an end of its own, and runs
`python -m MODULE ARGUMENTS` from its first line, in another network namespace if asked. What it shares with its like is what
was imported, and the seed with which Python hashes strings; and it does not take all that apart when it ends (`end`). Members
that are started from nothing, as a user starts them, train in test_solana.py. `psyche testnet start` has a fork server of its own
(psyche_core/cli/fork_server.py).

This file is both sides: tests import it, and it is the program that is forked.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

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
    "psyche_backend_solana.commands.run.status",
    "psyche_backend_solana.commands.run_manager",
    "psyche_backend_solana.commands.solana",
)
"""What a client or a command of these tests imports sooner or later."""

PYTEST = ("pytest", "-q", "-W", "error", "-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")
"""Pytest as a program that is forked: a warning is an error, but for one about what was imported before."""

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
        self._asking = threading.Lock()

    def start(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: int, network: str = ""
    ) -> Process:
        """Run `python -m psyche_core ARGUMENTS` in a folder.

        log: file that gets its output and errors. network: file of the network namespace to run in, "" for ours.
        """
        with Path(os.devnull).open("rb") as nothing:
            files = (nothing.fileno(), log, log)
            return Forked(self, self.fork("psyche_core", arguments, folder, environment, files=files, network=network))

    def fork(
        self,
        module: str,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        *,
        files: tuple[int, int, int],
        network: str = "",
    ) -> int:
        """Run `python -m MODULE ARGUMENTS` in a folder and return its process id. files: its standard ones."""
        request = {
            "module": module,
            "arguments": list(arguments),
            "folder": str(folder),
            "environment": dict(environment),
            "network": network,
        }
        return int(self.ask(request, *files)["pid"])

    def run(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run of `python -m MODULE ARGUMENTS` without a shell; it reads nothing. command: module and arguments."""
        process = ForkedPopen(self, command, cwd=cwd, env=env, text=True)
        try:
            out, errors = process.communicate(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(list(command), process.wait(), out, errors)

    def ask(self, request: Mapping[str, Any], *files: int) -> dict[str, Any]:
        """Send a request to the program and return its answer."""
        with self._asking:
            return self._ask(request, *files)

    def _ask(self, request: Mapping[str, Any], *files: int) -> dict[str, Any]:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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


@functools.cache
def shared() -> ForkServer:
    """The one of all tests of this process."""
    server = ForkServer()
    atexit.register(server.close)
    return server


class Forked:
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


class ForkedPopen(Forked):
    """A forked program with pipes to its standard files. Has what tests and `LocalRanks` use of subprocess.Popen.

    text: whether the pipes are of text. stdout: PIPE, or DEVNULL to drop its output.
    """

    def __init__(
        self,
        server: ForkServer,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str],
        text: bool = False,
        stdout: int = subprocess.PIPE,
    ) -> None:
        pipes = [os.pipe(), os.pipe()[::-1], os.pipe()[::-1]]  # what it gets, and what we keep
        module, *arguments = command
        files = (pipes[0][0], pipes[1][0], pipes[2][0])
        super().__init__(server, server.fork(module, arguments, cwd or Path.cwd(), env, files=files))
        for each in files:
            os.close(each)
        mode = "" if text else "b"
        self.stdin: IO[Any] = os.fdopen(pipes[0][1], f"w{mode}")
        self.stdout: IO[Any] = os.fdopen(pipes[1][1], f"r{mode}")
        self.stderr: IO[Any] = os.fdopen(pipes[2][1], f"r{mode}")
        if stdout == subprocess.DEVNULL:
            self._drop()

    def _drop(self) -> None:
        """Read what it writes to stdout, and forget it."""

        def read() -> None:
            with self.stdout:
                while self.stdout.read(1 << 16):
                    pass

        threading.Thread(target=read, daemon=True).start()

    @property
    def returncode(self) -> int | None:
        """The exit code, as `poll`."""
        return self.poll()

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """All that it writes, until its end. Raises subprocess.TimeoutExpired."""
        said: dict[str, Any] = {}

        def read(name: str, stream: IO[Any]) -> None:
            with stream:
                said[name] = stream.read()

        readers = [threading.Thread(target=read, args=each) for each in (("out", self.stdout), ("errors", self.stderr))]
        self.stdin.close()
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return said["out"], said["errors"]


# ---------------------------------------------------------------------------------------------------------------- the program


def serve(connection: socket.socket) -> str:
    """Answer requests until the tests close the connection. Returns the module to run in each forked process."""
    gc.disable()  # what imports make stays: to search it for garbage takes a fifth of the time
    for name in IMPORTED:
        __import__(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: who forks must have one"
    gc.freeze()
    gc.enable()
    while True:
        message, files, *_ = socket.recv_fds(connection, REQUEST_BYTES, 3)
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
                become(request, files)
                return str(request["module"])
            answer = {"pid": pid}
            for each in files:
                os.close(each)
        with contextlib.suppress(BrokenPipeError):
            connection.send(json.dumps(answer).encode())


def become(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Be in the folder and the environment that a program was asked for, with its arguments and its standard files."""
    for number, each in enumerate(files):
        os.dup2(each, number)
        os.close(each)
    if request["network"]:
        enter_network(request["network"])
    os.chdir(request["folder"])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["environment"])
    more = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in known]
    sys.path[:1] = [request["folder"], *more]  # as `python -m`
    sys.argv = [request["module"], *request["arguments"]]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


def enter_network(path: str) -> None:
    """Move this thread, the only one, to a network namespace, as `nsenter --net=PATH` does."""
    with Path(path).open("rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)


def main() -> NoReturn:
    """The program."""
    module = serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code: object = 0
    except SystemExit as ended:
        code = ended.code
    end(code)


def end(code: object) -> NoReturn:
    """End this process as SystemExit does, but leave to the system what was imported: Python takes most of a second to free it.

    What goes wrong while Python does so is found with programs that start from nothing, and those of `psyche testnet start`.
    """
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends its processes: waits for threads and executors
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    main()
