"""A client put together from settings: what it says about its model, and how it ends when the model cannot be built."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
import transformers
from safetensors.torch import save_file

from psyche_core.builtin.memory_backend import MemoryCoordinator
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.cli.failures import describe_failure
from psyche_core.client.runtime.resources import ResourcesRequest
from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.client.runtime.worker import Worker
from psyche_core.client.setup.assemble import open_restorer
from psyche_core.client.setup.resources_builder import ResourcesBuilder
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import new_state
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.hookspecs import GROUP
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.training.checkpoints.checkpoint import save_checkpoint
from psyche_core.training.checkpoints.journal.lock import lock_journal
from psyche_core.training.checkpoints.manifest import CheckpointFacts
from psyche_core.wire.signing import SecretKey

RUN = """
run_id = "assembled"
[config]
warmup_time = 20
cooldown_time = 1
max_round_train_time = 30
round_witness_time = 1
epoch_time = 60
total_steps = 4
init_min_clients = 1
min_clients = 1
witness_nodes = 0
global_batch_size_start = 4
global_batch_size_end = 4
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 1
[model.LLM]
architecture = "HfAuto"
data_type = "Pretraining"
max_seq_len = 16
cold_start_warmup_steps = 0
checkpoint = { Hub = { repo_id = "model" } }
data_location = "Dummy"
lr_schedule = { Constant = { base_lr = 5e-3, warmup_init_lr = 0.0, warmup_steps = 2 } }
optimizer = { AdamW = { betas = [0.9, 0.95], weight_decay = 0.1, eps = 1e-8, clip_grad_norm = 1.0 } }
"""


class Client:
    """A client of a run in this process. told: what it reported."""

    def __init__(self, base: Path, stack: AsyncExitStack, *, run: str = RUN, **settings: Any) -> None:
        parsed = parse_run_file(run, source="test_assemble.py")
        self.state: CoordinatorState = new_state(parsed.run_id, parsed.config, parsed.model, instance=bytes(32))
        self.told: list[telemetry.Event] = []
        self.key = SecretKey.generate()
        given = {"run_id": parsed.run_id, "server_addr": "memory:1", "base": base, "device": "cpu", **settings}
        client_settings, tell = ClientSettings(**given), EventBus(self.told.append)
        restorer = open_restorer(client_settings, tell, member=self.key.public, lasting=True)
        if restorer is not None:
            stack.callback(restorer.close)
        registry = PluginRegistry.discover()
        self.build = ResourcesBuilder(
            client_settings,
            registry,
            key=self.key,
            stack=stack,
            latest=lambda: self.state,
            report=tell,
            restorer=restorer,
            stores=StoreOpener(registry),
        )

    async def run(self) -> telemetry.Ended:
        """Take part in the run alone."""
        coordinator = self.coordinator = MemoryCoordinator(self.state)
        async with coordinator.backend(self.key) as backend, MemoryTransport(MemoryNetwork(), self.key.public) as transport:
            bus = EventBus(self.told.append)
            runtime = ClientRuntime(
                run_id=self.state.run_id,
                key=self.key,
                backend=backend,
                transport=transport,
                worker=Worker(self.build, transport=transport, report=bus, check=self.build.check),
                report=bus,
            )
            async with anyio.create_task_group() as clock:
                clock.start_soon(coordinator.run)
                ended = await runtime.run()
                clock.cancel_scope.cancel()
            return ended


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


def cut_short(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{")


def without_type(model: Path) -> None:
    (model / "config.json").write_text('{"hidden_size": 4}')


def without_shard(model: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def with_weights(model: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Whole weights of the model's architecture, then changed."""
    module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(model))  # type: ignore[no-untyped-call]  # left untyped
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    change(weights)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def one_missing(model: Path) -> None:
    with_weights(model, lambda weights: weights.pop("model.norm.weight"))


def one_too_many(model: Path) -> None:
    with_weights(model, lambda weights: weights.update({"model.stranger.weight": torch.zeros(2)}))


def one_of_another_shape(model: Path) -> None:
    with_weights(model, lambda weights: weights.update({"model.norm.weight": torch.zeros(3)}))


def of_no_known_type(model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "perceptron_of_1958"}')


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (one_missing, "model.norm.weight"),
        (one_too_many, "model.stranger.weight"),
        (one_of_another_shape, "model.norm.weight"),
        (of_no_known_type, "perceptron_of_1958"),
        (cut_short, "model.safetensors is cut short or no safetensors file"),
        (without_type, "expected a JSON object with a model_type"),
        (without_shard, "shard model-00001-of-00001.safetensors is missing"),
    ],
)
async def test_a_model_that_cannot_be_built_ends_the_client_with_one_sentence_before_it_joins(
    base: Path, stack: AsyncExitStack, damage: Any, sentence: str
) -> None:
    damage(base / "model")
    client = Client(base, stack)
    with pytest.raises(Exception) as caught, anyio.fail_after(60):
        await client.run()
    described = describe_failure(caught.value)
    assert described is not None, "the user would see a traceback"
    assert described[1] == 1
    assert sentence in described[0]
    assert "\n" not in described[0]
    assert [event for event in client.told if isinstance(event, telemetry.Ended)] == [
        telemetry.Ended(described[0], success=False)
    ]
    assert_never_joined(client)


