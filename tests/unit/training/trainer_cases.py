"""What tests of training share: a model and samples it can learn."""

from __future__ import annotations

import torch

from psyche_core.interfaces.data import Samples

LLAMA = {
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def samples(seed: int, *, count: int = 4, sequence_length: int = 16) -> Samples:
    """Tokens that count up by a step of their own per sequence: learnable."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(61, (count, 1), generator=generator)
    ids = (start + torch.arange(sequence_length)) % 61  # (B, T)
    return Samples(b"".join(int(token).to_bytes(2, "little") for token in ids.flatten()), count, sequence_length, 2)
