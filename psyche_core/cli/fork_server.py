"""`python -m psyche_core.cli.fork_server SOCKET MODULE... ROOM`: imports modules, then forks a `psyche` program for each request.

A member of a run spends most of its start importing torch and transformers. `psyche testnet start` starts this process, which
imports them once; each client is then forked from it and begins with everything imported. A forked program is a process like any
other: it has a number, a session, standard files, signals and an exit code of its own, shows its own command line to `ps`, and
ends with its starter (`end_with_parent`). What it shares with the others forked here is what was imported, and the seed with
which Python hashes strings.

Only a process with one thread and no files of its own may be forked: the locks of other threads would stay locked in the child,
and two processes would use one file. So this process computes nothing, and before each fork it counts its threads and files. If
something that was imported started a thread or opened a file, it refuses, and its starter starts the program as usual.

SOCKET is the number of a SOCK_SEQPACKET socket; ROOM is a long word, in whose place forked programs show their command lines. A
request is the list of the program's arguments in JSON, with the descriptors of its stdin, stdout and stderr; the answer is
`{"pid": NUMBER}` or `{"refused": REASON}`. The process that asks must be a child subreaper (prctl(2)): programs are forked twice,
so that they become its children, and it waits for them as for any other. This process ends when the socket is closed. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import socket
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from psyche_core.cli import end_with_parent

REQUEST_BYTES = 1 << 17
"""Longest request; the kernel's own limit for the arguments of one program is of this size for each."""

_STANDARD = (0, 1, 2)
_ARG_START = 45
"""Place of arg_start in /proc/self/stat after the name in brackets (proc(5): field 48); arg_end is the next."""


def main() -> None:
    """Import the modules, then serve requests. Returns in each forked process, once it is to run its program."""
    number, *modules, _room = sys.argv[1:]
    show_command([sys.executable, "-m", "psyche_core.cli.fork_server", *modules])
    connection = socket.socket(fileno=int(number))
    broken = _import_all(modules)
    gc.freeze()  # a collection in a child must not write to every page that it shares
    while True:
        request, descriptors, *_ = socket.recv_fds(connection, REQUEST_BYTES, len(_STANDARD))
        if not request:
            os._exit(0)
        reason = broken or obstacle(allowed={*_STANDARD, connection.fileno(), *descriptors})
        if reason:
            print(f"not forked: {reason}", file=sys.stderr, flush=True)
            answer: dict[str, object] = {"refused": reason}
        else:
            child = _fork_twice()
            if child is None:
                connection.close()
                become(json.loads(request), descriptors)
                return
            answer = {"pid": child} if child else {"refused": "the system cannot fork another process"}
        for each in descriptors:
            os.close(each)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send(json.dumps(answer).encode())


def obstacle(*, allowed: Collection[int]) -> str:
    """Why this process must not be forked; empty if it may be. allowed: descriptors that it may have."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        return f"it has {threads} threads"

    others = [each for each in _descriptors() if each not in allowed]
    return f"it has files open: {', '.join(map(_target, others))}" if others else ""


def become(arguments: Sequence[str], descriptors: Sequence[int]) -> None:
    """Be the program that was asked for: its standard files, its arguments, random numbers of its own."""
    for number, each in zip(_STANDARD, descriptors, strict=True):
        os.dup2(each, number)
        os.close(each)
    sys.argv = [str(end_with_parent.__file__), *arguments]
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()  # Python seeds its own generator after a fork; torch's has the same seed in every new process
    show_command([sys.executable, "-m", end_with_parent.__name__, *arguments])


def show_command(words: Iterable[str]) -> None:
    """Let /proc/self/cmdline, and so `ps` and `pgrep -f`, show a command line, as much of it as there is room for.

    It is written over this process's own arguments, of which Python has copies. If their last byte is not zero, the kernel takes
    the whole for one text that ends at its first zero, as programs that use setproctitle(3) write it.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        start, end = (int(field) for field in fields[_ARG_START : _ARG_START + 2])
    except (OSError, ValueError):
        return

    room = end - start - 2
    if start and room > 0:
        text = os.fsencode(" ".join(words))[:room]
        ctypes.memmove(start, text + bytes(room + 1 - len(text)) + b"\x01", room + 2)


def _import_all(modules: Iterable[str]) -> str:
    """Import modules. Returns the reason why not all could be imported, or nothing."""
    gc.disable()  # what imports make stays
    try:
        for name in modules:
            importlib.import_module(name)
    except Exception as error:  # a library can fail in any way; the program itself will say what is wrong
        return f"cannot import what its programs need: {type(error).__name__}: {error}"
    finally:
        gc.enable()

    return ""


def _fork_twice() -> int | None:
    """Fork a process that is no child of this one, in a session of its own. Returns its number, 0 if that failed, None in it."""
    reading, writing = os.pipe()
    try:
        between = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return 0

    if not between:
        os.close(reading)
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            os._exit(1)
        os.setsid()
        os.write(writing, str(os.getpid()).encode())
        os.close(writing)
        return None

    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        number = int(told.read() or 0)
    os.waitpid(between, 0)
    return number


def _descriptors() -> list[int]:
    """This process's open files, in order."""
    found = sorted(int(each.name) for each in Path("/proc/self/fd").iterdir())
    return [each for each in found if _is_open(each)]  # not the folder's own, which is closed by now


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _target(descriptor: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return str(descriptor)


if __name__ == "__main__":
    main()
    end_with_parent.run()
