from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psyche_core.builtin import hooks
from psyche_core.errors import PluginError
from psyche_core.hookspecs import (
    BackendContext,
    DataContext,
    ModelContext,
    OptimizerContext,
    OptimizerRegistration,
    TransportContext,
)
from psyche_core.interfaces import DataProvider, Model, Optimizer, Transport
from psyche_core.wire.signing import SecretKey

HOOKS: dict[str, Callable[[], list[Any]]] = {
    "backend": hooks.psyche_register_backends,
    "transport": hooks.psyche_register_transports,
    "data": hooks.psyche_register_data,
    "model": hooks.psyche_register_models,
    "optimizer": hooks.psyche_register_optimizers,
    "sharding": hooks.psyche_register_sharding,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 31,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def registration(kind: str, name: str) -> Any:
    return next(found for found in HOOKS[kind]() if found.name == name)


def test_entry_points_and_registrations_name_the_same_things() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    declared = project["project"]["entry-points"]["psyche.plugins"]
    assert {name for name, module in declared.items() if module == hooks.__name__} == {
        f"{kind}.{found.name}" for kind, hook in HOOKS.items() for found in hook()
    }
    assert all(found.summary for hook in HOOKS.values() for found in hook())


def test_registering_imports_neither_torch_nor_transformers_nor_iroh() -> None:
    """The coordinator server validates optimizer settings; it must not pay for torch."""
    program = f"""
import sys
from psyche_core.builtin import hooks
for name in {sorted(hook.__name__ for hook in HOOKS.values())!r}:
    for found in getattr(hooks, name)():
        settings = getattr(found, "settings", None)
        if found.name == "AdamW":
            settings.model_validate({{}})
print([name for name in ("torch", "transformers", "safetensors", "iroh") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["HfLlama", "HfAuto"])
def test_model_factories_build_models_and_adamw_takes_them(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    model = registration("model", name).create(ModelContext(source=tmp_path, max_seq_len=8, seed=bytes(32), device="cpu"))
    assert isinstance(model, Model)
    adamw = registration("optimizer", "AdamW")
    assert isinstance(adamw, OptimizerRegistration)
    optimizer = adamw.create(
        OptimizerContext(settings=adamw.settings.model_validate({"weight_decay": 0.1, "clip_grad_norm": 1.0}), model=model)
    )
    assert isinstance(optimizer, Optimizer)
    assert list(optimizer.masters) == list(model.parameters)


def test_data_factories_build_providers(tmp_path: Path) -> None:
    dummy = registration("data", "Dummy").create(DataContext(settings=None, sequence_length=8))
    assert isinstance(dummy, DataProvider)
    local = registration("data", "Local")
    settings = local.settings.model_validate({"location": "tokens"})
    provider = local.create(DataContext(settings=settings, sequence_length=8, base=tmp_path))
    assert isinstance(provider, DataProvider)


async def test_memory_transport_is_built() -> None:
    context = TransportContext(run_id="run", key=SecretKey.generate())
    transport = registration("transport", "memory").create(context)
    assert isinstance(transport, Transport)


def test_memory_backend_says_that_it_has_no_address() -> None:
    context = BackendContext(run_id="run", address="host:1", key=SecretKey.generate())
    with pytest.raises(PluginError, match="no address to connect to, got 'host:1'"):
        registration("backend", "memory").create(context)
