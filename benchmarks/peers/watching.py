"""What members use while they train: bytes of their line, processor seconds, memory. The same way for every system.

A thread looks at each host ten times a second, and once a second for new processes and at their memory. All processes in a host's
network namespace count, daemons and helpers of a system, too.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.peers.lines import counters, processes
from tests.nat.lab import Host

CLOSELY = 10
"""Looks of which one is close."""

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """A host at a moment. time: unix seconds. cpu: processor seconds of its processes so far. memory: bytes, files left out."""

    time: float
    sent: int
    received: int
    cpu: float
    memory: int


def parse_cpu(text: str) -> float:
    """Processor seconds, of user and system, from the text of /proc/PID/stat."""
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def parse_memory(text: str) -> int:
    """Bytes of anonymous and shared memory, parts of it by how many share it, from the text of /proc/PID/smaps_rollup."""
    kilobytes = 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in ("Pss_Anon", "Pss_Shmem"):
            kilobytes += int(value.split()[0])
    return kilobytes * 1024


class Watch:
    """A context manager that samples hosts; `samples` has them by the host's name, in the order of time."""

    def __init__(self, *, every: float = 0.1) -> None:
        self.samples: dict[str, list[Sample]] = {}
        self._hosts: list[Host] = []
        self._used: dict[str, dict[int, float]] = {}
        self._running: dict[str, list[int]] = {}
        self._memory: dict[str, int] = {}
        self._every = every
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def add(self, host: Host) -> None:
        """Look at this host, too."""
        with self._lock:
            self._hosts.append(host)
            self.samples[host.name] = []
            self._used[host.name] = {}
        self.look()

    def look(self, *, closely: bool = True) -> None:
        """Sample all hosts now. closely: look for new processes, and at the memory of all."""
        with self._lock:
            if closely:
                self._running = processes(self._hosts)
            for host in self._hosts:
                self._sample(host, self._running.get(host.name, []), closely=closely)

    def _sample(self, host: Host, numbers: Sequence[int], *, closely: bool) -> None:
        used, memory = self._used[host.name], 0
        for pid in numbers:
            with contextlib.suppress(OSError, ValueError, IndexError):  # it ends just now
                used[pid] = parse_cpu(Path(f"/proc/{pid}/stat").read_text())
                if closely:
                    memory += parse_memory(Path(f"/proc/{pid}/smaps_rollup").read_text())
        if closely:
            self._memory[host.name] = memory
        count, cpu = counters(host), sum(used.values())
        self.samples[host.name].append(Sample(time.time(), count.sent, count.received, cpu, self._memory[host.name]))

    def _run(self) -> None:
        rounds = 0
        while not self._stop.wait(self._every):
            rounds += 1
            self.look(closely=rounds % CLOSELY == 0)


def at(samples: Sequence[Sample], moment: float) -> Sample:
    """What a host had used at a moment, between two samples by the time that had passed."""
    place = bisect_left([sample.time for sample in samples], moment)
    if place == 0:
        return samples[0]
    if place == len(samples):
        return samples[-1]
    before, after = samples[place - 1], samples[place]
    part = (moment - before.time) / max(1e-9, after.time - before.time)
    return Sample(
        moment,
        round(before.sent + part * (after.sent - before.sent)),
        round(before.received + part * (after.received - before.received)),
        before.cpu + part * (after.cpu - before.cpu),
        max(before.memory, after.memory),
    )
