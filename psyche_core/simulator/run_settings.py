"""What a script's run is set up with: the coordinator's configuration, the model's, the rates of rewards."""

from __future__ import annotations

from psyche_core.config.run_config import Choice, CoordinatorConfig, LLMConfig, ModelConfig
from psyche_core.coordinator.commands import SetFutureEpochRates
from psyche_core.simulator.script import Script

STALL_TIMEOUT = 60.0
"""Virtual seconds without progress that are allowed beyond what the configuration explains."""


def longest_stall(script: Script) -> float:
    """Virtual seconds between two steps that the configuration explains, plus timeouts."""
    shape = script.shape
    rounds = 4 * (shape.max_round_train_time + shape.round_witness_time)
    return rounds + 2 * (shape.warmup_time + shape.cooldown_time + shape.extra_time) + STALL_TIMEOUT


def coordinator_config(script: Script) -> CoordinatorConfig:
    """The coordinator's configuration: the script's shape."""
    shape = script.shape
    return CoordinatorConfig(
        warmup_time=shape.warmup_time,
        cooldown_time=shape.cooldown_time,
        max_round_train_time=shape.max_round_train_time,
        round_witness_time=shape.round_witness_time,
        epoch_time=shape.epoch_time,
        global_batch_size_warmup_tokens=shape.batch_warmup_tokens,
        total_steps=script.rounds,
        init_min_clients=shape.init_min_clients,
        min_clients=shape.min_clients,
        witness_nodes=shape.witness_nodes,
        global_batch_size_start=shape.batch_start,
        global_batch_size_end=shape.batch_end,
        verification_percent=shape.verification_percent,
        waiting_for_members_extra_time=shape.extra_time,
        rounds_per_epoch=shape.rounds_per_epoch,
        restart_from_checkpoint=shape.restart_from_checkpoint,
    )


RATES = SetFutureEpochRates(earning_total_shared=1000, slashing_per_client=7)


MODEL = ModelConfig(
    LLM=LLMConfig(
        max_seq_len=16,
        cold_start_warmup_steps=0,
        architecture="HfLlama",
        checkpoint=Choice("Hub", {"repo_id": "model"}),
        data_type="Pretraining",
        data_location=Choice("Dummy"),
        lr_schedule=Choice("Constant", {"base_lr": 0.01, "warmup_init_lr": 0.0, "warmup_steps": 0}),
        optimizer=Choice("AdamW", {"betas": [0.9, 0.95], "weight_decay": 0.1, "eps": 1e-8}),
    )
)
