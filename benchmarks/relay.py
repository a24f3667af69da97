"""What a relay costs, which pairs of routers need it, and what it costs a run.

    python -m benchmarks.relay --json

Its own cost: how much it forwards per second of CPU, memory for an idle client, logins per second of CPU. `psyche relay run` is
a process, and its CPU time and memory are measured from outside. Frames are 13 kB, as members send them, one per write, at most
32 under way. Clients are plain sockets in this process; loopback only.

Then `benchmarks.relay_pairs` measures pairs of routers and steps of a relayed run, in a process of its own and a network
namespace (`tools/loopback.sh`). Where the system has no such namespaces these figures are null, and a sentence says why.
`--without-laboratory` leaves them out; they take some minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3
from nacl.signing import SigningKey

ROOT = Path(__file__).parents[1]
FRAME_BYTES = 13_000
IN_FLIGHT = 32
_CONTEXT = "iroh-relay handshake v1 challenge signature"
_REQUEST = (
    b"GET /relay HTTP/1.1\r\nHost: relay\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: iroh-relay-v2\r\n\r\n"
)


def masked(payload: bytes) -> bytes:
    """A client's binary message."""
    mask = os.urandom(4)
    pattern = (mask * (len(payload) // 4 + 1))[: len(payload)]
    body = (int.from_bytes(payload) ^ int.from_bytes(pattern)).to_bytes(len(payload))
    size = len(payload)
    header = struct.pack(">BB", 0x82, 0x80 | size) if size < 126 else struct.pack(">BBH", 0x82, 0xFE, size)
    return header + mask + body


class Client:
    """A logged-in client on a blocking socket."""

    def __init__(self, port: int) -> None:
        key = SigningKey.generate()
        self.id = bytes(key.verify_key)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(_REQUEST)
        received = b""
        while not (found := re.search(rb"\r\n\r\n\x82\x11\x00(.{16})", received, re.DOTALL)):
            received += self._some()
        signature = key.sign(blake3(found[1], derive_key_context=_CONTEXT).digest()).signature
        self.socket.sendall(masked(b"\x01" + self.id + b"\x40" + signature))
        assert self._some() == b"\x82\x01\x02", "the relay refused the login"

    def _some(self) -> bytes:
        data = self.socket.recv(4096)
        assert data, "the relay closed the connection"
        return data


class Relay:
    """The relay's process, as the kernel sees it."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.port = port
        self._folder = Path("/proc") / str(process.pid)

    def cpu_seconds(self) -> float:
        """Of all its threads, in user and kernel."""
        return sum(int(file.read_text().split()[0]) for file in self._folder.glob("task/*/schedstat")) / 1e9

    def resident_bytes(self) -> int:
        """Memory that it holds."""
        return int((self._folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def running_relay(*options: str) -> Iterator[Relay]:
    """`psyche relay run`, until the end of the block."""
    command = [sys.executable, "-m", "psyche_core", "relay", "run", "--access", "open", "--port", "0", "--no-observer"]
    command += ["--max-connections-per-address", "100000", "--log-level", "warning", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = 0
        for line in process.stdout:
            if found := re.match(r"relay http://127\.0\.0\.1:(\d+)/", line):
                port = int(found[1])
            if line == "ready\n":
                break
        try:
            yield Relay(process, port)
        finally:
            process.send_signal(signal.SIGTERM)


def idle_and_logins(relay: Relay, clients: int) -> tuple[float, float]:
    """kB of memory for each of that many idle clients, and logins per second of CPU."""
    Client(relay.port).socket.close()  # what is allocated once
    memory, cpu = relay.resident_bytes(), relay.cpu_seconds()
    idle = [Client(relay.port) for _ in range(clients)]
    result = (relay.resident_bytes() - memory) / clients / 1e3, clients / (relay.cpu_seconds() - cpu)
    for client in idle:
        client.socket.close()
    return result


def forwarded_mb_per_cpu_second(relay: Relay, frames: int, *, size: int = FRAME_BYTES) -> float:
    """MB of frames that one second of CPU forwards from one client to another."""
    sender, receiver = Client(relay.port), Client(relay.port)
    frame = masked(b"\x05" + receiver.id + b"\x00" + (1200).to_bytes(2) + os.urandom(size))
    expected = len(frame) - 4  # the same without the mask
    got, came = 0, threading.Event()

    def read() -> None:
        nonlocal got
        buffer = bytearray(1 << 20)
        while got < frames * expected:
            count = receiver.socket.recv_into(buffer)
            assert count, "the relay closed the receiver"
            got += count
            came.set()

    reading = threading.Thread(target=read)
    reading.start()
    cpu = relay.cpu_seconds()
    for sent in range(frames):
        while sent - got // expected >= IN_FLIGHT:
            came.wait(10)
            came.clear()
        sender.socket.sendall(frame)
    reading.join(60)
    cpu = relay.cpu_seconds() - cpu
    assert got == frames * expected, "frames were lost"
    sender.socket.close()
    receiver.socket.close()
    return frames * size / 1e6 / cpu


def measure(*, frames: int = 20_000, clients: int = 500, times: int = 3) -> dict[str, float]:
    """The figures; of each the median of some runs."""
    rates, memories, logins = [], [], []
    for _ in range(times):
        with running_relay() as relay:
            memory, login = idle_and_logins(relay, clients)
            rates.append(forwarded_mb_per_cpu_second(relay, frames))
        memories.append(memory)
        logins.append(login)
    return {
        "relay_mb_per_cpu_s": round(statistics.median(rates), 1),
        "idle_kb_per_client": round(statistics.median(memories), 1),
        "logins_per_cpu_s": round(statistics.median(logins)),
    }


def in_laboratory() -> dict[str, Any]:
    """The figures of `benchmarks.relay_pairs`; each is None where they cannot be measured, and stderr says why."""
    command = [str(ROOT / "tools" / "loopback.sh"), sys.executable, "-m", "benchmarks.relay_pairs", "--json"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"pairs": None, "training_step_ratio_relayed_over_direct": None}

    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--times", type=int, default=3, help="runs, of which the median is taken")
    parser.add_argument("--without-laboratory", action="store_true", help="only the cost of the relay itself")
    arguments = parser.parse_args()
    figures: dict[str, Any] = dict(measure(frames=arguments.frames, clients=arguments.clients, times=arguments.times))
    if not arguments.without_laboratory:
        figures |= in_laboratory()
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<40} {value}")


if __name__ == "__main__":
    main()
