"""`psyche relay run` as a process: what it prints, how it ends, whom it serves, and what strangers can do to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import struct
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner
from nacl.signing import SigningKey
from websockets.exceptions import ConnectionClosed

from plugins.p2p_quic.tests.relay_parts import TIMEOUT, Refused, RelayClient, answer, open_socket, received
from psyche_core.cli.failures import describe_failure
from psyche_core.coordinator.commands import Withdraw
from psyche_core.hookspecs import BackendContext, ServerContext
from psyche_core.testing.backend import small_state
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.address_observer.protocol import ObserverLocation
from psyche_p2p_quic.relay_program import command

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]
KEY = SigningKey(b"\x01" * 32)


class RelayProcess:
    """A running one. log: lines of standard error so far."""

    def __init__(self, process: asyncio.subprocess.Process, lines: list[str]) -> None:
        self.process = process
        self.lines = lines
        self.log: list[str] = []
        self._changed = asyncio.Event()
        self.url = lines[0].removeprefix("relay ") if lines else ""
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line.decode().rstrip())
            self._changed.set()

    async def logged(self, text: str) -> str:
        """Wait for a line with that text."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                for line in self.log:
                    if text in line:
                        return line
                self._changed.clear()
                await self._changed.wait()

    async def ended(self) -> int:
        """Its exit code."""
        code = await asyncio.wait_for(self.process.wait(), TIMEOUT)
        await self.reading
        return code

    def page(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=TIMEOUT) as page:
            return bytes(page.read())

    def peak_bytes(self) -> int:
        """The most memory that it has ever held."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024


@contextlib.asynccontextmanager
async def relay_process(*options: object) -> AsyncIterator[RelayProcess]:
    """`psyche relay run --port 0 OPTIONS`, until the end of the block."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PSYCHE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "psyche_core", "relay", "run", "--port", "0", *map(str, options),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(60):
            async for line in process.stdout:
                lines.append(line.decode().rstrip())
                if lines[-1] == "ready":
                    break
        relay = RelayProcess(process, lines)
        yield relay
        if process.returncode is None:
            process.terminate()
        assert not [line for line in relay.log if "Traceback" in line or "ERROR" in line]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.quic
async def test_what_it_prints_and_how_sigterm_ends_it() -> None:
    async with relay_process("--access", "open") as relay:
        assert relay.lines[1] == "for everybody"
        assert "tokens can be read on the way; contents cannot" in relay.lines[3]
        assert "--host 0.0.0.0 lets others in" in relay.lines[4]
        location = ObserverLocation.decode(await asyncio.to_thread(relay.page, "observer"))
        assert relay.lines[2] == f"address observer UDP port {location.port}, key {location.key.hex()}"
        assert relay.url.endswith(f":{location.port}/"), "one number for both"

        async with RelayClient.login(relay.url, key=KEY) as client:
            relay.process.send_signal(signal.SIGTERM)
            assert (await client.frame())[:1] == b"\x0c"
            assert await client.closed() == 1001
        assert await relay.ended() == 0
        assert "8a88e3dd74 connected from 127.0.0.1" in relay.log[0]
        assert "stopping: telling 1 clients" in relay.log[1]


async def test_an_https_url_without_a_certificate_asks_for_something_that_does_tls() -> None:
    async with relay_process("--access", "open", "--no-observer", "--url", "https://relay.example.org") as relay:
        assert (
            "note: without --tls-cert this relay speaks plain HTTP; what members reach at the URL must do TLS for it"
            in relay.lines
        )


