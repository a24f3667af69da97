"""Shares that are checked, with real optimizers, runtimes, deltas and proofs: honest members pass, cheats are ejected."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import anyio
import pytest

from psyche_core.builtin.memory_backend import MemoryCoordinator
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine.machine import Timeouts
from psyche_core.client.runtime.resources import Resources
from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.client.runtime.worker import Worker
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import new_state
from psyche_core.coordinator.commands import ChallengeClosed, Event
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.types import ClientState, RunState
from psyche_core.wire.signing import SecretKey
from tests.integration.checked_members import Member, Numbered, RecomputesNothing, SendsOldResults, TrainsOnOtherData

RUN = """
run_id = "checked"
[config]
warmup_time = 100
cooldown_time = 1
max_round_train_time = 60
round_witness_time = 60
epoch_time = 4000
rounds_per_epoch = {per_epoch}
total_steps = {rounds}
init_min_clients = 5
min_clients = 3
witness_nodes = 0
global_batch_size_start = 20
global_batch_size_end = 20
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 1
[model.LLM]
max_seq_len = 16
cold_start_warmup_steps = 0
architecture = "HfLlama"
data_type = "Pretraining"
data_location = "Dummy"
checkpoint = {{ Hub = {{ repo_id = "model" }} }}
lr_schedule = {{ Constant = {{ base_lr = 0.01, warmup_init_lr = 0.0, warmup_steps = 0 }} }}
optimizer = {{ AdamW = {{ betas = [0.9, 0.95], weight_decay = 0.1, eps = 1e-8 }} }}
"""
MEMBERS = 5


class Run:
    """A coordinator and its members in one process. events: what the coordinator said."""

    def __init__(self, trainers: Sequence[Member], *, rounds: int, percent: int, per_epoch: int = 0) -> None:
        run = parse_run_file(RUN.format(rounds=rounds, per_epoch=per_epoch or rounds), source="checked")
        config = run.config.model_copy(update={"verification_percent": percent})
        self.events: list[Event] = []
        state = new_state(run.run_id, config, run.model, instance=bytes(32))
        self.coordinator = MemoryCoordinator(state, on_event=self._note)
        self.network = MemoryNetwork()
        self.trainers = trainers
        self.told: list[list[telemetry.Event]] = [[] for _ in trainers]
        self.digests: set[bytes] = set()

    def _note(self, _: CoordinatorState, events: tuple[Event, ...]) -> None:
        self.events += events

    def key(self, index: int) -> SecretKey:
        return SecretKey(hashlib.sha256(b"checked" + bytes((index,))).digest())

    async def member(self, index: int) -> None:
        key = self.key(index)

        async def build(_: object) -> Resources:
            return Resources(self.trainers[index], data)

        async with (
            self.coordinator.backend(key) as backend,
            MemoryTransport(self.network, key.public) as transport,
            Numbered(sequence_length=16) as data,
        ):
            bus = EventBus(self.told[index].append)
            runtime = ClientRuntime(
                run_id="checked",
                key=key,
                backend=backend,
                transport=transport,
                worker=Worker(build, transport=transport, report=bus),
                report=bus,
                timeouts=Timeouts(peers=2.0),
            )
            await runtime.run()

    async def play(self) -> None:
        async with anyio.create_task_group() as clock:
            clock.start_soon(partial(self.coordinator.run, tick_seconds=0.05))
            async with anyio.create_task_group() as members:
                for index in range(len(self.trainers)):
                    members.start_soon(self.member, index)
            clock.cancel_scope.cancel()

    @property
    def closed(self) -> list[ChallengeClosed]:
        return [event for event in self.events if isinstance(event, ChallengeClosed)]

    def slots_of(self, index: int) -> set[int]:
        clients = self.coordinator.state.epoch.clients
        return {slot for slot, client in enumerate(clients) if client.id.p2p == self.key(index).public}

    @property
    def ejected(self) -> set[int]:
        keys = {client.id.p2p for client in self.coordinator.state.epoch.clients if client.state is ClientState.Ejected}
        return {index for index in range(len(self.trainers)) if self.key(index).public in keys}


def play(trainers: Sequence[Member], *, rounds: int, percent: int = 100, per_epoch: int = 0) -> Run:
    run: list[Run] = []

    async def go() -> None:
        run.append(Run(trainers, rounds=rounds, percent=percent, per_epoch=per_epoch))
        await run[0].play()

    anyio.run(go)
    return run[0]


@pytest.mark.timeout(180)
def test_every_share_of_honest_members_passes() -> None:
    run = play([Member() for _ in range(MEMBERS)], rounds=16)
    assert run.coordinator.state.run_state is RunState.Finished
    outcomes = Counter(event.outcome for event in run.closed)
    assert set(outcomes) == {"PASSED"}
    assert outcomes["PASSED"] >= 10
    assert not run.ejected
    assert len({trainer.full_digest() for trainer in run.trainers}) == 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("memory", "lookahead"),
    [
        pytest.param(False, "delta", marks=pytest.mark.soak),
        pytest.param(True, "delta", marks=pytest.mark.soak),
        (True, "payload"),
    ],
)
def test_honest_shares_pass_in_every_epoch_at_rates_that_matter(memory: bool, lookahead: Literal["delta", "payload"]) -> None:
    """An epoch's end applies everything, so its successor's first share starts one step later than others.

    At a rate of 0.01 that could not be seen, nor with samples that are all the same.
    """

    def rate(step: int) -> float:
        return 0.3 * (1 - step / 26)

    run = play([Member(memory=memory, lookahead=lookahead, rate=rate) for _ in range(MEMBERS)], rounds=24, per_epoch=8)
    assert {event.outcome for event in run.closed} == {"PASSED"}
    assert {(event.epoch, event.height) for event in run.closed} >= {(0, 0), (1, 0), (2, 0)}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("cheat", "lookahead"),
    [
        (TrainsOnOtherData, "payload"),
        pytest.param(TrainsOnOtherData, "delta", marks=pytest.mark.soak),
        pytest.param(SendsOldResults, "delta", marks=pytest.mark.soak),
    ],
)
def test_a_cheat_is_ejected_and_nobody_else(cheat: Callable[..., Member], lookahead: Literal["delta", "payload"]) -> None:
    run = play([cheat(lookahead=lookahead), *(Member(lookahead=lookahead) for _ in range(MEMBERS - 1))], rounds=30)
    print(Counter(event.outcome for event in run.closed), run.coordinator.state.progress.step)
    assert run.ejected == {0}


@pytest.mark.timeout(180)
def test_a_verifier_that_makes_gradients_up_is_ejected() -> None:
    run = play([RecomputesNothing(), *(Member() for _ in range(MEMBERS - 1))], rounds=30)
    print(Counter(event.outcome for event in run.closed), run.coordinator.state.progress.step)
    assert run.ejected == {0}
