"""A small run that waits for its members, for tests of what hosts it. No torch, no pytest."""

from __future__ import annotations

import hashlib

from psyche_core.config.run_config import Choice, CoordinatorConfig, LLMConfig, ModelConfig
from psyche_core.coordinator import new_state
from psyche_core.coordinator.state import CoordinatorState

START_TIME = 1_700_000_000
"""Unix seconds at which it begins to wait."""


def small_state(*, clients: int = 2, run_id: str = "conformance") -> CoordinatorState:
    """A run that waits for `clients` members: no witness election, three samples per round, ten steps."""
    config = CoordinatorConfig(
        warmup_time=100,
        cooldown_time=10,
        max_round_train_time=50,
        round_witness_time=5,
        epoch_time=1000,
        global_batch_size_warmup_tokens=0,
        total_steps=10,
        init_min_clients=clients,
        min_clients=1,
        witness_nodes=0,
        global_batch_size_start=6,
        global_batch_size_end=6,
        verification_percent=0,
        waiting_for_members_extra_time=2,
    )
    llm = LLMConfig(
        max_seq_len=8,
        cold_start_warmup_steps=0,
        architecture="HfLlama",
        checkpoint=Choice("Dummy", {"repo_id": "none"}),
        data_type="Pretraining",
        data_location=Choice("Dummy"),
        lr_schedule=Choice("Constant", {"base_lr": 0.1, "warmup_init_lr": 0.0, "warmup_steps": 0}),
        optimizer=Choice("AdamW"),
    )
    return new_state(run_id, config, ModelConfig(LLM=llm), now=START_TIME, instance=hashlib.sha256(run_id.encode()).digest())
