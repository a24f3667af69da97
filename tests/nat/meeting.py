"""Members that meet in the laboratory: starts relay and members there, and waits for what they tell."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from psyche_p2p_quic.addresses.peer_address import PeerAddress
from tests.nat.lab import FIXED_PORT, KINDS, Host, Lab

ROOT = Path(__file__).parents[2]
RELAY_PORT = 3340
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02

Told = dict[str, Any]


def expected(one: Host, other: Host) -> str:
    """The path between two hosts that the kinds of their routers allow."""
    if one.router is not None and one.router is other.router:
        return "direct"

    kinds = {one.kind if one.kind != "lan" else "port", other.kind if other.kind != "lan" else "port"}
    if "noudp" in kinds:
        return "relayed"
    if {one.kind, other.kind} == {"sym6"}:
        return "direct"

    symmetric = [host for host in (one, other) if host.kind in ("sym", "sym6")]
    narrow = [host for host in (one, other) if host.kind in ("port", "shift", "lan", "sym", "sym6")]
    return "relayed" if symmetric and len(narrow) == 2 else "direct"


@dataclass
class Voice:
    """A member, and what it has told so far."""

    host: Host
    process: subprocess.Popen[str]
    told: list[Told] = field(default_factory=list)

    def listen(self) -> None:
        """Read what it tells, in a thread."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.told.append(json.loads(line))

    @property
    def paths(self) -> dict[str, str]:
        """The newest path to each peer that it told of."""
        return {each["peer"]: each["path"] for each in self.told if each["event"] == "path"}

    def of(self, event: str, peer: str | None = None) -> list[Told]:
        """What it told of one kind."""
        return [each for each in self.told if each["event"] == event and peer in (None, each.get("peer"))]


