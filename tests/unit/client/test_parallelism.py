"""Options about dividing the model, and what the loss of its processes does to a client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from party import RUN
from psyche_core.builtin import hooks
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.runtime.resources import Resources
from psyche_core.client.runtime.worker import Worker
from psyche_core.client.setup.parallelism import parallelism_of
from psyche_core.config.options.train_local import TrainLocalSettings
from psyche_core.config.run_config import parse_run_file
from psyche_core.errors import ConfigError, ModelError, RanksLost
from psyche_core.hookspecs import ModelRegistration, Parallelism
from psyche_core.testing.tiny_models import LLAMA
from psyche_core.training.build import Compute, build_model, build_trainer
from psyche_core.types import BatchId


def settings(**given: Any) -> TrainLocalSettings:
    return TrainLocalSettings(state=Path("state.toml"), **given)


def test_one_process_asks_for_nothing() -> None:
    assert parallelism_of(settings()) is None


def test_options_arrive(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef\n")
    secret.chmod(0o600)
    given = settings(
        data_parallelism=2,
        tensor_parallelism=3,
        sharding="deepspeed",
        sidecar_bind="192.168.1.10:29400",
        sidecar_local_ranks=4,
        sidecar_secret_file=secret,
        torch_threads=2,
    )
    assert parallelism_of(given) == Parallelism(
        data=2,
        tensor=3,
        sharding="deepspeed",
        bind="192.168.1.10:29400",
        local_ranks=4,
        secret=b"0123456789abcdef",
        torch_threads=2,
    )
    assert "0123" not in repr(parallelism_of(given))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"data_parallelism": 2, "sidecar_local_ranks": 3},
            "--sidecar-local-ranks 3 is more than data times tensor",
        ),
        ({"data_parallelism": 2, "sidecar_local_ranks": 1}, "need --sidecar-bind HOST:PORT to join at and --sidecar-secret-file"),
        ({"data_parallelism": 2, "sidecar_secret_file": Path("/nowhere")}, "--sidecar-secret-file cannot be used"),
    ],
)
def test_halves_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parallelism_of(settings(**given))


def test_a_short_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(ConfigError, match="can be read by other users of this machine"):
        parallelism_of(settings(data_parallelism=2, sidecar_secret_file=tmp_path / "secret"))
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(ConfigError, match="has 5 bytes, at least 16 are needed"):
        parallelism_of(settings(data_parallelism=2, sidecar_secret_file=tmp_path / "secret"))


def run_config() -> Any:
    table = {"total_steps": 9, "clients": 2, "min_clients": 2, "witness_nodes": 0, "rounds_per_epoch": 3, "cooldown_time": 1}
    return parse_run_file(RUN.format(**table), source="world")


def test_a_micro_batch_size_is_not_tried_out_with_several_processes(tmp_path: Path) -> None:
    compute = Compute(parallelism=Parallelism(data=2), micro_batch_size="auto")
    with pytest.raises(ConfigError, match="--micro-batch-size auto is not supported for a divided model"):
        build_trainer(
            registry_load=lambda *_: pytest.fail("nothing is loaded"),
            model_config=run_config().model,
            run_id="run",
            source=tmp_path,
            compute=compute,
        )


def test_an_architecture_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    registration = ModelRegistration(name="Other", summary="…", create=lambda _: pytest.fail("nothing is built"))
    with pytest.raises(ModelError, match="cannot be divided among processes"):
        build_model(
            lambda *_: registration,
            run_config().model.LLM,
            Compute(parallelism=Parallelism(data=2)),
            run_id="run",
            source=tmp_path,
        )


def test_first_party_models_can_be_divided() -> None:
    assert all(registration.parallel for registration in hooks.psyche_register_models())
    assert json.dumps(dict(LLAMA))


class LostTrainer:
    """Its ranks are gone."""

    vocab_size = 256

    def train(self, step: int, samples: Any) -> Any:
        message = "rank 1 (process 7) was ended by SIGKILL"
        raise RanksLost(message)


async def test_lost_ranks_end_the_client_and_not_one_step_after_another() -> None:
    transport = MemoryTransport(MemoryNetwork(), bytes(32))
    worker = Worker(lambda _: pytest.fail("not asked for"), transport=transport, report=lambda _: None)
    data = DummyData(sequence_length=4)
    worker._resources = Resources(LostTrainer(), data)  # type: ignore[arg-type]
    worker._sequence_length = 4
    with anyio.fail_after(10), pytest.raises(RanksLost, match="rank 1"):
        await worker.do(act.Train(height=1, step=1, share=(BatchId(0, 0),), tag=1))
