"""An optimizer whose parts are on real ranks is the undivided one: payloads, digests, checkpoints, pieces, private state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from psyche_core.builtin.hf_models import divide
from psyche_core.config.run_config import Choice, ModelConfig
from psyche_core.errors import WireError
from psyche_core.hookspecs import ModelContext, ModelRegistration, Parallelism, Registration, ShardingRegistration
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.optimizer_parts import Number, PartValues
from psyche_core.models.sharding.controller import RankController
from psyche_core.models.sharding.dtensor import DTensorEngine
from psyche_core.models.sharding.model import ShardedModel
from psyche_core.models.sharding.part_values import header_of, read_header
from psyche_core.p2p.manifest import cut
from psyche_core.testing.model import ModelConformance
from psyche_core.testing.tiny_models import TIED_LLAMA
from psyche_core.training.build import Compute, build_optimizer, build_trainer
from psyche_core.training.trainer import Trainer
from psyche_core.wire.codec import encode as encode_cbor
from psyche_optim_distro.division.divided import DividedDistro
from psyche_optim_distro.hooks import psyche_register_optimizers
from psyche_optim_distro.optimizer import DistroOptimizer

CONFIG = {**TIED_LLAMA, "hidden_size": 64, "intermediate_size": 128}
ROUNDS = 6
SETTINGS: dict[str, dict[str, Any]] = {
    "signs": {"compression_topk": 8, "quantize_1bit": True, "clip_grad_norm": 1.0, "gradient_beta2": 0.9, "weight_decay": 0.1},
    "values": {"compression_chunk": 4, "lookahead": "payload"},
    "public": {"compression_topk": 8, "quantize_1bit": True, "second_stage": "rmsprop"},
}


@pytest.fixture(scope="module")
def controller() -> Iterator[RankController]:
    torch.set_num_threads(1)
    controller = RankController(Parallelism(tensor=2), device_name="cpu")
    yield controller
    assert controller.close() == {1: 0}, "ranks that are told to end do so in good order"


@pytest.fixture
def context(tmp_path: Path) -> ModelContext:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(json.dumps(CONFIG))
    return ModelContext(source=tmp_path / "source", max_seq_len=16, seed=bytes(32), device="cpu", create_engine=DTensorEngine)


def model_of(context: ModelContext, controller: RankController, *, data: int, tensor: int) -> ShardedModel:
    parallelism = Parallelism(data=data, tensor=tensor)
    return divide(
        ModelContext(
            source=context.source,
            max_seq_len=context.max_seq_len,
            seed=context.seed,
            device="cpu",
            parallelism=parallelism,
            create_engine=DTensorEngine,
        ),
        controller=controller,
    )


def registry_load(kind: str, name: str) -> Registration:
    (registration,) = psyche_register_optimizers()
    assert (kind, name) == ("optimizer", "Distro")
    return registration


def trainer_of(model: ShardedModel, settings: dict[str, Any], *, divided: bool) -> Trainer:
    optimizer = build_optimizer(registry_load, Choice(name="Distro", settings=settings), model, divided=divided)
    assert isinstance(optimizer, DividedDistro if divided else DistroOptimizer)
    return Trainer(model=model, optimizer=optimizer, learning_rate=lambda _: 1e-3, micro_batch_size=2)


def share(model: ShardedModel, step: int) -> Samples:
    return ModelConformance().samples(model, count=4, sequence_length=16, seed=step)


def train(model: ShardedModel, trainer: Trainer) -> tuple[list[bytes], list[bytes]]:
    """Payloads and digests of some rounds; one of them is without results, and ours of another is left out."""
    payloads: list[bytes] = []
    digests: list[bytes] = []
    for step in range(1, ROUNDS + 1):
        if step > 2:
            accepted = payloads[step - 3 : step - 1] if step == 5 else payloads[step - 3 : step - 2] if step != 4 else []
            for payload in accepted:
                trainer.check(payload)
            trainer.apply(step - 2, accepted, own_accepted=step != 4)
        payloads.append(trainer.train(step, share(model, step)).payload)
        digests.append(trainer.full_digest())
    return payloads, digests


@pytest.mark.parametrize("degree", [(1, 2), (2, 1)], ids=["tensor", "data"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_run_is_the_same_with_a_divided_optimizer(
    context: ModelContext, controller: RankController, degree: tuple[int, int], settings: dict[str, Any], tmp_path: Path
) -> None:
    data, tensor = degree
    whole_model = model_of(context, controller, data=data, tensor=tensor)
    whole = trainer_of(whole_model, settings, divided=False)
    expected = train(whole_model, whole)
    whole.save(tmp_path / "whole")
    whole.save_private(tmp_path / "whole.private")

    model = model_of(context, controller, data=data, tensor=tensor)
    divided = trainer_of(model, settings, divided=True)
    assert divided.parameter_count == whole.parameter_count
    assert train(model, divided) == expected
    divided.save(tmp_path / "divided")
    divided.save_private(tmp_path / "divided.private")
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "divided").iterdir())
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "divided" / name).read_bytes(), name
    assert divided.evaluate(share(model, 50)) == whole_loss(whole_model, whole, model, share(model, 50))

    # each starts again from what the other left
    assert divided.table == whole.table
    pieces = {piece.number: whole.read_piece(piece) for piece in cut(whole.table)}
    assert pieces == {piece.number: divided.read_piece(piece) for piece in cut(divided.table)}
    divided.forget()
    assert divided.full_digest() == expected[1][-1], "what is forgotten is private"
    assert divided.load_private(tmp_path / "whole.private")
    assert whole.load_private(tmp_path / "divided.private")


def whole_loss(model: ShardedModel, trainer: Trainer, current: ShardedModel, samples: Samples) -> float:
    """The loss of the whole one's masters, computed by the model that the ranks have now."""
    trainer.load_masters()
    kept = {name: parameter.detach().clone() for name, parameter in current.parameters.items()}
    for name, parameter in model.parameters.items():
        current.parameters[name].data.copy_(parameter.data)
    loss = current.loss(samples, micro_batch_size=2)
    for name, tensor in kept.items():
        current.parameters[name].data.copy_(tensor)
    return loss


