"""A member floods the others' transport with whatever it is let say, and strangers knock without end; the run goes on."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random

import anyio
import pytest

from live_run import RUN_ID, THREE, LiveRun, StartRun
from psyche_backend_tcp.client.connection import TcpBackend
from psyche_core.coordinator.commands import Withdraw
from psyche_core.errors import BackendError, TransportError
from psyche_core.hookspecs import BackendContext
from psyche_core.telemetry.events import Started, StepTrained
from psyche_core.types import BatchId, RunState
from psyche_core.wire.frames import frame
from psyche_core.wire.messages import MAX_SHARE_INTERVALS, Result, seal
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.addresses.peer_address import PeerAddress
from psyche_p2p_quic.blobs.frames import BlobRequest
from psyche_p2p_quic.connections import control_frames
from psyche_p2p_quic.connections.control_frames import Frame, Hello, Inventory, Message, Ping
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.endpoint.links import Link, Stream

pytestmark = [pytest.mark.soak, pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(900)]

STEPS = 500
STEPS_UNDER_ATTACK = 30
RELAYED, COMPARISONS, PINGS, OWN = 0.6, 0.7, 0.99, 0.9995
"""Shares of what is said, up to each: see `said`."""
MADE, FRESH = 8192, 0.25
"""Most messages that one attacker signs, and how many of those that it passes on are new."""
LEAST_SENT = 110 * 2**20
"""Bytes at each client: kept, they would be far more than it may grow by."""
SLOWEST_STEP = 4.0
"""Seconds, the middle one of all: less than a round's time-out, for which a client that hears nobody would wait."""


def framed(value: Frame) -> bytes:
    return frame(control_frames.encode(value), limit=10**6)


def widest_share(random: Random) -> tuple[BatchId, ...]:
    """A share with as many intervals as one may have: a result with it has some 10 kB."""
    starts = (random.randrange(2**62) for _ in range(MAX_SHARE_INTERVALS))
    return tuple(BatchId(first, first + random.randrange(2**62)) for first in starts)


def large_result(key: SecretKey, instance: bytes, share: tuple[BatchId, ...], random: Random) -> bytes:
    """A result of this run, of any round of the first 2**16 epochs, signed."""
    epoch, height = random.choice((0, random.randrange(2**16))), random.randrange(2**16)
    hashes = random.randbytes(32), random.randrange(2**40), random.randbytes(32), random.randbytes(64)
    return seal(key, instance, Result(epoch, height, random.randrange(2**32), random.randrange(2**64), share, *hashes))


def said(random: Random, share: float, signed: Callable[[], bytes]) -> bytes:
    """Mostly what a member may say without end: others' messages, comparisons, pings. Seldom what ends its connection.

    share: which kind, from 0 to 1. signed: makes a message to pass on.
    """
    if share < RELAYED:
        return framed(Message(random.randrange(2**20), signed(), relayed=True))
    if share < COMPARISONS:
        return framed(
            Inventory(tuple(random.randbytes(16) for _ in range(random.choice((1, 100, control_frames.MAX_INVENTORY)))))
        )
    if share < PINGS:
        return framed(Ping(random.randrange(2**32), random.randbytes(32))) * 20
    if share < OWN:
        return framed(Message(1, random.randbytes(100), relayed=False))
    return random.choice((random.randbytes(1000), framed(Message(1, b"the same", relayed=False)) * 2000))


class Flood:
    """One key that attacks everybody it is given.

    shares: from and to which it draws what it says. sent: bytes; ended: how often a connection was ended by the attacked.
    """

    def __init__(self, key: SecretKey, endpoint: Endpoint, *, seed: int, shares: tuple[float, float], instance: bytes) -> None:
        self.key = key
        self.endpoint = endpoint
        self.sent: Counter[bytes] = Counter()
        self.ended = 0
        self._random = Random(seed)
        self._shares = shares
        self._instance = instance
        self._others = [SecretKey(self._random.randbytes(32)) for _ in range(8)]  # anybody can make keys and sign with them
        self._share = widest_share(self._random)
        self._made: list[bytes] = []

    async def attack(self, peer: bytes, address: bytes) -> None:
        """Connect and flood, again and again."""
        for turn in itertools.count():
            with suppress(TransportError, TimeoutError):
                link = await self.endpoint.dial(peer, PeerAddress.decode(address).dialable())
                try:
                    await self._once(link, turn)
                finally:
                    self.ended += bool(link.close_reason)
                    link.close(1, "over")
            await anyio.sleep(0)

    def _signed(self) -> bytes:
        """A message to pass on: mostly one that was sent before, perhaps to another, since signing takes longest."""
        if len(self._made) < MADE and (len(self._made) < 100 or self._random.random() < FRESH):
            self._made.append(large_result(self._random.choice(self._others), self._instance, self._share, self._random))
            return self._made[-1]

        return self._random.choice(self._made)

    async def _once(self, link: Link, turn: int) -> None:
        stream = await link.open()
        await stream.write(framed(Hello(RUN_ID, turn.to_bytes(8, "big"))))
        await stream.read(1000)
        opened: list[Stream] = []
        while True:
            data = said(self._random, self._random.uniform(*self._shares), self._signed)
            with anyio.fail_after(30):
                await stream.write(data)
            self.sent[link.peer] += len(data)
            if self._random.random() < 0.05 and len(opened) < 40:  # asks for blobs and reads nothing of them
                opened.append(await link.open())
                await opened[-1].write(BlobRequest(self._random.randbytes(32), 1).encode())


