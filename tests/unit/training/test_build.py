from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel

from psyche_core.builtin import hooks
from psyche_core.config.run_config import Choice, ModelConfig
from psyche_core.coordinator.learning_rate import learning_rate
from psyche_core.errors import ConfigError
from psyche_core.interfaces.data import Samples
from psyche_core.training.build import Compute, build_trainer, model_seed

LLAMA = {
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SCHEDULE = {"Cosine": {"base_lr": 0.5, "warmup_init_lr": 0.0, "warmup_steps": 4, "final_lr": 0.1, "total_steps": 20}}


def load(kind: str, name: str) -> Any:
    hook: dict[str, Callable[[], list[Any]]] = {
        "model": hooks.psyche_register_models,
        "optimizer": hooks.psyche_register_optimizers,
    }
    return next(registration for registration in hook[kind]() if registration.name == name)


def config(**changes: Any) -> ModelConfig:
    llm = {
        "max_seq_len": 16,
        "cold_start_warmup_steps": 4,
        "architecture": "HfLlama",
        "checkpoint": {"Hub": {"repo_id": "model"}},
        "data_type": "Pretraining",
        "data_location": "Dummy",
        "lr_schedule": SCHEDULE,
        "optimizer": {"AdamW": {"betas": [0.9, 0.95], "weight_decay": 0.0, "eps": 1e-8}},
        **changes,
    }
    return ModelConfig.model_validate({"LLM": llm})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def build(base: Path, model_config: ModelConfig | None = None, *, run_id: str = "run", **changes: Any) -> Any:
    changes.setdefault("compute", Compute(device="cpu"))
    model_config = model_config or config()
    return build_trainer(registry_load=load, model_config=model_config, run_id=run_id, source=base / "model", **changes)


def test_members_of_a_run_start_equal_and_runs_differ(base: Path) -> None:
    digests = [build(base, run_id=run_id).full_digest() for run_id in ("run", "run", "other")]
    assert digests[0] == digests[1] != digests[2]
    assert model_seed("run") == hashlib.sha256(b"psyche/model-seedrun").digest()


def moved_by(base: Path, *, step: int, **changes: Any) -> float:
    """How far one weight moves when the result of `step` is applied, in units of its direction: the learning rate used."""
    trainer = build(base, **changes)
    masters = trainer._optimizer.masters["model.norm.weight"]
    samples = Samples(b"".join(token.to_bytes(2, "little") for token in range(16)), 1, 16, 2)
    payload = trainer.train(step, samples).payload
    before = masters.clone()
    trainer.apply(step, [payload], own_accepted=True)
    return float((masters - before).abs().max())  # the first direction of AdamW is ±1


def test_results_are_applied_with_the_rate_of_two_steps_later(base: Path) -> None:
    for step in (1, 3, 9):
        expected = learning_rate(Choice.parse(SCHEDULE), step + 2)
        assert moved_by(base, step=step) == pytest.approx(expected, rel=0.01)


def test_cold_start_scales_the_rate(base: Path) -> None:
    expected = learning_rate(Choice.parse(SCHEDULE), 10 + 2) * 3 / 4  # step 12 of the window 9..13
    assert moved_by(base, step=10, cold_start_bounds=lambda: (9, 13)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("weights", [False, True])
def test_a_late_joiner_builds_the_skeleton_of_a_run_that_shares_its_model(base: Path, weights: bool) -> None:
    """A run's checkpoint turns from Hub to P2P after its first epoch: same directory, same starting point."""
    if weights:
        build(base, run_id="other").save(base / "saved")
        (base / "model").rename(base / "bare")
        (base / "saved").rename(base / "model")
    hub, p2p = (build(base, config(checkpoint={kind: {"repo_id": "model"}})) for kind in ("Hub", "P2P"))
    assert p2p.full_digest() == hub.full_digest()
    assert p2p.table == hub.table


def test_bad_optimizer_settings_name_their_key(base: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.LLM\.optimizer\.AdamW\.epsilon"):
        build(base, config(optimizer={"AdamW": {"epsilon": 1e-8}}))


def test_wrong_settings_of_the_optimizer_are_told_before_the_model_is_loaded(base: Path) -> None:
    def registry_load(kind: str, name: str) -> Any:
        assert kind == "optimizer", "the model is loaded first"
        return load(kind, name)

    wrong = config(optimizer={"AdamW": {"epsilon": 1e-8}})
    with pytest.raises(ConfigError, match="epsilon"):
        build_trainer(registry_load=registry_load, model_config=wrong, run_id="run", source=base / "model")


def test_a_plugin_that_would_ignore_unknown_keys_is_not_asked(base: Path) -> None:
    class Lax(BaseModel):
        eps: float = 1e-8

    lax = replace(load("optimizer", "AdamW"), settings=Lax)

    def registry_load(kind: str, name: str) -> Any:
        return lax if kind == "optimizer" else load(kind, name)

    with pytest.raises(ConfigError, match=r"model\.LLM\.optimizer\.AdamW\.epss: unknown key; did you mean eps\?"):
        build_trainer(
            registry_load=registry_load,
            model_config=config(optimizer={"AdamW": {"epss": 1e-8}}),
            run_id="run",
            source=base / "model",
        )


def test_registry_that_gives_another_kind_is_a_programming_error(base: Path) -> None:
    swapped = {"model": load("optimizer", "AdamW"), "optimizer": load("model", "HfLlama")}
    with pytest.raises(TypeError, match="ModelRegistration"):
        build_trainer(registry_load=lambda kind, _: swapped[kind], model_config=config(), run_id="run", source=base / "model")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