@pytest.mark.parametrize("checked", [False, True])
def test_a_run_whose_shares_are_checked_keeps_the_optimizer_whole(
    context: ModelContext, controller: RankController, *, checked: bool
) -> None:
    def load(kind: str, name: str) -> Registration:
        if kind == "sharding":
            return ShardingRegistration(name=name, summary="", create=DTensorEngine)
        if kind == "model":
            return ModelRegistration(
                name=name, summary="", create=lambda given: divide(given, controller=controller), parallel=True
            )
        return registry_load(kind, name)

    llm = {
        "max_seq_len": 16,
        "architecture": "HfLlama",
        "checkpoint": {"Hub": {"repo_id": "model"}},
        "data_type": "Pretraining",
        "data_location": "Dummy",
        "lr_schedule": {"Constant": {"base_lr": 0.01, "warmup_init_lr": 0.0, "warmup_steps": 0}},
        "optimizer": {"Distro": {**SETTINGS["signs"], "compression_subtract": 1.0}},
    }
    trainer = build_trainer(
        registry_load=load,
        model_config=ModelConfig.model_validate({"LLM": llm}),
        run_id="here",
        source=context.source,
        compute=Compute(device="cpu", parallelism=Parallelism(tensor=2)),
        checked=checked,
    )
    assert (trainer.replay is not None) is checked, "only a whole optimizer can be replayed"


def test_parts_of_an_earlier_optimizer_are_refused(context: ModelContext, controller: RankController) -> None:
    model = model_of(context, controller, data=1, tensor=2)
    earlier = trainer_of(model, SETTINGS["signs"], divided=True)
    trainer_of(model, SETTINGS["signs"], divided=True)
    with pytest.raises(ValueError, match="were replaced by those of another one"):
        earlier.full_digest()


def test_headers_come_back() -> None:
    tensors = {"a": torch.zeros(3, 4), "empty": torch.zeros(0, dtype=torch.int64), "scalar": torch.zeros((), dtype=torch.uint16)}
    numbers: dict[str, Number] = {"step": 3, "rate": 1e-3, "accepted": True, "kind": "masters"}
    came, expected = read_header(header_of(PartValues(numbers, tensors)))
    assert came == numbers
    assert expected == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff",
        encode_cbor({"numbers": {}}),
        encode_cbor({"numbers": {}, "tensors": [], "more": 1}),
        encode_cbor({"numbers": {"a": None}, "tensors": []}),
        encode_cbor({"numbers": {1: 1}, "tensors": []}),
        encode_cbor({"numbers": {}, "tensors": [["a", "complex64", [1]]]}),
        encode_cbor({"numbers": {}, "tensors": [["a", "float32", [-1]]]}),
        encode_cbor({"numbers": {}, "tensors": [["a", "float32", [True]]]}),
        encode_cbor({"numbers": {}, "tensors": [["a", "float32", [2**30, 2**30]]]}),
        encode_cbor({"numbers": {}, "tensors": [["a", "float32"]]}),
    ],
)
def test_another_header_is_refused_before_memory_is_taken(header: bytes) -> None:
    with pytest.raises(WireError):
        read_header(header)


def test_what_ranks_do_not_send_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="tensor a has a dtype that ranks do not send"):
        header_of(PartValues({}, {"a": torch.zeros(1, dtype=torch.complex64)}))
