"""A tiny model folder with random weights and the demo's tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
import transformers

from psyche_core.testing.tiny_models import LLAMA

EXAMPLE = Path(__file__).parents[3] / "examples" / "local_testnet" / "model"


def make_checkpoint(folder: Path, *, tokenizer: bool = True, max_position_embeddings: int = 128) -> Path:
    """Write the folder. tokenizer: whether it holds one."""
    fields = {**LLAMA, "vocab_size": 1024, "max_position_embeddings": max_position_embeddings, "eos_token_id": 0}
    config = transformers.LlamaConfig(**{name: value for name, value in fields.items() if name != "model_type"})
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = transformers.LlamaForCausalLM(config)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.5)  # so that probabilities differ
    module.save_pretrained(folder)
    if tokenizer:
        for path in EXAMPLE.glob("tokenizer*.json"):
            shutil.copy(path, folder)
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 1024
    return folder
