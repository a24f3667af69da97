"""Real optimizers, real runtimes, one process: a member goes astray, another comes late, and all end with the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import anyio
import pytest
import torch
from blockbuster import BlockBuster, blockbuster_ctx

from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.builtin.memory_backend import MemoryCoordinator
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine.machine import Timeouts
from psyche_core.client.runtime.resources import Resources
from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.client.runtime.worker import Worker
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import new_state
from psyche_core.p2p.manifest import Piece
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.testing.toy_model import TOY_SHAPES, ToyModel
from psyche_core.training.shared_tensors import PREFIX, shared_tensors
from psyche_core.training.trainer import Trainer
from psyche_core.types import RunState
from psyche_core.wire.signing import SecretKey
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings

Kind = TypeVar("Kind")

RUN = """
run_id = "repair"
[config]
warmup_time = 20
cooldown_time = 1
max_round_train_time = 10
round_witness_time = 2
epoch_time = 400
rounds_per_epoch = 10
total_steps = 14
init_min_clients = 3
min_clients = 2
witness_nodes = 0
global_batch_size_start = 12
global_batch_size_end = 12
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 1
[model.LLM]
max_seq_len = 16
cold_start_warmup_steps = 0
architecture = "HfLlama"
data_type = "Pretraining"
data_location = "Dummy"
checkpoint = { Hub = { repo_id = "model" } }
lr_schedule = { Constant = { base_lr = 0.01, warmup_init_lr = 0.0, warmup_steps = 0 } }
optimizer = { AdamW = { betas = [0.9, 0.95], weight_decay = 0.1, eps = 1e-8 } }
"""

OPTIMIZERS: dict[str, Callable[[ToyModel], Any]] = {
    "AdamW": lambda model: AdamW(AdamWSettings(), model),
    "Distro": lambda model: DistroOptimizer(
        DistroSettings(compression_decay=0.99, compression_topk=8, compression_chunk=32, quantize_1bit=True), model
    ),
    "Distro with public state": lambda model: DistroOptimizer(
        DistroSettings(
            compression_decay=0.99, compression_topk=8, compression_chunk=32, quantize_1bit=True, second_stage="rmsprop"
        ),
        model,
    ),
}


class Trained(Trainer):
    """A trainer of the toy model. spoil_at: after applying this step the tensors named in `spoilt` are wrong, once."""

    def __init__(
        self, optimizer: str, *, seed: int = 0, spoil_at: int | None = None, spoilt: Collection[str] = TOY_SHAPES
    ) -> None:
        model = ToyModel(seed=seed)
        self.optimizer = OPTIMIZERS[optimizer](model)
        self.spoil_at = spoil_at
        self.spoilt = spoilt
        super().__init__(model=model, optimizer=self.optimizer, learning_rate=lambda _: 0.01, micro_batch_size=4)

    def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
        super().apply(step, payloads, own_accepted=own_accepted, learning_rate=learning_rate)
        if step == self.spoil_at:
            self.spoil_at = None
            for name in self.spoilt:
                shared_tensors(self.optimizer)[name].add_(0.25)


class FalseState(Trained):
    """A liar: training is honest, and its digests are, but it gives others a public state of its own."""

    def read_piece(self, piece: Piece) -> bytes:
        data = super().read_piece(piece)
        return bytes(len(data)) if piece.name.startswith(PREFIX) else data


class Run:
    """A coordinator, a network, and members that come when they are told to."""

    def __init__(self, text: str = RUN) -> None:
        run = parse_run_file(text, source="repair")
        self.coordinator = MemoryCoordinator(new_state(run.run_id, run.config, run.model, instance=bytes(32)))
        self.network = MemoryNetwork()
        self.told: dict[str, list[telemetry.Event]] = {}

    async def member(self, name: str, trainer: Trained) -> None:
        key = SecretKey(hashlib.sha256(name.encode()).digest())
        told = self.told[name] = []

        async def build(_: object) -> Resources:
            return Resources(trainer, data)

        async with (
            self.coordinator.backend(key) as backend,
            MemoryTransport(self.network, key.public) as transport,
            DummyData(sequence_length=16) as data,
        ):
            bus = EventBus(told.append)
            runtime = ClientRuntime(
                run_id="repair",
                key=key,
                backend=backend,
                transport=transport,
                worker=Worker(build, transport=transport, report=bus),
                report=bus,
                timeouts=Timeouts(payload=10.0, peers=2.0, offers=3.0),
            )
            await runtime.run()

    async def step(self, number: int) -> None:
        """Wait until the run has come to a step."""
        while self.coordinator.state.progress.step < number:
            await anyio.sleep(0.02)

    async def play(self, *parts: Callable[[], Any]) -> None:
        async with anyio.create_task_group() as clock:
            clock.start_soon(self.coordinator.run)
            async with anyio.create_task_group() as members:
                for part in parts:
                    members.start_soon(part)
            clock.cancel_scope.cancel()

    def of(self, name: str, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.told[name] if isinstance(event, kind)]


@pytest.fixture(autouse=True)
def _no_blocking() -> Iterator[BlockBuster]:
    """Fail on blocking calls made from the event loop by our code."""
    torch.set_num_threads(1)
    with blockbuster_ctx("psyche_core") as guard:
        yield guard


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
async def test_a_member_astray_and_a_late_one_get_the_others_model(optimizer: str) -> None:
    """Weights go wrong after step 2; the fourth member, with weights of its own, comes at step 3. Nobody restarts anything."""
    run = Run()
    trainers = {
        "one": Trained(optimizer),
        "two": Trained(optimizer),
        "astray": Trained(optimizer, spoil_at=2),
        "late": Trained(optimizer, seed=99),
    }

    async def late() -> None:
        await run.step(3)
        await run.member("late", trainers["late"])

    await run.play(*(lambda name=name: run.member(name, trainers[name]) for name in ("one", "two", "astray")), late)

    assert run.coordinator.state.run_state is RunState.Finished
    for name in trainers:
        assert run.of(name, telemetry.Ended)[-1].success, run.of(name, telemetry.Ended)
    assert len({trainer.full_digest() for trainer in trainers.values()}) == 1
    assert len({run.of(name, telemetry.EpochDigest)[-1].sha256 for name in trainers}) == 1

    assert not run.of("one", telemetry.Resynced)
    assert not run.of("two", telemetry.Resynced)
    assert run.of("astray", telemetry.Resynced)[0].epoch == 0, "it did not come back in the same epoch"
    assert run.of("late", telemetry.ModelSync)[0].pieces_total == len(trainers["late"].table)
    for name in ("astray", "late"):
        resynced = run.of(name, telemetry.Resynced)[0].step
        assert any(event.step > resynced for event in run.of(name, telemetry.StepTrained)), f"{name} never trained again"
    applied = [event.step for event in run.of("one", telemetry.StepApplied) if event.trained]
    assert applied == list(range(1, 15))


@pytest.mark.slow
async def test_at_an_epochs_end_one_wrong_weight_costs_one_piece() -> None:
    """Too little for the sample of a round to meet; the full digest finds it, and only its piece is fetched."""
    run = Run()
    trainers = {name: Trained("AdamW") for name in ("one", "two")}
    trainers["astray"] = Trained("AdamW", spoil_at=10, spoilt=("odd.bias",))
    await run.play(*(lambda name=name: run.member(name, trainers[name]) for name in trainers))

    assert len({trainer.full_digest() for trainer in trainers.values()}) == 1
    assert all(run.of(name, telemetry.Ended)[-1].success for name in trainers)
    assert [event.step for event in run.of("astray", telemetry.Resynced)] == [10]
    synced = run.of("astray", telemetry.ModelSync)
    assert (synced[-1].pieces_done, synced[-1].pieces_total, synced[-1].bytes_received) == (1, 1, 20)
    assert not run.of("one", telemetry.ModelSync)


@pytest.mark.slow
async def test_who_joins_gets_the_public_state_though_a_liar_offers_a_false_one() -> None:
    """It comes for the second epoch, and then has the same bits as the others for more than 50 steps."""
    run = Run(RUN.replace("total_steps = 14", "total_steps = 64"))
    kind = "Distro with public state"
    trainers = {"one": Trained(kind), "two": Trained(kind), "liar": FalseState(kind), "late": Trained(kind, seed=99)}

    async def late() -> None:
        await run.step(3)
        await run.member("late", trainers["late"])

    await run.play(*(lambda name=name: run.member(name, trainers[name]) for name in ("one", "two", "liar")), late)

    assert run.coordinator.state.run_state is RunState.Finished
    assert all(run.of(name, telemetry.Ended)[-1].success for name in trainers)
    assert len({trainer.full_digest() for trainer in trainers.values()}) == 1
    trained = [event.step for event in run.of("late", telemetry.StepTrained)]
    assert len(trained) >= 50, "it came too late to show anything"
    assert len(run.of("late", telemetry.Resynced)) <= 1, "it was led astray"
    for name in ("one", "two"):
        assert not run.of(name, telemetry.Resynced)


@pytest.mark.slow
async def test_a_wrong_public_state_is_noticed_though_the_weights_are_right() -> None:
    """After the last step of an epoch: nothing is applied that would spread it to the weights. One piece is fetched."""
    run = Run()
    spoilt = f"{PREFIX}mean_square.odd.bias"
    trainers = {name: Trained("Distro with public state") for name in ("one", "two")}
    trainers["astray"] = Trained("Distro with public state", spoil_at=10, spoilt=(spoilt,))
    await run.play(*(lambda name=name: run.member(name, trainers[name]) for name in trainers))

    assert len({trainer.full_digest() for trainer in trainers.values()}) == 1
    assert all(run.of(name, telemetry.Ended)[-1].success for name in trainers)
    assert [event.step for event in run.of("astray", telemetry.Resynced)] == [10]
    synced = run.of("astray", telemetry.ModelSync)
    assert (synced[-1].pieces_done, synced[-1].pieces_total, synced[-1].bytes_received) == (1, 1, 20)
    assert not run.of("one", telemetry.ModelSync)