def assert_never_joined(client: Client) -> None:
    assert client.coordinator.state.pending == ()
    assert client.coordinator.state.epoch.clients == ()


LEMON = """
from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.errors import PayloadRejected
from psyche_core.hookspecs import DataRegistration, OptimizerRegistration, hookimpl
from psyche_core.interfaces.data import Samples

PSYCHE_PLUGIN_API = "1.0"

class Lemon(AdamW):
    def check(self, payload):
        {check}

class Short(DummyData):
    @property
    def sequence_length(self):
        return super().sequence_length - {announced}
    @property
    def num_sequences(self):
        return {sequences}
    async def read(self, batches, *, timeout):
        samples = await super().read(batches, timeout=timeout)
        row = samples.sequence_length * samples.token_size
        return Samples(samples.tokens[row:], samples.count - 1, samples.sequence_length, samples.token_size)

def create(context):
    {create}
    return Lemon(context.settings, context.model)

@hookimpl
def psyche_register_optimizers():
    return [OptimizerRegistration(name="Lemon", summary="sour", settings=AdamWSettings, create=create)]

@hookimpl
def psyche_register_data():
    length = lambda context: Short(sequence_length=context.sequence_length)
    return [DataRegistration(name="Short", summary="one less", settings=None, create=length)]
"""