@dataclass(frozen=True)
class Attack:
    """sent: bytes to each. ended: connections, by the attacked. began: unix seconds. before: memory of each client, in MB."""

    sent: Counter[bytes]
    ended: int
    began: float
    before: dict[str, float]


async def flood_while_they_train(run: LiveRun, shares: tuple[float, float]) -> Attack:
    """Be a member that leaves at once, which the others stay connected to until the epoch ends, and flood them; see `Flood`."""
    key, stranger = SecretKey.generate(), SecretKey.generate()
    server = run.told("server", Started)[-1].address
    endpoints = [await Endpoint.bind(each.seed, interface="127.0.0.1", port=0) for each in (key, stranger)]
    try:
        async with TcpBackend(BackendContext(run_id=RUN_ID, address=server, key=key)) as backend:
            await backend.join(PeerAddress(endpoints[0].sockets).encode(), timeout=60)
            update = await backend.next_state()
            while backend.identity not in [client.id for client in update.state.epoch.clients]:
                update = await backend.next_state()
            with suppress(BackendError):
                await backend.send(Withdraw(backend.identity), timeout=60)
            while update.state.run_state is not RunState.RoundTrain:
                update = await backend.next_state()
            victims = [client.id for client in update.state.epoch.clients if client.id != backend.identity]
            for name in THREE:
                await anyio.to_thread.run_sync(run.wait_for_steps, name, 5)
            before = {name: run.resident_mb(name) for name in THREE}
            began = time.time()
            floods = [
                Flood(own, endpoint, seed=seed, shares=shares, instance=update.state.instance)
                for seed, (own, endpoint) in enumerate(zip((key, stranger), endpoints, strict=True), 1)
            ]
            async with anyio.create_task_group() as tasks:
                for flood, victim in itertools.product(floods, victims):
                    tasks.start_soon(flood.attack, victim.p2p, update.addresses[victim.signer])
                for name in THREE:
                    await anyio.to_thread.run_sync(partial(run.wait_for_steps, name, STEPS_UNDER_ATTACK, after=began))
                while min(floods[0].sent[victim.p2p] for victim in victims) < LEAST_SENT:
                    assert len(run.told("client-1", StepTrained)) < STEPS, f"the run is over, and only {floods[0].sent} was sent"
                    await anyio.sleep(0.1)
                tasks.cancel_scope.cancel()
            return Attack(floods[0].sent, sum(flood.ended for flood in floods), began, before)
    finally:
        for endpoint in endpoints:
            await endpoint.aclose(timeout=5)


@pytest.mark.parametrize(
    ("shares", "most_growth_mb"),
    [
        pytest.param((0.0, RELAYED), 72.0, id="relayed"),
        pytest.param((RELAYED, COMPARISONS), 72.0, id="comparisons"),
        pytest.param((0.0, 1.0), 256.0, id="all"),
    ],
)
def test_a_member_that_floods_costs_the_others_neither_memory_nor_their_pace(
    live_run: StartRun, shares: tuple[float, float], most_growth_mb: float
) -> None:
    run: LiveRun = live_run(total_steps=STEPS, rounds_per_epoch=STEPS, server=("--init-min-clients", 4))
    for name in THREE:
        run.start_client(name)
        run.note("disturb", name)  # a share may come too late under attack: it is trained again
    attack = anyio.run(flood_while_they_train, run, shares)
    over = time.time()
    grew = {name: round(run.resident_mb(name) - attack.before[name], 1) for name in THREE}
    times = (
        run.seconds_per_step("client-1", before=attack.began),
        run.seconds_per_step("client-1", after=attack.began, before=over),
    )
    megabytes = [round(size / 2**20) for size in attack.sent.values()]
    print(f"{megabytes} MB sent, {attack.ended} connections ended; grew by {grew} MB", end="; ")
    print(f"{times[0]:.2f} s a step before, {times[1]:.2f} then")
    assert attack.ended > 0, "nobody minded the strangers"
    assert max(grew.values()) < most_growth_mb
    assert times[1] < SLOWEST_STEP
    assert len(run.told("client-1", StepTrained)) < STEPS, "the run was over before the attack was: make it longer"
    run.wait_for_end()
    run.assert_kept_its_promises(steps=STEPS, finishers=THREE)