class Meeting:
    """A context manager: a relay, and members that are added. folder: an empty one, where addresses are exchanged."""

    def __init__(self, lab: Lab, folder: Path, *, observer: bool = True) -> None:
        self.lab = lab
        self.voices: dict[str, Voice] = {}
        self.url = f"http://{lab.relay.address}:{RELAY_PORT}"
        self.relay: subprocess.Popen[str] | None = None
        self._folder = folder
        self._observer = observer
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.start_relay()
        return self

    def __exit__(self, *_: object) -> None:
        for voice in self.voices.values():
            voice.process.kill()
            voice.process.wait()
        for thread in self._threads:
            thread.join(10)

    def start_relay(self) -> None:
        """Start the relay, with the key that it always has, and wait until it listens."""
        key = self._folder / "relay.key"
        if not key.exists():
            key.write_bytes(bytes(range(32)))
            key.chmod(0o600)
        self.relay = _started_relay(self.lab.relay, "-i", str(key), "--observer" if self._observer else "--no-observer")

    @staticmethod
    @contextlib.contextmanager
    def second_relay(host: Host) -> Iterator[str]:
        """Another relay on another host; gives its URL."""
        process = _started_relay(host)
        try:
            yield f"http://{host.address}:{RELAY_PORT}"
        finally:
            process.kill()
            process.wait()

    def stop_relay(self) -> None:
        """Kill it."""
        assert self.relay is not None
        self.relay.kill()
        self.relay.wait()

    def join(self, host: Host, *options: str, relay: str | None = None) -> Voice:
        """Start a member on a host."""
        process = host.start(
            sys.executable,
            "-m",
            "tests.nat.member",
            host.name,
            str(self._folder),
            "--relay",
            relay or self.url,
            "--port",
            str(FIXED_PORT),
            *options,
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            cwd=str(ROOT),
        )
        voice = Voice(host, process)
        self.voices[host.name] = voice
        thread = threading.Thread(target=voice.listen, daemon=True)
        thread.start()
        self._threads.append(thread)
        return voice

    def published(self, voice: Voice) -> set[str]:
        """The IP addresses that a member has published now."""
        content = (self._folder / f"{voice.host.name}.address").read_bytes()
        return {ip for ip, _ in PeerAddress.decode(content[32:]).sockets}

    def pairs(self) -> Iterator[tuple[Voice, Voice]]:
        """Each pair of members once."""
        voices = list(self.voices.values())
        for at, one in enumerate(voices):
            for other in voices[at + 1 :]:
                yield one, other

    def until(
        self,
        holds: Callable[[], object],
        what: str,
        *,
        seconds: float = WAIT_SECONDS,
        missing: Callable[[], object] = lambda: "",
    ) -> float:
        """Wait until something holds; returns how long it took. Raises AssertionError with all paths and what is missing."""
        began = time.monotonic()
        while not holds():
            assert time.monotonic() - began < seconds, f"waited {seconds:g} s for {what}: {missing()} {self.shown()}"
            ended = [voice.host.name for voice in self.voices.values() if voice.process.poll() is not None]
            assert not ended, f"ended: {ended}"
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began

    def shown(self) -> dict[str, dict[str, str]]:
        """Everybody's paths."""
        return {name: voice.paths for name, voice in self.voices.items()}

    def until_met(self, *, seconds: float = WAIT_SECONDS) -> None:
        """Wait until each pair has had the path that its routers allow, and fail if one was direct that should not be.

        A machine that is busy with many members may lose a connection now and then, so that it never has all of them at once.
        """

        def missing() -> list[str]:
            return [
                f"{one.host.name}-{other.host.name}"
                for one, other in self.pairs()
                for voice, peer in ((one, other.host.name), (other, one.host.name))
                if expected(one.host, other.host) not in {each["path"] for each in voice.of("path", peer)}
            ]

        self.until(lambda: not missing(), "each pair's path", seconds=seconds, missing=missing)
        wrong = [
            (one.host.name, other.host.name)
            for one, other in self.pairs()
            if expected(one.host, other.host) == "relayed"
            and any(each["path"] == "direct" for each in one.of("path", other.host.name))
        ]
        assert wrong == []

    def until_paths(self, pairs: Iterable[tuple[Voice, Voice, str]], *, seconds: float = WAIT_SECONDS) -> None:
        """Wait until pairs have these paths, as both ends see it."""
        wanted, end = list(pairs), time.monotonic() + seconds
        while True:
            wrong = [
                f"{one.host.name}-{other.host.name}, not {path}"
                for one, other, path in wanted
                if one.paths.get(other.host.name) != path or other.paths.get(one.host.name) != path
            ]
            if not wrong:
                return

            assert time.monotonic() < end, f"{wrong}: {self.shown()}"
            time.sleep(POLL_SECONDS)


def _started_relay(host: Host, *options: str) -> subprocess.Popen[str]:
    """A relay that listens and serves everybody."""
    relay = host.start(
        sys.executable,
        "-m",
        "psyche_core",
        *("relay", "run", "--host", host.address, "--port", str(RELAY_PORT), "--access", "open", *options),
        *("--log-level", "warning"),
        stdout=subprocess.PIPE,
        cwd=str(ROOT),
    )
    assert relay.stdout is not None
    for line in relay.stdout:
        if line.strip() == "ready":
            return relay

    message = "the relay did not start"
    raise AssertionError(message)


def pair_table(meeting: Meeting) -> dict[str, dict[str, object]]:
    """Path, and the time to a direct one, for each pair of kinds; the slower end of the slowest pair counts."""
    table: dict[str, dict[str, object]] = {}
    for one, other in meeting.pairs():
        first, second = sorted((one.host.kind, other.host.kind), key=KINDS.index)
        direct = [
            each["seconds"]
            for voice, peer in ((one, other.host.name), (other, one.host.name))
            for each in voice.of("path", peer)
            if each["path"] == "direct"
        ]
        entry = table.setdefault(f"{first}-{second}", {"direct": True, "ms": 0})
        entry["direct"] = bool(direct) and bool(entry["direct"])
        entry["ms"] = round(1000 * max(direct)) if direct else None
    return table
