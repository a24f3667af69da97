"""A coordinator's server with a run under way is flooded, sent noise, and commanded to do absurd things; the run goes on.

Each attack must leave the run its promises (every step, equal replicas), the server its memory, and newcomers their way in.
"""

from __future__ import annotations

import re
import resource
import selectors
import socket
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import anyio
import pytest

from live_run import RUN_ID, THREE, LiveRun, StartRun
from psyche_backend_tcp.client.connection import TcpBackend
from psyche_backend_tcp.connections.addresses import ServerAddress, parse_address
from psyche_backend_tcp.connections.dialer import DialedConnection, dial
from psyche_backend_tcp.connections.login import COORDINATOR, DATA
from psyche_backend_tcp.data.protocol import DataBye, SamplesRefusal, SamplesRequest, decode_data
from psyche_backend_tcp.data.protocol import encode_client as encode_request
from psyche_backend_tcp.limits import CLIENT_FRAME
from psyche_backend_tcp.protocol import Answer, Bye, CommandRequest, decode_server, encode_client
from psyche_core.errors import CommandRefused, WireError
from psyche_core.hookspecs import BackendContext
from psyche_core.telemetry.events import Started, StepTrained
from psyche_core.types import BatchId
from psyche_core.wire.signing import SecretKey
from tests.fuzz.mutation import change_bytes
from tests.fuzz.targets import tcp_client_frames, tcp_data

pytestmark = [pytest.mark.soak, pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(900)]

CONNECTIONS = 4422
"""As many as an attack held at once, or tried to, on the finished system; its server grew by 15 MB."""
MOST_GROWTH_MB = 64.0
"""One connection that is kept costs 20 kB and more: a server that kept them all would grow by far more."""
STEPS = 120
SEED = 20_260
LAST_NUMBER = 2**60
LAST = {
    COORDINATOR: encode_client(CommandRequest(LAST_NUMBER, [4, [0]])),
    DATA: encode_request(SamplesRequest(LAST_NUMBER, (BatchId(0, 0),))),
}
"""A request that is well formed and refused."""
FRAMES_AT_ONCE = 4
LOST = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError, WireError)


def under_way(live_run: Any, **changes: object) -> tuple[LiveRun, ServerAddress]:
    """A run in its first epoch, and where its server is."""
    run: LiveRun = live_run(total_steps=STEPS, **changes)
    for name in THREE:
        run.start_client(name)
    for name in THREE:
        run.wait_for_steps(name, 5)
    return run, parse_address(run.told("server", Started)[-1].address)


def assert_unharmed(run: LiveRun, *, before_mb: float, attacked: float) -> None:
    """Members trained on meanwhile and afterwards, the server is no larger than it may be, and the run keeps its promises."""
    over = time.time()
    grew = run.resident_mb("server") - before_mb
    print(f"the server grew by {grew:.1f} MB; {over - attacked:.1f} s of attack", end="; ")
    assert grew < MOST_GROWTH_MB
    steps = len(run.told("client-1", StepTrained, after=attacked))
    print(f"{steps} steps meanwhile, one in {run.seconds_per_step('client-1', before=attacked):.2f} s before")
    assert steps > 0, "nothing was trained during the attack"
    assert len(run.told("client-1", StepTrained)) < STEPS, "the run was over before the attack was: make it longer"
    run.wait_for_end()
    run.assert_kept_its_promises(steps=STEPS, finishers=THREE)


def data_port(run: LiveRun) -> int:
    """Where the server gives out samples."""
    found = re.search(r'^Server = ".*:(\d+)"', (run.config / "state.toml").read_text(), flags=re.MULTILINE)
    assert found is not None
    return int(found[1])


async def newcomer_is_heard(run: LiveRun) -> None:
    """A stranger logs in and is told the run's state."""
    address = run.told("server", Started)[-1].address
    async with TcpBackend(BackendContext(run_id=RUN_ID, address=address, key=SecretKey.generate())) as backend:
        with anyio.fail_after(60):
            await backend.next_state()