async def test_ctrl_c_ends_it_with_130() -> None:
    async with relay_process("--access", "open", "--no-observer") as relay:
        relay.process.send_signal(signal.SIGINT)
        assert await relay.ended() == 130


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "say who may use the relay"),
        (["--access", "members"], "--access members needs --run-id"),
        (["--access", "open", "--run-id", "x"], "--access members and --run-id belong together"),
        (["--access", "token"], "--access token and --token-file FILE belong together"),
        (["--token-file", "missing.txt"], "cannot read the token file missing.txt: No such file"),
        (["--token-file", "empty.txt"], "the token file empty.txt holds no token"),
        (["--run-id", "x", "--run-id", "y", "--server-addr", "a:1"], "one --server-addr for each --run-id, got 1 for 2"),
        (["--run-id", "x", "--no-observer"], "needs the coordinator's address; give --server-addr"),
        (["--run-id", "x", "--server-addr", "nonsense", "--no-observer"], "expected a server address like"),
        (["--access", "open", "--host", "127.0.0.1.name"], "--host is an IP address"),
        (["--access", "open", "--url", "relay.example.org:3340"], "the URL for members is http://HOST:PORT or https://"),
        (["--access", "open", "--url", "http://relay.example.org:99999"], "the URL for members is http://HOST:PORT or https://"),
        (["--access", "open", "--url", "http://0.0.0.0:3340"], "0.0.0.0 means every address of this machine, which nobody"),
        (["--access", "open", "--url", "https://[::]"], ":: means every address of this machine, which nobody"),
        (["--access", "open", "--url", "http://0:3340"], "0 means every address of this machine, which nobody"),
        (["--access", "open", "--tls-cert", "c.pem"], "TLS needs both"),
        (["--access", "open", "--server-addr", "a:1"], "one --server-addr for each --run-id, got 1 for 0"),
        (["--access", "open", "--backend", "solana"], "--backend is for the coordinator of --run-id"),
        (["--access", "open", "--no-observer", "--observer-port", "1"], "--no-observer and --observer-port exclude each other"),
        (["--access", "open", "--client-rate", "9", "--total-rate", "8"], "--client-rate 9.0 is over --total-rate 8.0"),
        (["--access", "open", "--host", "127.0.0.1", "--host", "127.0.0.2"], "one IPv4 and one IPv6 address"),
        (["--access", "open", "--client-rate", "nan"], "--client-rate nan: expected a number"),
        (["--access", "open", "--total-rate", "inf"], "--total-rate inf: expected a number"),
        (["--access", "open", "--tls-cert", "c.pem", "--tls-key", "k.pem"], "cannot read the TLS certificate c.pem"),
        (
            ["--access", "open", "--tls-cert", "no.pem", "--tls-key", "no.pem"],
            "PEM and without a password: the one or the other is missing",
        ),
    ],
)
def test_what_cannot_work_is_one_sentence(
    options: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, which is most of a second faster each."""
    monkeypatch.chdir(tmp_path)
    Path("no.pem").write_text("neither certificate nor key\n")
    Path("empty.txt").write_text("# nobody yet\n")
    result = CliRunner().invoke(command.relay, ["run", "--port", "0", *options])
    assert result.exception is not None
    described = describe_failure(result.exception)
    assert described is not None, result.exception
    assert sentence in described[0]
    assert "\n" not in described[0]
    assert described[1] == 2


async def test_a_token_that_is_taken_out_of_the_file_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text("first  # for Ann\n\nsecond\n")
    async with relay_process("--token-file", file, "--no-observer") as relay:
        assert relay.lines[1] == "for who knows a token"
        async with RelayClient.login(relay.url, token="first") as ann, RelayClient.login(relay.url, token="second") as bob:
            file.write_text("not one token\n")
            assert "must be one token" in await relay.logged("stay valid")
            file.write_text("second\n")
            assert await ann.closed() == 1008
            await bob.socket.send(b"\x0912345678")
            assert await bob.frame() == b"\x0a12345678"
        with pytest.raises(Refused):
            async with RelayClient.login(relay.url, token="first"):
                pass


async def test_the_last_token_is_revoked_by_an_empty_file_and_stays_while_there_is_none(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text("only\n")
    async with relay_process("--token-file", file, "--no-observer") as relay:
        async with RelayClient.login(relay.url, token="only") as ann:
            file.unlink()
            assert "cannot read the token file" in await relay.logged("the tokens read before stay valid")
            async with RelayClient.login(relay.url, token="only"):
                pass
            file.write_text("# nobody\n")
            assert await ann.closed() == 1008
        assert "WARNING" in await relay.logged("holds no token any more, so nobody is let in and all were disconnected")
        with pytest.raises(Refused):
            async with RelayClient.login(relay.url, token="only"):
                pass


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the benchmark reads CPU times from Linux's /proc")
async def test_the_benchmark_prints_its_figures() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.relay", "--json", "--frames", "300", "--clients", "20", "--times", "1",
        "--without-laboratory", cwd=Path(__file__).parents[3], stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    figures = json.loads(output)
    assert set(figures) == {"relay_mb_per_cpu_s", "idle_kb_per_client", "logins_per_cpu_s"}
    assert figures["relay_mb_per_cpu_s"] > 0
    assert figures["logins_per_cpu_s"] > 0
    assert figures["idle_kb_per_client"] < 30, "so few clients may fit into memory that it holds already"


# ----------------------------------------------------------------------------------------------------------------- members


@pytest.mark.slow
async def test_members_of_a_run_are_served_as_long_as_they_are_members(tmp_path: Path) -> None:
    tcp = pytest.importorskip("psyche_backend_tcp.server.tcp_server", reason="needs the TCP backend")
    tcp_client = pytest.importorskip("psyche_backend_tcp.client.connection")
    member, stranger = SecretKey(bytes(KEY)), SigningKey.generate()
    server_key = SecretKey.generate()
    context: dict[str, Any] = {"state": small_state(), "key": server_key, "state_dir": tmp_path, "tick_seconds": 0.05}

    async def login() -> int | None:
        try:
            async with RelayClient.login(relay.url, key=KEY) as client:
                return await client.closed()
        except Refused:
            return None

    async with anyio.create_task_group() as group, tcp.TcpServer(ServerContext(**context)) as server:
        group.start_soon(server.serve)
        options = ("--run-id", "conformance", "--server-addr", server.address, "--no-observer")
        async with relay_process(*options) as relay:
            assert relay.lines[1] == "for members of the given runs"
            assert relay.lines[-1] == "ready"
            await relay.logged("run conformance has 0 members")
            backend = tcp_client.TcpBackend(BackendContext(run_id="conformance", address=server.address, key=member))
            async with backend:
                await backend.join(b"address", timeout=TIMEOUT)
                await relay.logged("run conformance has 1 members")
                joined = asyncio.create_task(login())
                await relay.logged("connected from")
                with pytest.raises(Refused, match="members of a run only"):
                    async with RelayClient.login(relay.url, key=stranger):
                        pass
                await backend.send(Withdraw(backend.identity), timeout=TIMEOUT)
                assert await asyncio.wait_for(joined, TIMEOUT) == 1008

                await backend.join(b"address", timeout=TIMEOUT)
                again = asyncio.create_task(login())
                async with asyncio.timeout(TIMEOUT):
                    while sum("connected from" in line for line in relay.log) < 2:
                        await asyncio.sleep(0.01)
            await server.aclose()
            await relay.logged("its members known last stay members")
            assert not again.done()
            again.cancel()
        group.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_relay_whose_coordinator_is_not_there_says_so_before_it_is_ready() -> None:
    async with relay_process("--run-id", "x", "--server-addr", "127.0.0.1:9#insecure", "--no-observer") as relay:
        assert relay.lines[-2:] == [
            "note: the coordinator of run x does not answer yet, so its members are not served; the relay goes on asking",
            "ready",
        ]


# ----------------------------------------------------------------------------------------------------------------- attacks


async def _garbage(relay: RelayProcess) -> None:
    """Connections that never finish, of every kind."""
    host, port = relay.url.removeprefix("http://").rstrip("/").split(":")
    for opening in (b"", b"GET /relay HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 7000, bytes(5000), b"\x16\x03\x01\x02\x00" * 50):
        for _ in range(80):
            with contextlib.suppress(ConnectionError):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(opening)
                _hold.append(writer)


_hold: list[asyncio.StreamWriter] = []


async def _giants(relay: RelayProcess) -> None:
    """Headers of giant frames, whole messages over the limit, messages in endless parts; before and after login."""
    for header in (b"\x82\xff" + struct.pack(">Q", 2**62), b"\x82\xff" + struct.pack(">Q", 2**20), b"\x02\xfe\xff\xff"):
        for logged_in in (False, True):
            with contextlib.suppress(ConnectionClosed):
                async with open_socket(relay.url) as socket:
                    challenge = await received(socket)
                    if logged_in:
                        await socket.send(answer(SigningKey.generate(), challenge))
                    for _ in range(40):
                        socket.transport.write(header + bytes(4) + bytes(65_535))
                        await socket.ping()


async def _logins(relay: RelayProcess) -> None:
    """Replayed and forged answers."""
    async with open_socket(relay.url) as socket:
        seen = answer(KEY, await received(socket))
        await socket.send(seen)
    for number in range(100):
        with contextlib.suppress(ConnectionClosed):
            async with open_socket(relay.url) as socket:
                challenge = await received(socket)
                mine = answer(SigningKey.generate(), challenge)
                await socket.send(seen if number % 2 else mine[:1] + bytes(KEY.verify_key) + mine[33:])
                assert (await received(socket))[0] == 3


async def _stalled_readers(relay: RelayProcess) -> None:
    """Four readers that read nothing, each sent 12 MB, thrice what may wait for it."""
    async with contextlib.AsyncExitStack() as stack:
        sender = await stack.enter_async_context(RelayClient.login(relay.url))
        for _ in range(4):
            stalled = await stack.enter_async_context(RelayClient.login(relay.url, max_queue=1))
            stalled.socket.transport.pause_reading()
            for _ in range(200):
                await sender.send(stalled, bytes(60_000))


@pytest.mark.slow
@pytest.mark.parametrize("attack", [_garbage, _giants, _logins, _stalled_readers])
async def test_strangers_and_liars_cost_bounded_memory_and_members_go_on(
    attack: Callable[[RelayProcess], Any],
) -> None:
    options = ("--access", "open", "--no-observer", "--max-connections-per-address", 300, "--max-queued", 16)
    async with relay_process(*options) as relay:
        async with RelayClient.login(relay.url) as alice, RelayClient.login(relay.url) as bob:
            rounds = 0

            async def talk() -> None:
                nonlocal rounds
                while True:
                    payload = os.urandom(1000)
                    await alice.send(bob, payload)
                    assert (await bob.datagram())[36:] == payload
                    rounds += 1

            before = relay.peak_bytes()
            talking = asyncio.create_task(talk())
            async with asyncio.timeout(60):
                await attack(relay)
                passed = rounds
                while rounds < passed + 10:
                    assert not talking.done(), talking.exception()
                    await asyncio.sleep(0.01)
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
            assert relay.peak_bytes() - before < 48 * 2**20
        for writer in _hold:
            writer.transport.abort()
        _hold.clear()
