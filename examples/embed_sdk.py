"""Three clients train one small Llama inside this program: python examples/embed_sdk.py; see docs/reference/sdk.md."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import torch
import transformers

import psyche_core as psyche

TEXT = (Path(__file__).read_text() * 12).encode()
DATA = [list(TEXT[at : at + 32]) for at in range(0, len(TEXT) - 32, 32)]  # bytes as tokens


def make_model() -> torch.nn.Module:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 256}
    torch.manual_seed(0)  # every member begins with the same weights
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


async def train(*, steps: int = 20, clients: int = 3, optimizer: str = "AdamW") -> list[list[psyche.events.Event]]:
    told: list[list[psyche.events.Event]] = [[] for _ in range(clients)]
    learning = {"learning_rate": 5e-3, "lr_warmup_steps": 2, "optimizer": optimizer, "steps_per_epoch": 10}
    run = psyche.RunConfig("embedded", total_steps=steps, sequence_length=32, batch_size=12, clients=clients, **learning)
    async with psyche.Coordinator(run) as coordinator, AsyncExitStack() as stack:
        where = coordinator.address
        members = [psyche.Client(where, model=make_model(), data=DATA, callbacks=[own.append], device="cpu") for own in told]
        for member in members:
            await stack.enter_async_context(member)
        for member in members:
            await member.wait()
    return told


if __name__ == "__main__":
    for number, events in enumerate(anyio.run(train)):
        print(number, *[event for event in events if isinstance(event, (psyche.events.EpochDigest, psyche.events.Ended))])
