"""A network of our own whose links can be cut: one namespace per member, each on a veth pair to one bridge.

Needs to be root inside a user namespace with a network of its own (`tools/loopback.sh`), and the `ip`, `unshare` and `nsenter`
programs; nothing outside that network is touched, and all of it ends with its last process. Setting a member's end of the pair
down is what a pulled cable is: packets vanish, nobody is told, connections stay open at both ends.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BRIDGE = "psyche0"
SUBNET = "10.77.0"
SERVER = f"{SUBNET}.1"


class LinksUnavailable(Exception):
    """This system does not let us make such a network; the message says what was refused."""


class CuttableLinks:
    """The bridge, with the server's address on it, and a namespace per member. Use `cuttable_links`."""

    def __init__(self) -> None:
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    def inside(self, name: str) -> tuple[str, ...]:
        """A command that runs the words after it in a member's namespace, made at first use. The process keeps its id."""
        if name not in self._holders:
            self._make(name)
        return ("nsenter", f"--net=/proc/{self._holders[name].pid}/ns/net", "--")

    def cut(self, name: str) -> None:
        """Take a member's link down."""
        _ip("link", "set", self._near_end(name), "down")

    def mend(self, name: str) -> None:
        """Bring it up again."""
        _ip("link", "set", self._near_end(name), "up")

    def _near_end(self, name: str) -> str:
        return f"psy{list(self._holders).index(name) + 1}"

    def _make(self, name: str) -> None:
        # A process that only waits holds the namespace open; `ip netns` would want to mount.
        holder = self._holders[name] = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
        ours, theirs = (Path(f"/proc/{pid}/ns/net") for pid in (os.getpid(), holder.pid))
        while ours.readlink() == theirs.readlink():
            assert holder.poll() is None, "the namespace was made a moment ago and cannot be now"
            time.sleep(0.01)
        near = self._near_end(name)
        number = len(self._holders) + 1
        _ip("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _ip("link", "set", near, "master", BRIDGE, "up")
        for arguments in (
            ("address", "add", f"{SUBNET}.{number}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _run(*self.inside(name), "ip", *arguments)

    def close(self) -> None:
        """End the namespaces."""
        for holder in self._holders.values():
            holder.kill()
            holder.wait()
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)


@contextmanager
def cuttable_links() -> Iterator[CuttableLinks]:
    """The network, as long as it is entered. Raises LinksUnavailable."""
    missing = [program for program in ("ip", "unshare", "nsenter") if shutil.which(program) is None]
    if missing:
        message = f"no {missing[0]} program"
        raise LinksUnavailable(message)
    if [name for _, name in socket.if_nameindex() if name != "lo"]:
        message = "not in a network of our own; run the tests with tools/loopback.sh"
        raise LinksUnavailable(message)

    links = CuttableLinks()
    try:
        try:
            _ip("link", "add", BRIDGE, "type", "bridge")
            _ip("address", "add", f"{SERVER}/24", "dev", BRIDGE)
            _ip("link", "set", BRIDGE, "up")
            _run("unshare", "--net", "true")
        except subprocess.CalledProcessError as error:
            raise LinksUnavailable(error.stderr.decode().strip()) from error
        yield links
    finally:
        links.close()


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
