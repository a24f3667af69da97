"""Members in network namespaces of their own on one bridge, each with a line of so many Mbit/s up and down.

The namespaces are those of the tests' network laboratory (tests/nat/lab.py), which needs root in a user namespace:
`tools/loopback.sh`. A line is a token bucket (`tc ... tbf`) at both of its ends. There is no added delay: the kernels we measure
on have no netem. The service that members meet at (a coordinator, a lighthouse) has a host of its own with no limit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from tests.nat.lab import Host, Lab, missing

QUEUE_MS = 400
"""How long a packet may wait in front of a line before it is dropped: the buffer of a home router."""

BURST_SECONDS = 0.01
LEAST_BURST_BYTES = 16_384


def why_not() -> str:
    """Why there can be no shaped lines here, "" where there can."""
    reason = missing()
    if reason:
        return reason
    try:
        with Lines(10.0) as lines:
            lines.member("probe")
    except OSError as error:
        return f"lines cannot be shaped here: {error} (Debian: apt install iproute2)"
    return ""


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes of a host's interface, headers of IP and Ethernet included."""

    sent: int
    received: int


def parse_counters(text: str, interface: str = "eth0") -> Counters:
    """Counters of an interface from the text of /proc/PID/net/dev. Raises ValueError if it is not there."""
    for line in text.splitlines():
        name, colon, values = line.partition(":")
        if colon and name.strip() == interface:
            fields = values.split()
            return Counters(sent=int(fields[8]), received=int(fields[0]))
    message = f"there is no interface {interface}"
    raise ValueError(message)


def tbf(megabits: float) -> tuple[str, ...]:
    """The words of `tc` for a line of that speed."""
    burst = max(LEAST_BURST_BYTES, int(megabits * 1e6 / 8 * BURST_SECONDS))
    return ("root", "tbf", "rate", f"{megabits:g}mbit", "burst", str(burst), "latency", f"{QUEUE_MS}ms")


class Lines:
    """A context manager: the laboratory, with hosts for members and one for what they meet at.

    megabits: of each member's line in each direction; None for no limit.
    """

    def __init__(self, megabits: float | None) -> None:
        self._megabits = megabits
        self._lab = Lab()

    def __enter__(self) -> Self:
        self._lab.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._lab.hosts:
            kill_all(host)
        self._lab.__exit__()

    @property
    def service(self) -> Host:
        """The host without a limit."""
        return self._lab.relay

    def member(self, name: str) -> Host:
        """A new host whose line is shaped."""
        host = self._lab.public(name)
        if self._megabits is not None:
            host.space.do("tc", "qdisc", "add", "dev", "eth0", *tbf(self._megabits))
            self._lab.internet.do("tc", "qdisc", "add", "dev", host.port, *tbf(self._megabits))
        return host


def start(
    host: Host, *command: str, folder: Path, log: IO[str], environment: dict[str, str] | None = None, stdout: int | None = None
) -> subprocess.Popen[str]:
    """Start a program on a host whose own name is its address, so that programs which publish their host's name are reached."""
    named = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host.address, *command)
    return host.start(*named, stdout=log if stdout is None else stdout, stderr=log, env=environment, cwd=str(folder))


def counters(host: Host) -> Counters:
    """What a host has sent and received so far."""
    return parse_counters(Path(f"/proc/{host.space.pid}/net/dev").read_text())


def processes(hosts: list[Host]) -> dict[str, list[int]]:
    """Numbers of all processes on each host, by its name; the laboratory's own holders are left out."""
    by_space = {Path(f"/proc/{host.space.pid}/ns/net").stat().st_ino: host for host in hosts}
    found: dict[str, list[int]] = {host.name: [] for host in hosts}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended, or is not ours
                host = by_space.get((entry / "ns" / "net").stat().st_ino)
                if host is not None and int(entry.name) != host.space.pid:
                    found[host.name].append(int(entry.name))
    return found


def kill_all(host: Host, number: signal.Signals = signal.SIGKILL, *, seconds: float = 5.0) -> None:
    """Send a signal to everything on a host; after SIGKILL wait until it is gone."""
    end = time.monotonic() + seconds
    while found := processes([host])[host.name]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        for process in host.processes:
            process.poll()
        if number != signal.SIGKILL or time.monotonic() > end:
            return
        time.sleep(0.05)