def test_thousands_of_silent_connections(live_run: StartRun) -> None:
    run, server = under_way(live_run)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, CONNECTIONS + 500)), hard))
    attacked, before = time.time(), run.resident_mb("server")
    closed = 0
    with selectors.DefaultSelector() as watched:
        try:
            for number in range(CONNECTIONS):
                sock = socket.socket()
                sock.bind((f"127.1.{number // 250}.{1 + number % 250}", 0))
                sock.setblocking(False)
                sock.connect_ex((server.host, server.port))
                watched.register(sock, selectors.EVENT_READ)
                if number == CONNECTIONS // 2:
                    anyio.run(newcomer_is_heard, run)
                    run.wait_for_steps("client-1", 1, after=attacked)
            while len(watched.get_map()) > CONNECTIONS // 10:  # none leaves by itself: the server lets them go
                for key, _ in watched.select(timeout=1.0):
                    assert isinstance(key.fileobj, socket.socket)
                    watched.unregister(key.fileobj)
                    key.fileobj.close()
                    closed += 1
                assert time.time() < attacked + 120, f"only {closed} were closed"
        finally:
            for key in list(watched.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert_unharmed(run, before_mb=before, attacked=attacked)


def noise(random: Random) -> bytes:
    """What no client says first: any bytes, other protocols, and what a client says, damaged."""
    begun = (
        b"",
        b"psyche!\x01",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client hello begins so
        b"\x00\x00\x00\x05hello",
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    )
    return random.choice(begun) + random.randbytes(random.choice((0, 1, 64, 512, 16_384, 200_000)))


def test_random_bytes_before_the_login(live_run: StartRun) -> None:
    run, server = under_way(live_run)
    ports = (server.port, data_port(run))
    attacked, before = time.time(), run.resident_mb("server")
    random = Random(SEED)
    for number in range(1500):
        with socket.create_connection((server.host, random.choice(ports)), timeout=60) as connection:
            with suppress(OSError):  # it is closed while we still speak
                connection.sendall(noise(random))
                if random.random() < 0.7:
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
        if number % 500 == 0:
            anyio.run(newcomer_is_heard, run)
            run.wait_for_steps("client-1", 1, after=attacked)
    assert_unharmed(run, before_mb=before, attacked=attacked)


async def talk(server: ServerAddress, service: str, said: list[bytes], answers: Counter[str]) -> None:
    """Log in with a new key and say all of it, a few frames at a time, over a new connection where the server ends one."""
    left = deque(said)
    while left:
        try:
            link = await dial(server, service=service, key=SecretKey.generate(), run_id=RUN_ID, timeout=60.0)
        except CommandRefused as refused:
            answers[refused.code] += 1
            continue
        try:
            with anyio.fail_after(120):
                while left:
                    frames = [left.popleft() for _ in range(min(FRAMES_AT_ONCE, len(left)))]
                    await link.frames.send(*frames, LAST[service])
                    await until_answered(link, service, answers)
        except LOST:  # as it should be for most of this
            pass
        finally:
            with anyio.CancelScope(shield=True):
                await link.frames.aclose()


async def until_answered(link: DialedConnection, service: str, answers: Counter[str]) -> None:
    """Read up to the answer to the request that is well formed. Raises what a lost connection raises."""
    while True:
        payload = await link.frames.receive()
        match decode_server(payload) if service == COORDINATOR else decode_data(payload):
            case Answer(number, code, _) | SamplesRefusal(number, code, _):
                answers[code] += 1
                if number == LAST_NUMBER:
                    return
            case Bye(code, _) | DataBye(code, _):
                answers[code] += 1


@pytest.mark.parametrize("service", [COORDINATOR, DATA])
def test_absurd_requests_after_the_login(live_run: StartRun, service: str) -> None:
    """Keys of no member give every command there is, and every request for data, with senseless values in it."""
    run, server = under_way(live_run)
    attacked, before = time.time(), run.resident_mb("server")
    random = Random(SEED)
    target = tcp_client_frames if service == COORDINATOR else tcp_data
    seeds = target.seeds()
    said = [target.mutate(random.choice(seeds), random) for _ in range(1500)]
    said += [change_bytes(random.choice(seeds), random, others=seeds) for _ in range(300)]
    said = [frame for frame in said if 0 < len(frame) <= CLIENT_FRAME]
    random.shuffle(said)
    where = server if service == COORDINATOR else replace(server, port=data_port(run))
    answers: Counter[str] = Counter()

    async def attack() -> None:
        async with anyio.create_task_group() as tasks:
            for part in range(8):
                tasks.start_soon(talk, where, service, said[part::8], answers)

    anyio.run(attack)
    print(dict(answers))
    assert not answers[""], "something was carried out for a stranger"
    assert sum(answers.values()) > 400, "most of it was not even answered"
    anyio.run(newcomer_is_heard, run)
    assert_unharmed(run, before_mb=before, attacked=attacked)
