"""Three clients train one model inside this program: no server, no sockets, the same rules.

    python examples/embed_sdk.py

What it shows: a run configuration, an in-process coordinator (`MemoryCoordinator`), an in-process network (`MemoryNetwork`), and
one `ClientRuntime` per member with its own model, optimizer and data, all chosen by plugin name. Exchange the two memory parts
for `tcp` and `quic` and the three members can sit on three machines.
"""

from __future__ import annotations

import argparse
import json
import secrets
import tempfile
from pathlib import Path

import anyio
import torch

from psyche_core.builtin.memory_backend import MemoryCoordinator
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.runtime.resources import Resources, Start
from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import new_state
from psyche_core.hookspecs import DataContext
from psyche_core.plugins import PluginRegistry, validate_settings
from psyche_core.telemetry.events import EpochDigest, Event, StepTrained
from psyche_core.telemetry.sinks import EventBus
from psyche_core.training.build import Compute, build_trainer
from psyche_core.wire.signing import SecretKey

RUN = """
run_id = "embedded"
[config]
warmup_time = 30
cooldown_time = 1
max_round_train_time = 30
round_witness_time = 2
epoch_time = 300
rounds_per_epoch = 10
total_steps = {steps}
init_min_clients = {clients}
min_clients = {clients}
witness_nodes = 0
global_batch_size_start = 12
global_batch_size_end = 12
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 1
[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 32
cold_start_warmup_steps = 0
checkpoint = {{ Hub = {{ repo_id = "model" }} }}
data_location = {{ Local = {{ location = "data" }} }}
lr_schedule = {{ Constant = {{ base_lr = 5e-3, warmup_init_lr = 0.0, warmup_steps = 2 }} }}
optimizer = {{ {optimizer} }}
"""

OPTIMIZERS = {
    "AdamW": "AdamW = { betas = [0.9, 0.95], weight_decay = 0.1, eps = 1e-8, clip_grad_norm = 1.0 }",
    "Distro": "Distro = { clip_grad_norm = 1.0, compression_decay = 0.999, compression_topk = 32, compression_chunk = 32, quantize_1bit = true }",  # noqa: E501
}

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def write_inputs(folder: Path) -> None:
    """A model folder without weights (random ones follow from the run id) and bytes of English as two-byte tokens."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    (folder / "data").mkdir()
    text = (Path(__file__).read_text() * 4).encode()
    (folder / "data" / "text.bin").write_bytes(b"".join(byte.to_bytes(2, "little") for byte in text))


async def train(*, steps: int = 20, clients: int = 3, optimizer: str = "AdamW") -> dict[str, list[Event]]:
    """Run to the end; every event of every client, by client."""
    run = parse_run_file(RUN.format(steps=steps, clients=clients, optimizer=OPTIMIZERS[optimizer]), source="embed_sdk.py")
    registry = await anyio.to_thread.run_sync(PluginRegistry.discover)
    coordinator = MemoryCoordinator(new_state(run.run_id, run.config, run.model, instance=secrets.token_bytes(32)))
    network = MemoryNetwork()
    events: dict[str, list[Event]] = {}

    async def member(folder: Path) -> None:
        key = SecretKey.generate()
        own = events[key.public[:4].hex()] = []
        registration = await anyio.to_thread.run_sync(lambda: registry.load("data", run.model.LLM.data_location.name))
        settings = validate_settings(registration, run.model.LLM.data_location.settings, where="data_location")
        data = registration.create(DataContext(settings=settings, sequence_length=32, base=folder))

        async def build(start: Start) -> Resources:
            def trainer() -> Resources:
                return Resources(
                    build_trainer(
                        registry_load=registry.load,
                        model_config=start.state.model,
                        run_id=start.state.run_id,
                        source=folder / "model",
                        compute=Compute(device="cpu", micro_batch_size=4),
                    ),
                    data,
                )

            return await anyio.to_thread.run_sync(trainer)

        async with (
            coordinator.backend(key) as backend,
            MemoryTransport(network, key.public) as transport,
            data,
        ):
            report = EventBus(own.append)
            runtime = ClientRuntime(run_id=run.run_id, key=key, backend=backend, transport=transport, build=build, report=report)
            await runtime.run()

    with tempfile.TemporaryDirectory() as name:
        await anyio.to_thread.run_sync(write_inputs, Path(name))
        async with anyio.create_task_group() as clock:
            clock.start_soon(coordinator.run)
            async with anyio.create_task_group() as members:
                for _ in range(clients):
                    members.start_soon(member, Path(name))
            clock.cancel_scope.cancel()
    return events


def main() -> None:
    """Train and show each client's losses and the digests that prove the replicas equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="AdamW", help="Distro needs psyche-core[distro]")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    events = anyio.run(lambda: train(steps=arguments.steps, clients=arguments.clients, optimizer=arguments.optimizer))
    for client, told in events.items():
        losses = [event.loss for event in told if isinstance(event, StepTrained)]
        digests = [event.sha256[:12] for event in told if isinstance(event, EpochDigest)]
        print(f"{client}  loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps  replica {' '.join(digests)}")


if __name__ == "__main__":
    main()
