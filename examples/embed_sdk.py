"""Three clients train one small Llama inside this program: python examples/embed_sdk.py; see docs/reference/sdk.md."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from psyche_core import Client, Coordinator, RunConfig, events

TEXT = (Path(__file__).read_text() * 12).encode()
DATA = [list(TEXT[at : at + 32]) for at in range(0, len(TEXT) - 32, 32)]  # bytes as tokens


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)  # every member begins with the same weights
    sizes = LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    return LlamaForCausalLM(sizes)


async def train(*, steps: int = 20, clients: int = 3, optimizer: str = "AdamW") -> list[list[events.Event]]:
    told: list[list[events.Event]] = [[] for _ in range(clients)]
    shape: dict[str, Any] = {"sequence_length": 32, "batch_size": 12, "steps_per_epoch": 10}
    run = RunConfig("embedded", total_steps=steps, clients=clients, learning_rate=5e-3, optimizer=optimizer, **shape)
    async with Coordinator(run) as host, AsyncExitStack() as stack:
        members = [Client(host.address, model=make_model(), data=DATA, callbacks=[own.append], device="cpu") for own in told]
        for member in members:
            await stack.enter_async_context(member)
        for member in members:
            await member.wait()
    return told


if __name__ == "__main__":
    for number, own in enumerate(anyio.run(train)):
        print(number, *[event for event in own if isinstance(event, (events.EpochDigest, events.Ended))])