@pytest.fixture
def lemon(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Install a distribution whose optimizer and data break their contracts, as it is told."""
    folder = tmp_path / "site"

    def install(*, check: str = "pass", create: str = "pass", announced: int = 0, sequences: int = 100) -> None:
        info = folder / "lemon-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lemon\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\noptimizer.Lemon = lemon_plugin\ndata.Short = lemon_plugin\n")
        (folder / "lemon_plugin.py").write_text(
            LEMON.format(check=check, create=create, announced=announced, sequences=sequences)
        )
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()

    yield install
    sys.path.remove(str(folder))
    sys.modules.pop("lemon_plugin", None)
    importlib.invalidate_caches()


SOUR = RUN.replace("optimizer = { AdamW", "optimizer = { Lemon")
SHORT = RUN.replace('data_location = "Dummy"', 'data_location = "Short"')


@pytest.mark.parametrize(
    ("run", "broken", "sentence"),
    [
        (
            SOUR,
            {"create": "raise KeyError('betas')"},
            "the optimizer plugin Lemon (lemon 1.2) failed in its create",
        ),
        (
            SOUR,
            {"check": "raise PayloadRejected('sour')"},
            "the optimizer plugin Lemon (lemon 1.2) made a result for step 1 that its own check refuses (sour)",
        ),
        (SHORT, {"announced": 1}, "the data plugin Short (lemon 1.2) says that its sequences have 15 tokens"),
        (SHORT, {"sequences": 0}, "the data plugin Short (lemon 1.2) says that its num_sequences is 0, expected an int"),
    ],
    ids=["factory", "own result", "sequence length", "no sequences"],
)
async def test_a_plugin_that_breaks_its_contract_ends_the_client_with_a_sentence_that_names_it(
    base: Path, stack: AsyncExitStack, lemon: Callable[..., None], run: str, broken: dict[str, Any], sentence: str
) -> None:
    lemon(**broken)
    client = Client(base, stack, run=run)
    with pytest.raises(Exception) as caught, anyio.fail_after(60):
        await client.run()
    described = describe_failure(caught.value)
    assert described is not None, "the user would see a traceback"
    assert described[1] == 1
    assert described[0].startswith(sentence)
    assert [event for event in client.told if isinstance(event, telemetry.Ended)] == [
        telemetry.Ended(described[0], success=False)
    ]


async def test_data_that_is_one_sequence_short_is_told_and_not_trained_on(
    base: Path, stack: AsyncExitStack, lemon: Callable[..., None]
) -> None:
    lemon()
    client = Client(base, stack, run=SHORT)

    def short() -> list[str]:
        return [event.message for event in client.told if isinstance(event, telemetry.Problem)]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.run)
        with anyio.fail_after(60):
            while not short():
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    said = "step 1 was not trained: the data plugin Short (lemon 1.2) gave 3 sequences where 4 were asked for"
    assert short()[0].startswith(said)
    assert not [event for event in client.told if isinstance(event, telemetry.StepTrained)]


@pytest.mark.parametrize(
    ("was", "said"),
    [
        ('architecture = "HfAuto"', 'architecture = "Perceptron"'),
        ("optimizer = { AdamW", "optimizer = { Luck"),
        ('data_location = "Dummy"', 'data_location = "Papyrus"'),
    ],
)
async def test_a_run_that_needs_a_plugin_we_lack_is_not_joined(base: Path, stack: AsyncExitStack, was: str, said: str) -> None:
    client = Client(base, stack, run=RUN.replace(was, said))
    with pytest.raises(Exception) as caught, anyio.fail_after(60):
        await client.run()
    described = describe_failure(caught.value)
    assert described is not None, "the user would see a traceback"
    assert said.split()[-1].strip('"') in described[0]
    assert_never_joined(client)


async def test_the_model_that_was_opened_before_joining_is_the_one_that_is_trained(base: Path, stack: AsyncExitStack) -> None:
    client = Client(base, stack)
    with anyio.fail_after(120):
        assert (await client.run()).success
    assert [type(event) for event in client.told].count(telemetry.ModelLoaded) == 1
    first = [
        event for event in client.told if isinstance(event, telemetry.ModelLoading | telemetry.ModelLoaded | telemetry.Joined)
    ]
    assert [type(event) for event in first] == [telemetry.ModelLoading, telemetry.ModelLoaded, telemetry.Joined], (
        "who waits is told why"
    )
    assert first[0] == telemetry.ModelLoading("'model' (HfAuto)")
    assert [event.step for event in client.told if isinstance(event, telemetry.StepTrained)] == [1, 2, 3, 4]


async def test_a_micro_batch_that_was_left_to_us_is_told_once(base: Path, stack: AsyncExitStack) -> None:
    client = Client(base, stack, micro_batch_size="auto")
    benches = [await client.build(ResourcesRequest(client.state)) for _ in range(2)]
    assert [event for event in client.told if isinstance(event, telemetry.MicroBatchFound)] == [telemetry.MicroBatchFound(16)]
    assert [bench.trainer.micro_batch_size for bench in benches] == [16, 16]  # type: ignore[attr-defined]


def begun(client: Client, *, step: int) -> None:
    """The run has come so far, and still names the model that it began with."""
    client.state = replace(client.state, progress=replace(client.state.progress, step=step))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": "cuda:77"}, "device cuda:77 was asked for"),
        ({"validation_data": Path("nosuch")}, "nosuch"),
        ({"checkpoint_dir": "saved"}, "another process uses the journal"),
    ],
    ids=["device", "validation", "folder"],
)
async def test_a_run_that_has_begun_is_not_joined_by_who_cannot_take_part(
    base: Path, stack: AsyncExitStack, settings: dict[str, Any], said: str
) -> None:
    """Its model is not opened before joining, for the members may hold another; everything else is looked at."""
    stack.enter_context(lock_journal(base / "saved", "assembled"))
    client = Client(
        base, stack, **{name: base / value if name == "checkpoint_dir" else value for name, value in settings.items()}
    )
    begun(client, step=3)
    with pytest.raises(Exception) as caught, anyio.fail_after(60):
        await client.run()
    described = describe_failure(caught.value)
    assert described is not None
    assert said in described[0]
    assert_never_joined(client)


async def test_from_what_a_client_goes_on_is_told(base: Path, stack: AsyncExitStack) -> None:
    saved = base / "saved"
    client = Client(base, stack, checkpoint_dir=saved)
    begun(client, step=4)
    trainer: Any = (await client.build(ResourcesRequest(client.state))).trainer
    assert resumed(client) == [telemetry.Resumed(str(saved), None, None, 3)]

    digest, instance = trainer.full_digest(), client.state.instance
    facts = CheckpointFacts(run_id="assembled", step=2, epoch=0, data_index=8, digest=digest, instance=instance)
    save_checkpoint(checkpoint_path(saved, "assembled", 2), facts, write=trainer.save)
    await client.build(ResourcesRequest(client.state))
    await client.build(ResourcesRequest(client.state))
    assert resumed(client)[1:] == [telemetry.Resumed(str(saved), 2, 2, 3, again=True)], "once"


async def test_a_client_that_begins_with_its_run_goes_on_from_nothing_and_says_nothing(base: Path, stack: AsyncExitStack) -> None:
    client = Client(base, stack, checkpoint_dir=base / "saved")
    await client.build(ResourcesRequest(client.state))
    assert resumed(client) == []


def resumed(client: Client) -> list[telemetry.Resumed]:
    return [event for event in client.told if isinstance(event, telemetry.Resumed)]


async def test_options_reach_the_model(base: Path, stack: AsyncExitStack) -> None:
    client = Client(base, stack, micro_batch_size=3, compute_dtype="bfloat16", attention="eager", gradient_checkpointing=True)
    trainer: Any = (await client.build(ResourcesRequest(client.state))).trainer
    assert trainer.micro_batch_size == 3
    module = trainer._model._first.module
    assert module.config._attn_implementation == "eager"
    assert all(layer.gradient_checkpointing for layer in module.model.layers)
    assert trainer._model._first._autocast
    assert not any(isinstance(event, telemetry.MicroBatchFound) for event in client.told)
