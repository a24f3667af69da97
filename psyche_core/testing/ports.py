"""Ports for servers that tests start, chosen so that no other process takes one between its choice and its use.

They are below the range from which systems take the ports of outgoing connections and of servers that ask for any port (32768 to
60999 on Linux, 49152 and up elsewhere). Each worker of pytest-xdist has its own part, and each port is used once. A probe alone
is not enough: between it and the server's own bind, any connection of another test may get the port. A server that can choose its
port and report it needs none of this.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import socket

_FIRST, _PARTS, _PART = 10_000, 22, 1000


def free_port() -> int:
    """A port of 127.0.0.1 that no process listens on, and that the system gives to no process that asks for any free port."""
    for _ in range(_PART):
        port = next(_ports)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    message = "all ports for tests are in use"
    raise OSError(message)


def _numbers() -> itertools.cycle[int]:
    worker = re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or "0"
    begin = _FIRST + int(worker) % _PARTS * _PART
    turn = random.SystemRandom().randrange(_PART)  # another pytest on this machine starts at another port
    return itertools.cycle([begin + (turn + place) % _PART for place in range(_PART)])


_ports = _numbers()
